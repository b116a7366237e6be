"""Inputs quantized before a product: int8 or fp8, with a scale for every token, every group of its columns, or a given one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backends.quantization.activations import E4M3_MOST, INT8_MOST, quantise_activation
from backends.quantization.base import Activation
from backends.triton.elementwise import rounded
from backends.triton.launch import Launcher, rows_last

_LEAST = torch.finfo(torch.float32).tiny * 512


@triton.jit
def codes_of(x, scale, MOST: tl.constexpr, TARGET: tl.constexpr):
    """`x` [R, C] over `scale` [R], rounded to the type of codes."""
    x = tl.div_rn(x, tl.zeros(x.shape, tl.float32) + scale[:, None])
    if MOST == 127.0:
        x = rounded(tl.minimum(tl.maximum(x, -128.0), 127.0))
    else:
        x = tl.minimum(tl.maximum(x, -MOST), MOST)
    return x.to(TARGET)


@triton.jit
def quantise_kernel(
    x_ptr, codes_ptr, scales_ptr, rows, per_row, width, x_row, bound,
    SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
    BOUND: tl.constexpr, STATIC: tl.constexpr,
):  # fmt: skip
    """Rows of SIZE columns, `per_row` of them in a token of `width` columns; codes and scales in the same order.

    `STATIC`: one scale for all, which is there already. `BOUND`: larger magnitudes count as `bound` when scales are found.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    token, first = (row // per_row).to(tl.int64), row % per_row * SIZE
    most = tl.zeros([ROWS], tl.float32)
    if STATIC:
        scale = tl.zeros([ROWS], tl.float32) + tl.load(scales_ptr)
    else:
        for start in range(0, SIZE, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = live[:, None] & (column < SIZE)[None, :] & (first[:, None] + column[None, :] < width)
            place = x_ptr + token[:, None] * x_row + first[:, None] + column[None, :]
            most = tl.maximum(most, tl.max(tl.abs(tl.load(place, mask=inside, other=0.0).to(tl.float32)), axis=1))
        if BOUND:
            most = tl.minimum(most, bound)
        scale = tl.div_rn(tl.maximum(most, LEAST), tl.full([ROWS], MOST, tl.float32))
        tl.store(scales_ptr + row, scale, mask=live)
    for start in range(0, SIZE, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = live[:, None] & (column < SIZE)[None, :] & (first[:, None] + column[None, :] < width)
        x = tl.load(
            x_ptr + token[:, None] * x_row + first[:, None] + column[None, :], mask=inside, other=0.0
        ).to(tl.float32)  # fmt: skip
        target = codes_ptr + token[:, None] * width + first[:, None] + column[None, :]
        tl.store(target, codes_of(x, scale, MOST, codes_ptr.dtype.element_ty), mask=inside)


@triton.jit
def nearest_e4m3(x):
    """The nearest E4M3 value, ties to even, of float32 from 0 to 448; by bits, since not every compiler knows the type."""
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    return tl.where(x < 0.015625, rounded(x * 512.0) * 0.001953125, normal)


@triton.jit
def nearest_e2m1(x):
    """The nearest of ±{0, 0.5, 1, 1.5, 2, 3, 4, 6}; halfway to the one whose last bit is 0; larger ones become 6."""
    size = tl.abs(x)
    below = tl.where(size > 0.25, 0.5, 0.0) + tl.where(size >= 0.75, 0.5, 0.0) + tl.where(size > 1.25, 0.5, 0.0)
    value = below + tl.where(size >= 1.75, 0.5, 0.0) + tl.where(size > 2.5, 1.0, 0.0) + tl.where(size >= 3.5, 1.0, 0.0)
    value = value + tl.where(size > 5.0, 2.0, 0.0)
    return tl.where(x < 0, -value, value)


@triton.jit
def emulate_fp4_kernel(
    x_ptr, outer_ptr, out_ptr, rows, per_row, width, x_row, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    OUTER: tl.constexpr,
):  # fmt: skip
    """Groups of SIZE columns as 4-bit floats times their E4M3 scale; without the scale that is above these."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    token, first = (row // per_row).to(tl.int64), row % per_row * SIZE
    inside = (row < rows)[:, None] & (column < SIZE)[None, :] & (first[:, None] + column[None, :] < width)
    place = token[:, None] * x_row + first[:, None] + column[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    outer = tl.zeros([ROWS], tl.float32) + (tl.load(outer_ptr) if OUTER else 1.0)
    most = tl.div_rn(tl.max(tl.abs(x), axis=1), tl.full([ROWS], 6.0, tl.float32))
    step = nearest_e4m3(tl.minimum(tl.div_rn(most, outer), 448.0))
    scale = step * outer
    divisor = tl.where(scale > 0.0, scale, 1.0)
    value = nearest_e2m1(tl.div_rn(x, tl.zeros(x.shape, tl.float32) + divisor[:, None])) * step[:, None]
    target = out_ptr + token[:, None] * width + first[:, None] + column[None, :]
    tl.store(target, value.to(out_ptr.dtype.element_ty), mask=inside)


def emulated_fp4(launch: Launcher, x: Tensor, how: Activation) -> tuple[Tensor, Tensor | None]:
    """`x` [T, K] as 4-bit floats times their scales, which 16 bits hold exactly, and what each token's product is to be
    multiplied with: [T] float32, or None."""
    x = rows_last(x)
    tokens, width = x.shape
    per_row = triton.cdiv(width, how.group)
    outer = None if how.scale is None else how.scale.float().reshape(1)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(how.group)
    rows = max(1, 2048 // block)
    launch(
        emulate_fp4_kernel,
        (triton.cdiv(tokens * per_row, rows),),
        (x, x if outer is None else outer, out, tokens * per_row, per_row, width, x.stride(0)),
        {"SIZE": how.group, "ROWS": rows, "BLOCK": block, "OUTER": outer is not None},
    )
    return out, None if outer is None else outer.expand(tokens).contiguous()


def quantised_inputs(launch: Launcher, x: Tensor, how: Activation) -> tuple[Tensor, Tensor]:
    """As `backends.quantization.activations.quantise_activation`.

    One scale that is found for the whole tensor is left to plain torch. For 4-bit floats see `emulated_fp4`.
    """
    if how.group < 0 and how.scale is None:
        return quantise_activation(x, how)
    x = rows_last(x)
    tokens, width = x.shape
    size = how.group if how.group > 0 else max(width, 1)
    per_row = triton.cdiv(width, size)
    integral = how.form == "int8"
    codes = torch.empty(x.shape, dtype=torch.int8 if integral else torch.float8_e4m3fn, device=x.device)
    static = how.scale is not None
    scales = (
        how.scale.float().reshape(1, 1)
        if static
        else torch.empty(tokens, per_row, dtype=torch.float32, device=x.device)
    )
    block = min(triton.next_power_of_2(size), 4096)
    rows = max(1, 2048 // block)
    launch(
        quantise_kernel,
        (triton.cdiv(tokens * per_row, rows),),
        (x, codes, scales, tokens * per_row, per_row, width, x.stride(0), float(how.bound)),
        {
            "SIZE": size, "ROWS": rows, "BLOCK": block, "MOST": INT8_MOST if integral else E4M3_MOST, "LEAST": _LEAST,
            "BOUND": how.bound > 0, "STATIC": static,
        },
    )  # fmt: skip
    return codes, scales


def plain_inputs(launch: Launcher, x: Tensor, how: Activation) -> tuple[Tensor, Tensor | None]:
    """Quantized inputs as numbers of the type of `x`, and what each token's product is to be multiplied with: [T] or None.

    Codes are exact in 16 bits. Where scales change along a row they are multiplied in, and rounded.
    """
    if how.form == "fp4":
        return emulated_fp4(launch, x, how)
    codes, scales = quantised_inputs(launch, x, how)
    return plain_codes(codes, scales, how, x.dtype)


def plain_codes(codes: Tensor, scales: Tensor, how: Activation, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The same of inputs that are quantized already, in int8 or fp8."""
    if scales.shape[1] == 1:
        return codes.to(dtype), scales.expand(len(codes), 1).contiguous()[:, 0]
    wide = scales.repeat_interleave(how.group, -1)[:, : codes.shape[1]]
    return (codes.float() * wide).to(dtype), None
