"""The server over HTTP, simulated: OpenAI's shapes, vLLM's extras, errors, clients that hang up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra server is not installed")

from serving_harness import MODEL, WORKLOAD, Client, eventually, made, running

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    served, _ = made(tmp_path_factory.mktemp("http"), speed=50.0)
    with running(served) as client:
        yield client


def test_what_it_says_of_itself(client: Client) -> None:
    assert client.ask("/health") == (200, "")
    (model,) = client.good("/v1/models")["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == (MODEL, "model", 8192)
    assert client.good(f"/v1/models/{MODEL}") == model
    assert client.good("/version")["version"]


def test_a_completion_is_whole(client: Client) -> None:
    told = client.good(COMPLETIONS, {"model": MODEL, "prompt": "The sea is", "max_tokens": 7})
    (choice,) = told["choices"]
    assert told["object"] == "text_completion" and told["id"].startswith("cmpl-") and told["model"] == MODEL
    assert choice["index"] == 0 and choice["finish_reason"] == "length" and choice["logprobs"] is None
    assert len(choice["text"].split()) == 7
    assert told["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip


def test_without_a_limit_a_completion_is_as_long_as_the_server_says(client: Client) -> None:
    told = client.good(COMPLETIONS, {"prompt": "And then"})
    assert told["usage"]["completion_tokens"] == 128 and told["choices"][0]["finish_reason"] == "stop"
    assert client.good(CHAT, {"messages": HELLO})["usage"]["completion_tokens"] == 128


def test_a_stream_says_what_the_whole_says(client: Client) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 9}
    text = client.good(COMPLETIONS, body)["choices"][0]["text"]
    events = client.events(COMPLETIONS, body)
    assert [len(event["choices"]) for event in events] == [1] * 9
    assert "".join(event["choices"][0]["text"] for event in events) == text
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 8 + ["length"]
    assert len({event["id"] for event in events}) == 1 and "usage" not in events[-1]


def test_usage_in_a_stream(client: Client) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 3, "stream_options": {"include_usage": True}}
    *events, last = client.events(COMPLETIONS, body)
    assert len(events) == 3 and last["choices"] == [] and last["usage"]["completion_tokens"] == 3
    body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    events = client.events(COMPLETIONS, body)
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 3]


def test_a_chat(client: Client) -> None:
    told = client.good(CHAT, {"messages": HELLO, "max_completion_tokens": 5})
    (choice,) = told["choices"]
    assert told["object"] == "chat.completion" and choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"].split()) == 5 and choice["finish_reason"] == "length"
    first, *events = client.events(CHAT, {"messages": HELLO, "max_tokens": 5})
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == choice["message"]["content"]


def test_content_may_come_in_parts_of_text(client: Client) -> None:
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]
    told = client.good(CHAT, {"messages": [{"role": "user", "content": parts}], "max_tokens": 1})
    joined = client.good(CHAT, {"messages": [{"role": "user", "content": "Say \nhello."}], "max_tokens": 1})
    assert told["usage"]["prompt_tokens"] == joined["usage"]["prompt_tokens"]


def test_prompts_as_ids_and_several_at_once(client: Client) -> None:
    ids = client.good("/tokenize", {"prompt": "The sea is"})["tokens"]
    text = client.good(COMPLETIONS, {"prompt": "The sea is", "max_tokens": 4})["choices"][0]["text"]
    assert client.good(COMPLETIONS, {"prompt": ids, "max_tokens": 4})["choices"][0]["text"] == text
    told = client.good(COMPLETIONS, {"prompt": [ids, [1, 2, 3]], "max_tokens": 4})
    assert [choice["index"] for choice in told["choices"]] == [0, 1] and told["choices"][0]["text"] == text
    assert told["usage"]["completion_tokens"] == 8 and told["usage"]["prompt_tokens"] == 6
    events = client.events(COMPLETIONS, {"prompt": ["The sea is", "x"], "max_tokens": 4})
    mine = [event["choices"][0] for event in events]
    assert sorted(choice["index"] for choice in mine) == [0] * 4 + [1] * 4
    assert "".join(choice["text"] for choice in mine if choice["index"] == 0) == text


def test_a_stop_ends_an_answer_and_is_no_part_of_it(client: Client) -> None:
    body = {"prompt": "The sea is", "max_tokens": 20}
    words = client.good(COMPLETIONS, body)["choices"][0]["text"].split()
    place = next(i for i in range(6, 20) if words[i] not in words[:i])
    for stop in (words[place], [f"{words[place - 1]} {words[place]}", "never said"]):
        told = client.good(COMPLETIONS, {**body, "stop": stop})
        start = place if isinstance(stop, str) else place - 1
        assert told["choices"][0]["text"].split() == words[:start] and told["choices"][0]["finish_reason"] == "stop"
        assert told["usage"]["completion_tokens"] == place + 1
        events = client.events(COMPLETIONS, {**body, "stop": stop})
        assert "".join(event["choices"][0]["text"] for event in events) == told["choices"][0]["text"]
    told = client.good(COMPLETIONS, {**body, "stop": words[2], "min_tokens": 20})
    assert told["usage"]["completion_tokens"] == 20


def test_an_answer_that_comes_back_is_found_in_the_cache(client: Client) -> None:
    """What was said is part of the next prompt: all its whole blocks but what the last step did not compute."""
    before = client.metric("vllm:prefix_cache_hits_total")
    messages = [{"role": "user", "content": "Tell me of the sea, and of the ships that are on it." * 4}]
    answer = client.good(CHAT, {"messages": messages, "max_tokens": 60})
    longer = [*messages, {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}]
    again = client.good(CHAT, {"messages": [*longer, {"role": "user", "content": "More."}], "max_tokens": 1})
    known = answer["usage"]["total_tokens"] - 1
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == known // 16 * 16
    assert client.metric("vllm:prefix_cache_hits_total") == before + known // 16 * 16


def test_tokens_there_and_back(client: Client) -> None:
    text = "The sea is blue, ünïcödé ✓ 東京 🙂"
    told = client.good("/tokenize", {"prompt": text, "model": MODEL, "return_token_strs": True})
    assert told["count"] == len(told["tokens"]) == -(-len(text.encode()) // 4) and told["max_model_len"] == 8192
    assert len(told["token_strs"]) == told["count"]
    assert client.good("/detokenize", {"tokens": told["tokens"]}) == {"prompt": text}
    chat = client.good("/tokenize", {"messages": HELLO})
    assert client.good(CHAT, {"messages": HELLO, "max_tokens": 1})["usage"]["prompt_tokens"] == chat["count"]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (COMPLETIONS, b'{"prompt": "x"', 400, "JSON"),
        (COMPLETIONS, b"[]", 400, "object"),
        (COMPLETIONS, {}, 400, "prompt"),
        (COMPLETIONS, {"prompt": 3}, 400, "token ids"),
        (COMPLETIONS, {"prompt": ""}, 400, "empty"),
        (COMPLETIONS, {"prompt": ["a", ""]}, 400, "empty"),
        (COMPLETIONS, {"prompt": []}, 400, "empty"),
        (COMPLETIONS, {"prompt": [1, -2]}, 400, "prompt"),
        (COMPLETIONS, {"prompt": [1 << 40]}, 400, "token ids"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 8192}, 400, "8192 tokens"),
        (COMPLETIONS, {"prompt": [7] * 8192}, 400, "8192 tokens"),
        (COMPLETIONS, {"prompt": "x", "n": 2}, 400, "n other than 1"),
        (COMPLETIONS, {"prompt": "x", "logprobs": 1}, 400, "logprobs"),
        (COMPLETIONS, {"prompt": "x", "echo": True}, 400, "echo"),
        (COMPLETIONS, {"prompt": "x", "temperature": -1}, 400, "temperature"),
        (COMPLETIONS, {"prompt": "x", "min_tokens": 9, "max_tokens": 8}, 400, "min_tokens"),
        (COMPLETIONS, {"prompt": "x", "stream_options": {"include_usage": True}}, 400, "stream_options"),
        (COMPLETIONS, {"prompt": "x", "model": "gpt-4"}, 404, "gpt-4"),
        (CHAT, {"messages": []}, 400, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "image_url"),
        (CHAT, {"messages": HELLO, "tools": [{}]}, 400, "tools"),
        (CHAT, {"messages": HELLO, "response_format": {"type": "json_object"}}, 400, "response_format"),
        ("/tokenize", {}, 400, "prompt"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens"),
        ("/nowhere", {}, 404, "/nowhere"),
    ],
)  # fmt: skip
def test_errors_are_told_as_openai_tells_them(client: Client, path: str, body, status: int, words: str) -> None:
    for streamed in (False, True):
        asked = (
            {**body, "stream": True} if streamed and isinstance(body, dict) and "stream_options" not in body else body
        )
        found, told = client.ask(path, asked)
        assert found == status and set(told) == {"error"}
        assert set(told["error"]) == {"message", "type", "param", "code"} and words in told["error"]["message"]


def test_a_path_is_asked_in_the_wrong_way(client: Client) -> None:
    assert client.ask(COMPLETIONS, method="GET")[0] == 405
    assert client.ask("/health", method="POST")[0] == 405


def test_who_hangs_up_gets_no_more(tmp_path: Path) -> None:
    """The request is cancelled and its memory is free again, streamed or not; in real time no answer would end by itself."""
    served, _ = made(tmp_path)
    with running(served) as client:
        bodies = [{"prompt": "x" * 400, "max_tokens": 8000, "stream": i % 2 == 0} for i in range(4)]
        socks = [client.begin(COMPLETIONS, body) for body in bodies]
        eventually(lambda: client.metric("vllm:num_requests_running") == 4)
        assert client.metric("vllm:kv_cache_usage_perc") > 0
        for sock in socks:
            sock.close()
        eventually(lambda: client.metric("vllm:num_requests_running") == 0)
        assert client.metric("vllm:kv_cache_usage_perc") == 0
        assert client.metric("vllm:request_success_total", finished_reason="abort") == 4


def test_what_is_counted(client: Client) -> None:
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count",
             "vllm:inter_token_latency_seconds_count", "vllm:e2e_request_latency_seconds_count",
             "vllm:request_time_per_output_token_seconds_count")  # fmt: skip
    before = [client.metric(name) for name in names]
    http = {
        status: client.metric("http_requests_total", handler=COMPLETIONS, method="POST", status=status)
        for status in ("2xx", "4xx")
    }
    for _ in range(3):
        client.good(COMPLETIONS, {"prompt": "The sea is", "max_tokens": 5})
    assert client.ask(COMPLETIONS, {"prompt": "x", "n": 2})[0] == 400
    after = [client.metric(name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [9, 15, 3, 12, 3, 3]
    for status, more in (("2xx", 3), ("4xx", 1)):
        eventually(
            lambda status=status, more=more: (
                client.metric("http_requests_total", handler=COMPLETIONS, method="POST", status=status)
                == http[status] + more
            )
        )


def test_a_full_queue_says_so(tmp_path: Path) -> None:
    served, _ = made(tmp_path, "engine.scheduler.max_num_seqs=1", max_waiting=2)
    with running(served) as client:
        socks = [client.begin(COMPLETIONS, {"prompt": "x", "max_tokens": 8000})]
        eventually(lambda: client.metric("vllm:num_requests_running") == 1)
        socks += [client.begin(COMPLETIONS, {"prompt": "x", "max_tokens": 8}) for _ in range(2)]
        eventually(lambda: client.metric("vllm:num_requests_waiting") == 2)
        status, told = client.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 8})
        assert status == 429 and told["error"]["code"] == "rate_limit_exceeded"
        for sock in socks:
            sock.close()
        eventually(lambda: client.metric("vllm:num_requests_waiting") == 0)
        assert client.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 1})[0] == 200


def test_a_server_whose_engine_fails_says_so_and_stops(tmp_path: Path) -> None:
    served, _ = made(tmp_path)

    def broken(*args) -> bool:
        raise ZeroDivisionError("made up")

    served.engine.launch = broken
    with running(served) as client:
        try:
            status, told = client.ask(COMPLETIONS, {"prompt": "x"})
        except OSError:  # it had stopped already
            status, told = 500, {"error": {"message": "the engine has failed"}}
        assert status == 500 and told["error"]["message"] == "the engine has failed"
        eventually(lambda: client.faults)
    assert isinstance(client.faults[0], ZeroDivisionError)


def test_lengths_of_answers_are_drawn_where_the_file_says_how(tmp_path: Path) -> None:
    text = WORKLOAD + (
        "traffic: {max_tokens: exact, synthetic: {requests: 5, arrivals: {process: constant, rate: 1}, "
        "input_tokens: 9, output_tokens: {distribution: uniform, low: 3, high: 9}}}\nload: {mode: closed, concurrency: 2}\n"
    )
    served, _ = made(tmp_path, text=text, speed=50.0, name="stand-in")
    with running(served) as client:
        said = [client.good(COMPLETIONS, {"prompt": f"{i}", "model": "stand-in"}) for i in range(20)]
        lengths = [told["usage"]["completion_tokens"] for told in said]
        assert min(lengths) >= 3 and max(lengths) <= 9 and len(set(lengths)) > 3
        assert client.good(COMPLETIONS, {"prompt": "x", "max_tokens": 20})["usage"]["completion_tokens"] == 20
