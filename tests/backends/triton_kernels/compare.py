"""How close is close: bounds by dtype on the largest and on the mean error."""

from __future__ import annotations

import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_ATTENTION = {
    torch.float32: (3e-6, 1e-6, 2e-7), torch.float16: (7e-4, 2**-10, 1e-4), torch.bfloat16: (5e-3, 2**-8, 6e-4),
}  # fmt: skip
"""Largest error as (absolute, relative), and mean absolute error, of averages of standard normal values. vLLM's tests ask (1e-3,
1e-5) of fp16 and (1.5e-2, 1e-2) of bf16, and bound no mean."""


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ulps(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Distance in units of the last place of `want`, by its dtype."""
    got, wide = got.double(), want.double()
    spacing = torch.finfo(want.dtype).eps * 2.0 ** torch.floor(torch.log2(wide.abs().clamp(min=1e-30)))
    return (got - wide).abs() / spacing


def assert_within_ulps(got: torch.Tensor, want: torch.Tensor, most: float, mean: float) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    distance = ulps(got, want)
    assert distance.max() <= most and distance.mean() <= mean, (float(distance.max()), float(distance.mean()))


def assert_attention_close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype | None = None) -> None:
    absolute, relative, mean = _ATTENTION[dtype or got.dtype]
    assert got.shape == want.shape
    error = (got.double() - want.double()).abs()
    over = (error - absolute - relative * want.double().abs()).max()
    assert over <= 0 and error.mean() <= mean, (float(error.max()), float(over), float(error.mean()))
