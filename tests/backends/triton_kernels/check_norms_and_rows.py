"""Norms, SiLU and picked rows against plain torch."""

from __future__ import annotations

import interpreter  # noqa: F401 (first)
import pytest
import torch
from compare import DTYPES, assert_within_ulps, normal

from backends.ops.reference import ReferenceOperators
from backends.triton.operators import TritonOperators

OURS, PLAIN = TritonOperators("cpu"), ReferenceOperators()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 72), (17, 576), (2, 4100), (5, 3, 80)])
def test_rms_norm(shape, dtype) -> None:
    x, weight = normal(*shape, dtype=dtype) * 3, normal(shape[-1], seed=1, dtype=dtype)
    got, want = OURS.rms_norm(x, weight, 1e-5), PLAIN.rms_norm(x, weight, 1e-5)
    assert_within_ulps(got, want, most=8 if dtype == torch.float32 else 2, mean=2.0 if dtype == torch.float32 else 0.01)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_of_heads_within_a_wider_row(dtype) -> None:
    qkv = normal(7, 5 * 96, dtype=dtype).unflatten(-1, (5, 96))
    q, k, _ = qkv.split((3, 1, 1), dim=1)
    weight = normal(96, seed=1, dtype=dtype)
    for heads in (q, k):
        assert_within_ulps(OURS.rms_norm(heads, weight, 1e-6), PLAIN.rms_norm(heads, weight, 1e-6), most=8, mean=2.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 64), (9, 200), (3, 5000)])
def test_add_rms_norm(shape, dtype) -> None:
    x, residual = normal(*shape, dtype=dtype), normal(*shape, seed=1, dtype=dtype) * 20
    weight = normal(shape[-1], seed=2, dtype=dtype)
    kept = residual.clone()
    (got, total), (want, sum_) = (ops.add_rms_norm(x, residual, weight, 1e-5) for ops in (OURS, PLAIN))
    assert torch.equal(total, sum_), "the sum is not rounded as torch rounds it"
    assert torch.equal(residual, kept)
    assert_within_ulps(got, want, most=8 if dtype == torch.float32 else 2, mean=2.0 if dtype == torch.float32 else 0.01)


def test_squares_of_large_half_precision_values_do_not_overflow() -> None:
    x, weight = torch.full((2, 128), 3e4, dtype=torch.float16), torch.ones(128, dtype=torch.float16)
    torch.testing.assert_close(OURS.rms_norm(x, weight, 1e-6), torch.ones_like(x), rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (7, 320), (2, 9000), (0, 64)])
def test_silu_mul(shape, dtype) -> None:
    x = normal(*shape, dtype=dtype) * 4
    got, want = OURS.silu_mul(x), PLAIN.silu_mul(x)
    assert got.shape == want.shape
    if shape[0]:
        assert_within_ulps(
            got, want, most=8 if dtype == torch.float32 else 1, mean=2.0 if dtype == torch.float32 else 0.01
        )


def test_silu_of_large_negative_gates_is_zero_not_nan() -> None:
    x = torch.tensor([[-200.0, 200.0, 3.0, 3.0]])
    assert torch.equal(OURS.silu_mul(x), torch.tensor([[0.0, 600.0]]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 80, 3000])
def test_rows_are_copied_bit_for_bit(width, dtype) -> None:
    table = normal(11, width, dtype=dtype)
    table[4, 0] = float("nan")
    ids = torch.tensor([10, 0, 4, 4, 7])
    for pick in (OURS.embed, OURS.gather):
        assert torch.equal(pick(table, ids).view(torch.uint8), table[ids].contiguous().view(torch.uint8))
    assert OURS.gather(table, ids[:0]).shape == (0, width)
    wide = normal(5, 2 * width, seed=3, dtype=dtype)
    assert torch.equal(OURS.gather(wide[:, :width], ids[1:2]), wide[:1, :width])
