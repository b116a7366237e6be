"""The mixture of experts against plain torch."""

from __future__ import annotations

import interpreter  # noqa: F401 (first)
import pytest
import torch
from compare import DTYPES, normal

from backends.ops.base import Dense
from backends.ops.reference import ReferenceOperators
from backends.triton.operators import TritonOperators

OURS, PLAIN = TritonOperators("cpu"), ReferenceOperators()
BOUNDS = {torch.float32: (1e-5, 1e-6), torch.float16: (4e-3, 4e-4), torch.bfloat16: (3e-2, 3e-3)}
"""(largest, mean) error as a share of the largest value and of the mean size."""


def compare(tokens, width, inner, experts, top_k, renormalise, dtype, bias=None) -> torch.Tensor:
    """Ours, and plain torch in float32 on the same numbers; inputs of the router are small integers, so its scores are exact."""
    x = normal(tokens, width, dtype=dtype)
    x[:, :8] = (x[:, :8] * 4).round() / 4
    weight = torch.zeros(experts, width, dtype=dtype)
    weight[:, :8] = (normal(experts, 8, seed=1) * 2).round()
    router = Dense(weight, bias)
    gate_up = normal(experts, 2 * inner, width, seed=2, dtype=dtype) * width**-0.5
    down = normal(experts, width, inner, seed=3, dtype=dtype) * inner**-0.5
    got = OURS.experts(x, router, gate_up, down, top_k, renormalise)
    exact = Dense(weight.float(), None if bias is None else bias.float())
    want = PLAIN.experts(x.float(), exact, gate_up.float(), down.float(), top_k, renormalise)
    assert got.shape == x.shape and got.dtype == dtype
    error, size = (got.double() - want.double()).abs(), want.double().abs()
    most, mean = BOUNDS[dtype]
    assert error.max() <= most * size.max() and error.mean() <= mean * size.mean(), (error.max(), error.mean())
    return got


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 8, 2), (9, 5, 3), (40, 3, 2)])
def test_experts(tokens, experts, top_k, renormalise, dtype) -> None:
    compare(tokens, 72, 40, experts, top_k, renormalise, dtype)


def test_experts_without_a_token_and_one_with_all_of_them() -> None:
    bias = torch.tensor([-1e4, 1e4, 0.0, 0.0, -1e4])
    compare(37, 64, 96, 5, 2, True, torch.float32, bias)


def test_more_experts_than_visits_and_every_expert() -> None:
    compare(1, 32, 16, 30, 1, False, torch.float32)
    compare(5, 32, 16, 4, 4, True, torch.float32)


def test_no_tokens() -> None:
    x = normal(0, 16)
    assert OURS.experts(x, Dense(normal(4, 16)), normal(4, 8, 16), normal(4, 16, 4), 2, True).shape == (0, 16)
