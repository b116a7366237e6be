"""The sampler against plain torch: the same tokens, given the same logits."""

from __future__ import annotations

import interpreter  # noqa: F401 (first)
import numpy as np
import pytest
import torch
from compare import normal

from backends.ops.base import SamplingBatch
from backends.ops.reference import ReferenceOperators
from backends.triton.launch import Launcher, Target
from backends.triton.operators import TritonOperators

PLAIN = ReferenceOperators()


def ours(processors: int = 2) -> TritonOperators:
    return TritonOperators(launch=Launcher(Target(processors=processors, interpreted=True)))


def how(rows: int, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7, **more) -> SamplingBatch:
    def column(value, dtype):
        return torch.as_tensor(np.broadcast_to(value, rows).copy(), dtype=dtype)

    temperature, top_p, min_p = (column(each, torch.float32) for each in (temperature, top_p, min_p))
    top_k, seed = column(top_k, torch.int64), column(seed, torch.int64)
    places = [torch.arange(rows) * factor + shift for factor, shift in ((3, 1), (1, 0), (101, 5))]
    filtered = bool((top_k > 0).any() or (top_p < 1).any() or (min_p > 0).any())
    return SamplingBatch(
        temperature, top_k, top_p, min_p, seed, *places, bool((temperature == 0).all()), filtered, **more
    )


def same(logits: torch.Tensor, batch: SamplingBatch, processors: int = 2) -> torch.Tensor:
    got, want = ours(processors).sample(logits, batch), PLAIN.sample(logits, batch)
    assert got.dtype == torch.int64
    assert torch.equal(got, want), (got, want)
    return got


@pytest.mark.parametrize("width", [1, 2, 5, 513, 20_011])
def test_greedy_takes_the_lowest_of_equals(width) -> None:
    logits = normal(3, width)
    logits[1] = 0.5
    logits[2, width // 2 :] = 9.0
    tokens = same(logits, how(3, temperature=0.0), processors=32)
    assert tokens.tolist()[1:] == [0, width // 2]


@pytest.mark.parametrize("width", [1, 3, 23, 1000, 9001])
def test_draws_without_filters(width) -> None:
    same(normal(12, width, seed=width) * 2, how(12, temperature=[0.7, 1.0, 1.3, 0.0] * 3), processors=100)


@pytest.mark.parametrize("seed", [0, -3, 1 << 40, -(1 << 63)])
def test_seeds_of_64_bits(seed) -> None:
    same(normal(4, 40), how(4, seed=seed))


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": [0, 1, 50, 700]}, {"top_p": [0.9, 0.01, 0.6, 0.3]}, {"min_p": [0.2, 1.0, 0.01, 0.0]},
        {"top_k": 20, "top_p": 0.8}, {"top_k": 30, "top_p": 0.95, "min_p": 0.02, "temperature": 1.7},
        {"top_p": [0.3, 1.0, 0.7, 1.0], "temperature": [1.0, 0.5, 0.0, 2.0]},
    ],
)  # fmt: skip
def test_draws_with_filters(options) -> None:
    same(normal(4, 600, seed=5) * 3, how(4, **options))


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 9, "top_p": 0.55}])
def test_equal_logits_at_the_edge_of_a_filter(options) -> None:
    """Rows hold few distinct values, the first two one; where many are equal, those with lower ids stay."""
    logits = (normal(6, 37, seed=2) * 1.5).round()
    logits[:2] = 0.0
    same(logits, how(6, **options))


def test_the_repetition_penalty() -> None:
    logits = normal(4, 50) * 2
    rows, ids = torch.tensor([0, 0, 0, 2, 2, 3]), torch.tensor([5, 5, 9, 49, 0, int(logits[3].argmax())])
    more = {"penalty": torch.tensor([1.5, 1.0, 0.8, 1e6]), "seen_rows": rows, "seen_ids": ids}
    kept = logits.clone()
    greedy = same(logits, how(4, temperature=0.0, **more))
    assert greedy[3] != logits[3].argmax()
    same(logits, how(4, temperature=[1.0, 0.0, 0.5, 2.0], top_k=10, **more))
    assert torch.equal(logits, kept), "the caller's logits were changed"
    none = {"penalty": torch.ones(4), "seen_rows": rows[:0], "seen_ids": ids[:0]}
    assert torch.equal(same(logits, how(4, **none)), PLAIN.sample(logits, how(4)))


def test_a_cold_temperature_loses_no_digits_and_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.tensor([[100.0, 99.0, -50.0], [3.0, 3.0, 2.9]])
    together = same(logits, how(2, temperature=[1e-3, 1.0]))
    assert together[0] == 0
    batch = how(2, temperature=[1e-3, 1.0])
    fields = [getattr(batch, name)[1:] for name in ("temperature", "top_k", "top_p", "min_p", "seed")]
    places = [getattr(batch, name)[1:] for name in ("request", "sample", "position")]
    assert same(logits[1:], SamplingBatch(*fields, *places, False, False)) == together[1]


def test_logits_of_minus_infinity_are_never_drawn() -> None:
    logits = torch.full((3, 30), -float("inf"))
    logits[:, 17] = 1.0
    logits[2, 4] = 1.0
    tokens = same(logits, how(3, top_k=[0, 5, 0], top_p=[1.0, 1.0, 0.9]))
    assert set(tokens.tolist()) <= {17, 4}
