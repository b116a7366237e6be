"""Beam search: transformers' beams, and on a small tree the best of all answers."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.0")
transformers = pytest.importorskip("transformers")

from backends.torch.beams import BeamSearchParams, search  # noqa: E402
from backends.weights.tiny import make_tiny  # noqa: E402
from twinserve import LLM, InputError  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_tiny("tiny-qwen2", tmp_path_factory.mktemp("beams"), seed=6)


@pytest.mark.parametrize("width", [1, 3])
def test_beams_are_those_of_transformers(folder: Path, width: int) -> None:
    llm = LLM(folder, kv_tokens=2048)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = [list(range(20, 47)), list(range(300, 309))]
    found = llm.beam_search(prompts, BeamSearchParams(beam_width=width, max_tokens=9, ignore_eos=True))
    for prompt, beams in zip(prompts, found, strict=True):
        given = torch.tensor([prompt])
        out = theirs.generate(
            given, attention_mask=torch.ones_like(given), num_beams=width, num_return_sequences=width, max_new_tokens=9,
            do_sample=False, eos_token_id=None,
        )  # fmt: skip
        assert [beam.tokens for beam in beams] == out[:, len(prompt) :].tolist()
        assert all(beam.text == llm.tokenizer.decode(beam.tokens) for beam in beams)
    if width > 1:
        state = llm._engine.state
        assert llm.generate([prompts[0]])[0].num_cached_tokens == 16 and not state.running


def test_a_wide_search_finds_the_best_of_all_answers() -> None:
    """Four tokens, one of which ends an answer, with chances that depend on what was said; a beam for every answer."""
    draw = np.random.default_rng(1)
    chances: dict[tuple[int, ...], np.ndarray] = {}

    def logs(said: tuple[int, ...]) -> np.ndarray:
        return np.log(chances.setdefault(said, draw.dirichlet(np.ones(4))))

    def best(asked: list[list[int]], count: int) -> list[dict[int, float]]:
        return [dict(enumerate(logs(tuple(each[1:])).tolist())) for each in asked]

    every: dict[tuple[int, ...], float] = {}
    for words in product(range(4), repeat=3):
        cut = words[: words.index(3) + 1] if 3 in words else words
        every[cut] = sum(float(logs(cut[:i])[token]) for i, token in enumerate(cut))
    ranked = sorted(every, key=lambda words: -every[words] / len(words))
    [found] = search([[7]], BeamSearchParams(beam_width=64, max_tokens=3), frozenset({3}), best)
    assert [tuple(beam.tokens) for beam in found] == ranked
    assert found[0].cum_logprob == pytest.approx(every[ranked[0]])
    assert {beam.finish_reason for beam in found if beam.tokens[-1] == 3} == {"stop"}
    assert math.isclose(sum(math.exp(value) for value in every.values()), 1.0)


def test_widths_and_lengths_that_cannot_be() -> None:
    for values in ({"beam_width": 0, "max_tokens": 3}, {"beam_width": 2, "max_tokens": 0}):
        with pytest.raises(InputError, match="must be at least 1"):
            BeamSearchParams(**values)
