"""The mixture of experts against plain torch."""

from __future__ import annotations

from dataclasses import replace

import interpreter  # noqa: F401 (first)
import pytest
import torch
from compare import DTYPES, normal

from backends.ops.base import Dense
from backends.ops.reference import ReferenceOperators
from backends.quantization.base import QuantizedBank
from backends.triton.operators import TritonOperators
from backends.weights.dummy_packed import random_weight
from sim.quantization import load_weight_mode

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


BANKS = ("int8-w8a16", "gptq-int4", "gptq-int3", "awq-int4", "squeezellm-4bit", "mxfp4", "int8-w8a8", "fp8", "fp8-dynamic",
         "fp8-channel", "fp8-block", "nvfp4")  # fmt: skip


def bank(mode: str, experts: int, outputs: int, inputs: int, seed: int) -> QuantizedBank:
    generator = torch.Generator().manual_seed(seed)
    return QuantizedBank(random_weight(load_weight_mode(mode), experts * outputs, inputs, generator), experts, mode)


@pytest.mark.parametrize("mode", BANKS)
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 8, 2), (50, 3, 2)])
def test_packed_experts(mode, tokens, experts, top_k) -> None:
    """Against each expert's expanded weight, one by one: few tokens, and tiles of many; none where an expert has no token."""
    width, inner = (128, 128) if mode == "fp8-block" else (72, 40)
    wide, narrow = bank(mode, experts, 2 * inner, width, 1), bank(mode, experts, width, inner, 2)
    x = normal(tokens, width)
    router = Dense(normal(experts, width, seed=3) / 4)
    for dtype, most in ((torch.float32, 2e-5), (torch.bfloat16, 2e-2)):
        mine, exact = Dense(router.weight.to(dtype)), Dense(router.weight.to(dtype).float())
        got = OURS.experts(x.to(dtype), mine, wide, narrow, top_k, True)
        want = PLAIN.experts(x.to(dtype).float(), exact, wide, narrow, top_k, True)
        assert got.shape == x.shape and got.dtype == dtype
        error = (got.double() - want.double()).abs().mean() / want.double().abs().mean()
        assert error < most, error


def test_packed_experts_with_columns_in_another_order_and_zeros_of_their_own() -> None:
    wide, narrow = bank("awq-int4", 4, 96, 64, 1), bank("gptq-int4", 4, 64, 48, 2)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(5)).to(torch.int32)
    wide = replace(wide, weight=replace(wide.weight, order=order))
    x, router = normal(20, 64), Dense(normal(4, 64, seed=3))
    got, want = (ops.experts(x, router, wide, narrow, 2, False) for ops in (OURS, PLAIN))
    assert float((got - want).abs().mean() / want.abs().mean()) < 2e-5


def test_no_tokens() -> None:
    banks = bank("gptq-int4", 4, 8, 16, 1), bank("gptq-int4", 4, 16, 4, 2)
    assert OURS.experts(normal(0, 16), Dense(normal(4, 16)), *banks, 2, True).shape == (0, 16)
    x = normal(0, 16)
    assert OURS.experts(x, Dense(normal(4, 16)), normal(4, 8, 16), normal(4, 16, 4), 2, True).shape == (0, 16)
