"""Whether Triton's interpreter rounds as torch and the hardware do, once it is mended."""

from __future__ import annotations

import interpreter  # noqa: F401 (first)
import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def cast_kernel(x_ptr, out_ptr, back_ptr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    stored = tl.load(x_ptr + place).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + place, stored)
    tl.store(back_ptr + place, stored.to(tl.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_casts_round_to_nearest_even(dtype) -> None:
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * torch.logspace(-4, 2, 4096)
    x[:3] = torch.tensor([31.9, 0.0, 1e5 if dtype != torch.float16 else 6e4])
    out, back = torch.empty(4096, dtype=dtype), torch.empty(4096)
    cast_kernel[(1,)](x, out, back, BLOCK=4096)
    most = torch.finfo(dtype).max
    want = x.clamp(-most, most).to(dtype)
    assert torch.equal(back, want.float())
    assert torch.equal(out.float(), want.float())
