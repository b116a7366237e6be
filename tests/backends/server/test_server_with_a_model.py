"""The server with a real model: its tokens are those of `LLM`, streamed or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("transformers")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

from serving_harness import Client, eventually, made, running

from backends.weights.tiny import make_tiny
from twinserve import LLM, SamplingParams

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPTS = ["to be or not to be", "ünïcödé ✓", "a", "the same words and then some more of them, " * 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("tiny-llama", tmp_path_factory.mktemp("model"), seed=4)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, max_num_batched_tokens=64, max_num_seqs=8)


@pytest.fixture(scope="module")
def client(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    text = (
        f"model: {folder}\nbackend: {{name: torch, device: cpu}}\n"
        "engine: {scheduler: {max_num_seqs: 8, max_num_batched_tokens: 64}}\nsampling: {temperature: 0.0}\n"
    )
    served, _ = made(tmp_path_factory.mktemp("file"), text=text, name="tiny")
    with running(served) as client:
        yield client


def test_answers_are_those_of_the_library(client: Client, llm: LLM) -> None:
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=20))
    told = client.good(COMPLETIONS, {"prompt": PROMPTS, "max_tokens": 20, "model": "tiny"})
    for choice, output in zip(told["choices"], outputs, strict=True):
        assert choice["text"] == output.outputs[0].text and choice["finish_reason"] == output.outputs[0].finish_reason
    assert told["usage"]["prompt_tokens"] == sum(len(output.prompt_token_ids) for output in outputs)
    assert told["usage"]["completion_tokens"] == sum(len(output.outputs[0].token_ids) for output in outputs)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_stream_adds_up_to_the_whole(client: Client, prompt: str) -> None:
    """Random weights say bytes that are no text, and characters in pieces: nothing is lost or said twice."""
    body = {"prompt": prompt, "max_tokens": 40, "ignore_eos": True}
    whole = client.good(COMPLETIONS, body)["choices"][0]["text"]
    *events, last = client.events(COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
    assert "".join(event["choices"][0]["text"] for event in events) == whole
    assert last["usage"]["completion_tokens"] == 40


def test_characters_of_several_tokens_come_whole(client: Client, llm: LLM) -> None:
    ids = client.good("/tokenize", {"prompt": "✓🙂東", "add_special_tokens": False})["tokens"]
    assert len(ids) > 3 and client.good("/detokenize", {"tokens": ids}) == {"prompt": "✓🙂東"}
    from backends.server.detokenise import TextStream

    stream = TextStream(llm.tokenizer.decode)
    pieces = [stream.add([token], place == len(ids) - 1) for place, token in enumerate(ids)]
    assert "".join(pieces) == "✓🙂東" and not any("�" in piece for piece in pieces)


def test_a_chat_goes_through_the_template(client: Client, llm: LLM) -> None:
    messages = [{"role": "user", "content": "to be"}]
    said = llm.chat(messages, SamplingParams(max_tokens=8))[0]
    told = client.good(CHAT, {"messages": messages, "max_tokens": 8})
    assert told["choices"][0]["message"]["content"] == said.outputs[0].text
    assert told["usage"]["prompt_tokens"] == len(said.prompt_token_ids)


def test_wishes_of_a_request(client: Client, llm: LLM) -> None:
    how = {"max_tokens": 12, "temperature": 1.2, "top_k": 40, "top_p": 0.9, "seed": 7, "ignore_eos": True}
    text = llm.generate(PROMPTS[0], SamplingParams(**how))[0].outputs[0].text
    assert client.good(COMPLETIONS, {"prompt": PROMPTS[0], **how})["choices"][0]["text"] == text
    assert client.good(COMPLETIONS, {"prompt": PROMPTS[0], **how, "seed": 8})["choices"][0]["text"] != text


@pytest.mark.parametrize("temperature", [1e-320, 1e-45, 1e-30, 9e-6])
def test_a_temperature_of_next_to_nothing_is_none(client: Client, temperature: float) -> None:
    """Logits divided by it would be infinite, and the draw no draw."""
    body = {"prompt": PROMPTS[0], "max_tokens": 8, "ignore_eos": True}
    greedy = client.good(COMPLETIONS, {**body, "temperature": 0})["choices"]
    assert client.good(COMPLETIONS, {**body, "temperature": temperature})["choices"] == greedy


def test_what_ends_an_answer(client: Client, llm: LLM) -> None:
    body = {"prompt": PROMPTS[0], "max_tokens": 30, "ignore_eos": True}
    whole = llm.generate(PROMPTS[0], SamplingParams(max_tokens=30, ignore_eos=True))[0].outputs[0]
    stop, token = whole.text[4:7], whole.token_ids[5]
    for streamed in (False, True):
        asked = {**body, "stop": ["never said", stop]}
        if streamed:
            events = client.events(COMPLETIONS, asked)
            text, finish = (
                "".join(event["choices"][0]["text"] for event in events),
                events[-1]["choices"][0]["finish_reason"],
            )
        else:
            choice = client.good(COMPLETIONS, asked)["choices"][0]
            text, finish = choice["text"], choice["finish_reason"]
        assert text == whole.text[: whole.text.index(stop)] and finish == "stop"
    first = whole.token_ids.index(token) + 1
    told = client.good(COMPLETIONS, {**body, "stop_token_ids": [token]})
    assert told["usage"]["completion_tokens"] == first and told["choices"][0]["finish_reason"] == "stop"
    told = client.good(COMPLETIONS, {**body, "stop_token_ids": [token], "min_tokens": 30})
    assert told["usage"]["completion_tokens"] == 30 and told["choices"][0]["finish_reason"] == "length"


def test_a_stand_in_with_the_models_tokenizer_counts_and_caches_as_the_model_does(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Prompt tokens and prefix hits, one request after another: what is cached hangs on prompts alone."""
    head = "the same words in front of every question, "
    prompts = [head * 3 + word for word in ("a", "be", "to be or not", "a")] + [head * 2, head * 4]
    bodies = [(COMPLETIONS, {"prompt": prompt, "max_tokens": 1}) for prompt in prompts]
    bodies += [(CHAT, {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1}) for prompt in prompts]
    engine = "engine: {kv: {capacity_tokens: 4096}}\n"
    found = []
    for backend in ("{name: torch, device: cpu}", "{name: sim, gpu: l4}"):
        text = f"model: {folder}\nbackend: {backend}\n{engine}"
        served, _ = made(tmp_path_factory.mktemp("twin"), text=text, speed=1.0 if "torch" in backend else 50.0)
        with running(served) as client:
            found.append([client.good(path, body)["usage"] for path, body in bodies])
            assert "tokenizer" in served.words.rule
    assert found[0] == found[1]
    assert sum(usage["prompt_tokens_details"]["cached_tokens"] > 0 for usage in found[0]) > 8


def test_a_wish_that_cannot_be_is_told(client: Client) -> None:
    status, told = client.ask(COMPLETIONS, {"prompt": [5, 511, 512]})
    assert status == 400 and "below 512" in told["error"]["message"]


def test_prefixes_are_cached_and_clients_that_hang_up_leave_nothing(client: Client) -> None:
    body = {"prompt": "one more prompt of many words, " * 6, "max_tokens": 2}
    client.good(COMPLETIONS, body)
    assert client.good(COMPLETIONS, body)["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    sock = client.begin(COMPLETIONS, {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True})
    eventually(lambda: client.metric("vllm:num_requests_running") == 1)
    sock.close()
    eventually(lambda: client.metric("vllm:num_requests_running") == 0)
    assert client.metric("vllm:kv_cache_usage_perc") == 0
