"""Inputs of layers quantized before a product, in plain torch."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from backends.quantization.base import Activation

INT8_MOST = 127.0
E4M3_MOST = 448.0
E2M1_MOST = 6.0


def quantise_activation(x: Tensor, how: Activation) -> tuple[Tensor, Tensor]:
    """Codes and scales of `x` [T, K], such that `codes × scales ≈ x`.

    Returns:
        Codes [T, K] (int8, float8_e4m3fn, or for fp4 float32 values of E2M1) and float32 scales: [1, 1] per tensor, [T, 1] per
        token, [T, ceil(K / group)] per group.
    """
    if how.form == "fp4":
        return _fp4(x, how)
    most = INT8_MOST if how.form == "int8" else E4M3_MOST
    wide = x.float()
    if how.scale is not None:
        scales = how.scale.float().reshape(1, 1)
    else:
        scales = _largest(wide, how).clamp(min=torch.finfo(torch.float32).tiny * 512) / most
    spread = scales if scales.shape[-1] == 1 else scales.repeat_interleave(how.group, -1)[:, : x.shape[-1]]
    if how.form == "int8":
        return (wide / spread).round().clamp(-128, INT8_MOST).to(torch.int8), scales
    return (wide / spread).clamp(-E4M3_MOST, E4M3_MOST).to(torch.float8_e4m3fn), scales


def _largest(x: Tensor, how: Activation) -> Tensor:
    """Largest magnitudes: [1, 1], [T, 1] or [T, groups]."""
    size = x.abs()
    if how.group < 0:
        most = size.amax().reshape(1, 1) if size.numel() else size.new_zeros(1, 1)
    elif how.group == 0:
        most = size.amax(-1, keepdim=True)
    else:
        most = _grouped(size, how.group).amax(-1)
    return most.clamp(max=how.bound) if how.bound else most


def _grouped(x: Tensor, group: int) -> Tensor:
    """[T, K] → [T, groups, group], filled up with zeros."""
    ragged = -x.shape[-1] % group
    return torch.nn.functional.pad(x, (0, ragged)).unflatten(-1, (-1, group))


def _fp4(x: Tensor, how: Activation) -> tuple[Tensor, Tensor]:
    """E2M1 in groups with E4M3 scales under one float32 scale (NVFP4); what a missing second level would be is 1."""
    outer = how.scale.float().reshape(1, 1) if how.scale is not None else torch.ones(1, 1, device=x.device)
    groups = _grouped(x.float(), how.group)
    scales = (groups.abs().amax(-1) / E2M1_MOST / outer).clamp(max=E4M3_MOST).to(torch.float8_e4m3fn).float() * outer
    divisor = torch.where(scales > 0, scales, torch.ones_like(scales))
    codes = round_to_e2m1(groups / divisor[..., None]).flatten(-2)[:, : x.shape[-1]]
    return codes, scales


def round_to_e2m1(x: Tensor) -> Tensor:
    """The nearest of ±{0, 0.5, 1, 1.5, 2, 3, 4, 6}; halfway to the one whose last bit is 0; larger ones become 6."""
    return torch.copysign(_magnitudes(x.device)[e2m1_magnitude(x)], x)


def e2m1_magnitude(x: Tensor) -> Tensor:
    """Codes 0 … 7 of the magnitudes of `x` as E2M1, int64."""
    size = x.abs().float()
    # halfway points, and whether they belong to the upper neighbour (whose code is even)
    code = torch.zeros(size.shape, dtype=torch.int64, device=x.device)
    for number, edge in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0), 1):
        code += (size >= edge) if number % 2 == 0 else (size > edge)
    return code


@cache
def _magnitudes(device: torch.device) -> Tensor:
    return torch.tensor((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), device=device)
