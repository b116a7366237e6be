"""Rounding to the nearest value that a format has: what every method starts from, and is measured against."""

from __future__ import annotations

import torch
from torch import Tensor

from backends.quantization.activations import E2M1_MOST, E4M3_MOST, INT8_MOST, e2m1_magnitude
from backends.quantization.base import QuantizedWeight
from backends.quantization.formats.gptq import grouped
from backends.quantization.unpack import pack


def int_grid(weight: Tensor, bits: int, group: int, symmetric: bool = False) -> tuple[Tensor, Tensor]:
    """Scales [N, groups], rounded to float16, and zeros [N, groups] float32 of a weight [N, K], from its extremes in each group.

    Args:
        group: columns a scale; −1: all. The last group may be smaller.
        symmetric: zeros lie in the middle of the range.
    """
    width, most = weight.shape[1], (1 << bits) - 1
    size = group if group > 0 else width
    blocks = torch.nn.functional.pad(weight.float(), (0, -width % size)).unflatten(1, (-1, size))  # 0 is in every range
    low, high = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    scales = ((high - low) / most).clamp(min=2.0**-24).half()
    scales = torch.where(scales > 0, scales, torch.finfo(torch.float16).tiny).float()
    zeros = torch.full_like(scales, float(1 << (bits - 1))) if symmetric else (-low / scales).round().clamp(0, most)
    return scales, zeros


def int_codes(weight: Tensor, scales: Tensor, zeros: Tensor, bits: int, group: int) -> Tensor:
    """The nearest codes [N, K] uint8 on a grid."""
    size = group if group > 0 else weight.shape[1]
    scales, zeros = (each.repeat_interleave(size, 1)[:, : weight.shape[1]] for each in (scales, zeros))
    return (weight.float() / scales + zeros).round().clamp(0, (1 << bits) - 1).to(torch.uint8)


def int_values(codes: Tensor, scales: Tensor, zeros: Tensor, group: int) -> Tensor:
    """What codes on a grid stand for, [N, K] float32."""
    size = group if group > 0 else codes.shape[1]
    scales, zeros = (each.repeat_interleave(size, 1)[:, : codes.shape[1]] for each in (scales, zeros))
    return (codes.float() - zeros) * scales


def nearest_ints(weight: Tensor, bits: int, group: int, symmetric: bool = False) -> QuantizedWeight:
    """Round-to-nearest in groups, as the engine keeps it."""
    scales, zeros = int_grid(weight, bits, group, symmetric)
    codes = int_codes(weight, scales, zeros, bits, group)
    return grouped(pack(codes, bits), bits, *weight.shape, scales.half(), zeros.to(torch.int16), group)


def int8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [N, K] and scales [N, 1] float32, symmetric, by the largest magnitude of every row."""
    scales = (weight.float().abs().amax(1, keepdim=True) / INT8_MOST).clamp(min=torch.finfo(torch.float32).tiny)
    return (weight.float() / scales).round().clamp(-INT8_MOST, INT8_MOST).to(torch.int8), scales


def fp8_codes(weight: Tensor, shape: str) -> tuple[Tensor, Tensor]:
    """E4M3 [N, K] and float32 scales: [1] for `tensor`, [N, 1] for `channel`, [ceil(N / 128), ceil(K / 128)] for `block`."""
    size = weight.float().abs()
    if shape == "block":
        rows, columns = weight.shape
        padded = torch.nn.functional.pad(size, (0, -columns % 128, 0, -rows % 128))
        most = padded.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).amax((1, 3))
        scales = (most / E4M3_MOST).clamp(min=torch.finfo(torch.float32).tiny)
        wide = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    else:
        most = size.amax() if shape == "tensor" else size.amax(1, keepdim=True)
        scales = (most / E4M3_MOST).clamp(min=torch.finfo(torch.float32).tiny)
        wide = scales
        scales = scales.reshape(1) if shape == "tensor" else scales
    return (weight.float() / wide).clamp(-E4M3_MOST, E4M3_MOST).to(torch.float8_e4m3fn), scales


def nvfp4_divisor(most: Tensor | float) -> Tensor:
    """The global scale, as compressed-tensors has it (it divides), of numbers up to `most`: local scales then reach 448."""
    return (E4M3_MOST * E2M1_MOST / torch.as_tensor(most, dtype=torch.float32).clamp(min=1e-12)).reshape(1)


def nvfp4_codes(weight: Tensor, divisor: Tensor, group: int = 16) -> tuple[Tensor, Tensor]:
    """E2M1 codes [N, K] uint8 and E4M3 scales [N, ceil(K / 16)] under a global divisor."""
    width = weight.shape[1]
    blocks = torch.nn.functional.pad(weight.float(), (0, -width % group)).unflatten(1, (-1, group))
    scales = (blocks.abs().amax(-1) / E2M1_MOST * divisor).clamp(max=E4M3_MOST).to(torch.float8_e4m3fn)
    real = scales.float() / divisor
    codes = _e2m1(blocks / torch.where(real > 0, real, torch.ones_like(real))[..., None])
    return codes.flatten(1)[:, :width], scales


def mxfp4_codes(weight: Tensor, group: int = 32) -> tuple[Tensor, Tensor]:
    """E2M1 codes [N, K] uint8 and exponents [N, ceil(K / 32)] uint8 (+ 127), by the floor of the largest (OCP MX 1.0, 6.3)."""
    width = weight.shape[1]
    blocks = torch.nn.functional.pad(weight.float(), (0, -width % group)).unflatten(1, (-1, group))
    most = blocks.abs().amax(-1).clamp(min=2.0**-120)
    exponent = torch.frexp(most).exponent - 1 - 2  # of the largest, less that of E2M1's largest
    codes = _e2m1(torch.ldexp(blocks, -exponent[..., None]))
    return codes.flatten(1)[:, :width], (exponent + 127).clamp(0, 254).to(torch.uint8)


def _e2m1(x: Tensor) -> Tensor:
    return (e2m1_magnitude(x) | (torch.signbit(x).long() << 3)).to(torch.uint8)
