"""Products of many tokens: the weight is expanded once, a part of its rows at a time, and multiplied as an unquantized one.

A kernel that expands on the way does so anew for every tile of tokens, next to products that then wait for it; this writes each
weight once and reads it once more. In time per weight, with b bits a code, a card that moves B bytes and does R operations a
second, and a kernel that reaches a share f of what a plain product reaches, it pays from

    tokens > (b / 8 + 4) × R / B / (2 (1 / f − 1))

on: about 1,000 at 4 bits with R / B = 300 (H100, 16 bit) and f = 0.6. f was not measured: `tiles.whole_from` rests on that guess.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backends.quantization.base import QuantizedWeight
from backends.triton.launch import Launcher, rows_last
from backends.triton.quantized.expand import group_of, outer_of, scale_bits
from backends.triton.quantized.unpack import grouped_tile, outer_scaled, row_table, row_zeros, value_tile, widened_scale
from backends.triton.tiles import whole_tile

SCRATCH = 64 << 20
"""Bytes of expanded weights that are there at once."""


@triton.jit
def whole_kernel(
    codes_ptr, scales_ptr, zeros_ptr, table_ptr, outer_ptr, out_ptr, first, outputs, inputs, groups, scale_rows, zero, code_row,
    FORM: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, ZEROS: tl.constexpr, OUTER: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of the rows from `first` on, expanded to out [outputs, inputs]."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    start = tl.program_id(1) * BLOCK_K
    live, row = n < outputs, (first + n).to(tl.int64)
    scale_row = row // scale_rows
    table = row_table(table_ptr, row, live, FORM, BITS)
    row_zero = row_zeros(zeros_ptr, row, live, zero, BLOCK_N, GROUP, ZEROS)
    value = value_tile(
        codes_ptr, zeros_ptr, table, row_zero, row, live, start, inputs, groups, code_row, FORM, BITS, GROUP, ZEROS, BLOCK_N,
        BLOCK_K,
    )  # fmt: skip
    if FORM != "table":
        outer = tl.full([BLOCK_N], 1.0, tl.float32)
        if OUTER != 0:
            outer = tl.load(outer_ptr + row, mask=live, other=1.0).to(tl.float32)
        if GROUP > 0:
            scale = grouped_tile(scales_ptr, scale_row, live, start, inputs, groups, GROUP, BLOCK_N, BLOCK_K, KIND)
        else:
            scale = widened_scale(tl.load(scales_ptr + scale_row * groups, mask=live, other=0), KIND)[:, None]
        value = value * outer_scaled(scale, outer[:, None], OUTER)
    k = start + tl.arange(0, BLOCK_K)
    target = out_ptr + n.to(tl.int64)[:, None] * inputs + k[None, :]
    tl.store(target, value.to(out_ptr.dtype.element_ty), mask=live[:, None] & (k < inputs)[None, :])


def expand_rows(launch: Launcher, weight: QuantizedWeight, first: int, out: Tensor) -> None:
    """Fill `out` [rows, inputs] with the rows from `first` on, columns in packed order, as `dequantise` would."""
    tile = whole_tile(launch.target, weight.bits, weight.zeros is not None or 0 < group_of(weight) < 32)
    (scales, kind), codes = scale_bits(weight), weight.codes
    launch(
        whole_kernel,
        (triton.cdiv(len(out), tile.rows), triton.cdiv(weight.inputs, tile.keys)),
        (
            codes, scales, *(codes if each is None else each for each in (weight.zeros, weight.table, weight.outer)), out,
            first, len(out), weight.inputs, scales.shape[1], weight.rows, float(weight.zero), codes.stride(0),
        ),
        {
            "FORM": weight.form, "BITS": weight.bits, "GROUP": group_of(weight), "KIND": kind, "ZEROS": weight.zeros is not None,
            "OUTER": outer_of(weight), "BLOCK_N": tile.rows, "BLOCK_K": tile.keys,
        },
        warps=tile.warps, stages=tile.stages,
    )  # fmt: skip


def whole_product(launch: Launcher, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, out: Tensor) -> None:
    """As `expanded_product`, for a weight without a sparse part whose inputs are not quantized."""
    x = rows_last(x)
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    most = max(1, SCRATCH // (weight.inputs * x.element_size()))
    step = min(weight.outputs, most // 128 * 128 or most)
    scratch = torch.empty(step, weight.inputs, dtype=x.dtype, device=x.device)
    for first in range(0, weight.outputs, step):
        rows = scratch[: min(step, weight.outputs - first)]
        expand_rows(launch, weight, first, rows)
        last = first + len(rows)
        if bias is None:
            torch.mm(x, rows.t(), out=out[:, first:last])
        else:
            torch.addmm(bias[first:last], x, rows.t(), out=out[:, first:last])
