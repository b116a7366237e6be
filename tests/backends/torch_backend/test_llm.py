"""Generating from Python: transformers' tokens, every wish of a request, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.0")
transformers = pytest.importorskip("transformers")

from real_engine import Served, engine_config, traffic_of  # noqa: E402

import twinserve  # noqa: E402
from backends.weights.load import load_model  # noqa: E402
from backends.weights.tiny import make_tiny  # noqa: E402
from twinserve import LLM, InputError, SamplingParams  # noqa: E402

PROMPTS = ["to be or not to be", "ünïcödé ✓", "a", "the same words and then some more of them, " * 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_tiny("tiny-llama", tmp_path_factory.mktemp("llm"), seed=4)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, max_num_batched_tokens=64, max_num_seqs=8)


@pytest.fixture(scope="module")
def theirs(folder: Path):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def generated(theirs, ids: list[int], count: int, **how) -> list[int]:
    """What transformers says."""
    given = torch.tensor([ids])
    out = theirs.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False, **how)
    return out[0, len(ids) :].tolist()


@pytest.mark.parametrize("penalty", [1.0, 1.7])
def test_greedy_tokens_are_those_of_transformers(llm: LLM, theirs, penalty: float) -> None:
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=20, repetition_penalty=penalty))
    for output, prompt in zip(outputs, PROMPTS, strict=True):
        assert output.prompt == prompt and llm.tokenizer.decode(output.prompt_token_ids) == prompt
        answer = output.outputs[0]
        assert answer.token_ids == generated(theirs, output.prompt_token_ids, 20, repetition_penalty=penalty)
        assert answer.text == llm.tokenizer.decode(answer.token_ids)
        assert answer.finish_reason == ("stop" if answer.token_ids[-1] == 2 else "length")
    if penalty > 1:
        assert len(set(outputs[0].outputs[0].token_ids)) > 15


@torch.inference_mode()
def test_logprobs_are_those_of_the_model(llm: LLM, theirs) -> None:
    output = llm.generate([list(range(30, 60))], SamplingParams(max_tokens=6, temperature=1.3, seed=3, logprobs=4))[0]
    answer = output.outputs[0]
    logits = theirs(torch.tensor([output.prompt_token_ids + answer.token_ids])).logits[0]
    expected = torch.log_softmax(logits, -1)[len(output.prompt_token_ids) - 1 : -1]
    for row, token, told in zip(expected, answer.token_ids, answer.logprobs, strict=True):
        assert set(told) == {token, *row.topk(4).indices.tolist()}
        for each, logprob in told.items():
            assert logprob.logprob == pytest.approx(float(row[each]), abs=1e-4)
            assert logprob.decoded_token == llm.tokenizer.decode([each])
    total = float(expected.gather(1, torch.tensor(answer.token_ids)[:, None]).sum())
    assert answer.cumulative_logprob == pytest.approx(total, abs=1e-3)
    plain = llm.generate([[5, 6]], SamplingParams(max_tokens=2))[0].outputs[0]
    assert plain.logprobs is None and plain.cumulative_logprob is None


def test_texts_and_tokens_stop_an_answer(llm: LLM) -> None:
    whole = llm.generate(PROMPTS[0], SamplingParams(max_tokens=30, ignore_eos=True))[0].outputs[0]
    stop = whole.text[4:7]
    how = SamplingParams(max_tokens=30, ignore_eos=True, stop=["never said", stop])
    cut = llm.generate(PROMPTS[0], how)[0].outputs[0]
    assert cut.finish_reason == "stop" and cut.text == whole.text[: whole.text.index(stop)]
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)] and len(cut.token_ids) < 30
    token = whole.token_ids[5]
    at = whole.token_ids.index(token)
    how = SamplingParams(max_tokens=30, ignore_eos=True, stop_token_ids=[token])
    ended = llm.generate(PROMPTS[0], how)[0].outputs[0]
    assert ended.token_ids == whole.token_ids[: at + 1] and ended.finish_reason == "stop"
    said_already = llm.generate("what was said", SamplingParams(max_tokens=2, stop="said"))[0].outputs[0]
    assert len(said_already.token_ids) == 2, "what the prompt says stops nothing"


def test_samples_and_seeds(llm: LLM) -> None:
    how = SamplingParams(max_tokens=12, temperature=1.5, n=4, seed=11, ignore_eos=True)
    first, again = (llm.generate([PROMPTS[0], PROMPTS[3]], how) for _ in range(2))
    for one, two in zip(first, again, strict=True):
        answers = [answer.token_ids for answer in one.outputs]
        assert [answer.index for answer in one.outputs] == [0, 1, 2, 3]
        assert len({tuple(answer) for answer in answers}) == 4 and all(len(answer) == 12 for answer in answers)
        assert answers == [answer.token_ids for answer in two.outputs]
    alone = llm.generate(PROMPTS[3], how)[0]
    assert [a.token_ids for a in alone.outputs] == [a.token_ids for a in first[1].outputs], "neighbours do not matter"
    each = llm.generate(PROMPTS[:2], [SamplingParams(max_tokens=3), SamplingParams(max_tokens=5, ignore_eos=True)])
    assert len(each[1].outputs[0].token_ids) == 5


def test_prefixes_stay_cached_between_calls(folder: Path) -> None:
    llm = LLM(folder, kv_tokens=512)
    ids = list(range(40, 100))
    first, second = (llm.generate({"prompt_token_ids": ids})[0] for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 48)
    assert first.outputs == second.outputs


def test_conversations_go_through_the_template(llm: LLM) -> None:
    talk = [{"role": "user", "content": "hello"}]
    output = llm.chat(talk, SamplingParams(max_tokens=3))[0]
    assert llm.tokenizer.decode(output.prompt_token_ids) == "user: helloassistant: "
    assert len(llm.chat([talk, talk])) == 2


def test_an_interrupted_call_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(folder, kv_tokens=1024, enable_prefix_caching=False)
    engine = llm._engine
    land, landed = engine.land, []

    def interrupted(outcome):
        landed.append(land(outcome))
        if len(landed) == 3:
            raise KeyboardInterrupt
        return landed[-1]

    monkeypatch.setattr(engine, "land", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, SamplingParams(max_tokens=100, n=2))
    assert engine.idle and engine.state.allocator.use(0).free == 1024 and not llm._answers
    assert len(llm.generate("again", SamplingParams(max_tokens=4, ignore_eos=True))[0].outputs[0].token_ids) == 4


def test_mistakes_are_told(llm: LLM, folder: Path, tmp_path: Path) -> None:
    for call, words in (
        (lambda: llm.generate(""), "a prompt is empty"),
        (lambda: llm.generate([["x"]]), "invalid literal"),
        (lambda: llm.generate([[5] * 2000]), "prompt of 2000 tokens"),
        (lambda: llm.generate([[5, 512]]), "token ids must be 0 to 511"),
        (lambda: llm.generate(PROMPTS, [SamplingParams()]), "4 prompts, but 1 sampling_params"),
        (lambda: SamplingParams(max_tokens=0), "max_tokens: must be at least 1"),
        (lambda: SamplingParams(repetition_penalty=0), "repetition_penalty: must be above 0"),
        (lambda: SamplingParams(stop=[""]), "stop: must be texts"),
        (lambda: LLM(tmp_path / "nowhere"), "no model folder"),
        (lambda: LLM(folder, backend="triton", device="cpu"), "needs a GPU"),
        (lambda: LLM(folder, load="dumy"), "unknown way to load 'dumy'"),
    ):
        with pytest.raises((InputError, ValueError), match=words):
            call()
    assert llm._engine.idle, "a call that was refused left something behind"
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).symlink_to(folder / name)
    silent = LLM(bare, kv_tokens=256)
    with pytest.raises(InputError, match="needs the model's tokenizer"):
        silent.generate("words")
    with pytest.raises(InputError, match="need the model's tokenizer"):
        silent.generate([[5]], SamplingParams(stop="x"))
    assert silent.generate([[5]])[0].outputs[0].text == ""
    assert json.loads((bare / "config.json").read_text("utf-8")) and twinserve.LLM is LLM


@pytest.mark.parametrize("depth", [1, 2])
def test_penalties_count_tokens_that_only_the_device_knows(folder: Path, theirs, depth: int) -> None:
    rows = [{"prompt": 20, "output": 15}, {"prompt": 33, "output": 15}]
    served = Served(
        load_model(folder),
        traffic_of(rows),
        engine_config(depth=depth),
        sampling=SamplingParams(repetition_penalty=1.7),
    )
    for row in range(2):
        expected = generated(theirs, served.prompts[row], 15, repetition_penalty=1.7, eos_token_id=None)
        assert served.tokens[row, 0] == expected


def test_keys_and_values_may_be_kept_in_less(folder: Path) -> None:
    """Half of the memory or a quarter, and much the same to say; a type that nobody knows is refused."""
    ids = list(range(30, 60))
    wide, small = (
        LLM(folder, max_num_seqs=4, kv_cache_dtype=dtype).generate(
            [ids], SamplingParams(max_tokens=1, logprobs=5, ignore_eos=True)
        )[0].outputs[0].logprobs[0]
        for dtype in ("auto", "int8")
    )  # fmt: skip
    shared = wide.keys() & small.keys()
    assert len(shared) >= 3 and all(abs(wide[token].logprob - small[token].logprob) < 0.05 for token in shared)
    assert any(wide[token].logprob != small[token].logprob for token in shared)
    with pytest.raises(InputError, match="unknown KV dtype 'int9'"):
        LLM(folder, kv_cache_dtype="int9")
