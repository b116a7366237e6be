"""Products in which the weight alone is packed: its tiles are expanded to the type of the inputs on the way to the tensor cores.

Few tokens leave most processors without work, so the columns are split among programs, whose sums are added in a fixed order
after. With many tokens a tile has many rows, and what is expanded is used for all of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backends.quantization.base import QuantizedWeight
from backends.triton.attend import product
from backends.triton.launch import Launcher, rows_last
from backends.triton.quantized.outliers import add_outliers
from backends.triton.quantized.parts import add_parts
from backends.triton.quantized.unpack import grouped_tile, outer_scaled, row_table, row_zeros, value_tile, widened_scale
from backends.triton.tiles import packed_splits, packed_tile

_BITS_OF = {torch.float8_e4m3fn: ("e4m3", torch.uint8), torch.float8_e8m0fnu: ("e8m0", torch.uint8)}


@triton.jit
def expanded_sum(
    x_place, there, codes_ptr, scales_ptr, zeros_ptr, table_ptr, outer_ptr, row, live, begin, end, inputs, groups, scale_rows,
    zero, code_row,
    FORM: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, ZEROS: tl.constexpr,
    OUTER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    """The product [M, N] in float32 of a tile of inputs with a tile of a weight's rows, over the columns from begin to end.

    `GROUP` 0: one scale a row, which is multiplied with the sum. `OUTER`: 1 multiplies scales by outer[row], −1 divides them.

    Args:
        x_place: [M, K], where the inputs' first columns lie. there: [M], which rows of them there are.
        row: [N] int64. live: [N], which of them there are.
    """
    scale_row, k = row // scale_rows, tl.arange(0, BLOCK_K)
    outer = tl.full([BLOCK_N], 1.0, tl.float32)
    if OUTER != 0:
        outer = tl.load(outer_ptr + row, mask=live, other=1.0).to(tl.float32)
    table = row_table(table_ptr, row, live, FORM, BITS)
    row_zero = row_zeros(zeros_ptr, row, live, zero, BLOCK_N, GROUP, ZEROS)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(begin, end, BLOCK_K):
        x = tl.load(x_place + start, mask=there[:, None] & (k < inputs - start)[None, :], other=0.0)
        value = value_tile(
            codes_ptr, zeros_ptr, table, row_zero, row, live, start, inputs, groups, code_row, FORM, BITS, GROUP, ZEROS, BLOCK_N,
            BLOCK_K,
        )  # fmt: skip
        if GROUP > 0:
            scale = grouped_tile(
                scales_ptr, scale_row, live, start, inputs, groups, GROUP, BLOCK_N, BLOCK_K, KIND
            )  # fmt: skip
            scale = outer_scaled(scale, outer[:, None], OUTER)
        if (
            GROUP > 0 and GROUP % BLOCK_K == 0 and BLOCK_M <= 16
        ):  # of few tokens it is cheaper to scale sums than weights
            part = product(x, tl.trans(value.to(x.dtype)), tl.zeros([BLOCK_M, BLOCK_N], tl.float32), UP)
            acc += part * tl.trans(scale)
        elif GROUP > 0:
            acc = product(x, tl.trans((value * scale).to(x.dtype)), acc, UP)
        else:
            acc = product(x, tl.trans(value.to(x.dtype)), acc, UP)
    if GROUP == 0 and FORM != "table":
        scale = widened_scale(tl.load(scales_ptr + scale_row * groups, mask=live, other=0), KIND)
        acc = acc * outer_scaled(scale, outer, OUTER)[None, :]
    return acc


@triton.jit
def expand_kernel(
    x_ptr, codes_ptr, scales_ptr, zeros_ptr, table_ptr, outer_ptr, factor_ptr, bias_ptr, out_ptr,
    tokens, outputs, inputs, groups, scale_rows, zero, share, x_row, code_row, out_row, out_part,
    FORM: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, ZEROS: tl.constexpr,
    OUTER: tl.constexpr, FACTOR: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    """A tile of outputs of a tile of tokens, over `share` columns of the weight; see `expanded_sum`.

    `FACTOR`: the sum times factor [tokens]. Where there are several splits, their sums go in float32
    to out [splits, tokens, outputs], without bias.
    """
    block, across, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n, m = block * BLOCK_N + tl.arange(0, BLOCK_N), across * BLOCK_M + tl.arange(0, BLOCK_M)
    live = n < outputs
    x_place = x_ptr + m.to(tl.int64)[:, None] * x_row + tl.arange(0, BLOCK_K)[None, :]
    first = split * share
    acc = expanded_sum(
        x_place, m < tokens, codes_ptr, scales_ptr, zeros_ptr, table_ptr, outer_ptr, n.to(tl.int64), live, first,
        tl.minimum(first + share, inputs), inputs, groups, scale_rows, zero, code_row, FORM, BITS, GROUP, KIND, ZEROS, OUTER,
        BLOCK_M, BLOCK_N, BLOCK_K, UP,
    )  # fmt: skip
    if FACTOR:
        acc = acc * tl.load(factor_ptr + m, mask=m < tokens, other=0.0)[:, None]
    inside = (m < tokens)[:, None] & live[None, :]
    if BIAS:
        acc = acc + tl.load(bias_ptr + n, mask=live, other=0.0).to(tl.float32)[None, :]
    target = out_ptr + split.to(tl.int64) * out_part + m.to(tl.int64)[:, None] * out_row + n[None, :]
    tl.store(target, acc.to(out_ptr.dtype.element_ty), mask=inside)


def scale_bits(weight: QuantizedWeight) -> tuple[Tensor, str]:
    """Scales as kernels read them, and what they are; codes in their place where there are none."""
    if weight.scales is None:
        return weight.codes, "float"
    kind, bits = _BITS_OF.get(weight.scales.dtype, ("float", weight.scales.dtype))
    return weight.scales.view(bits), kind


def outer_of(weight: QuantizedWeight) -> int:
    """1: second-level scales multiply; −1: they divide; 0: there are none."""
    return 0 if weight.outer is None else -1 if weight.outer_divides else 1


def group_of(weight: QuantizedWeight) -> int:
    """Columns that share a scale; 0: all."""
    return 0 if weight.scales is None or weight.group >= weight.inputs else weight.group


def expanded_product(
    launch: Launcher, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, out: Tensor, factor: Tensor | None = None
) -> None:
    """Fill `out` [T, outputs] (rows may lie apart) with `x` [T, inputs] times the weight, times `factor` [T], plus `bias`."""
    x = plain = rows_last(x)
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    tokens = len(x)
    group = group_of(weight)
    heavy = weight.zeros is not None or 0 < group < 32
    tile = packed_tile(launch.target, tokens, x.dtype, weight.bits, heavy)
    blocks = triton.cdiv(weight.outputs, tile.keys)
    splits, share = packed_splits(launch.target, blocks * triton.cdiv(tokens, tile.rows), weight.inputs, tile.depth)
    sums = splits + (weight.sparse is not None)
    direct = sums == 1
    target = out if direct else torch.empty(sums, *out.shape, dtype=torch.float32, device=x.device)
    if weight.sparse is not None:
        add_outliers(launch, plain, weight.sparse, factor, target[splits])
    scales, kind = scale_bits(weight)
    codes = weight.codes
    launch(
        expand_kernel,
        (blocks, triton.cdiv(tokens, tile.rows), splits),
        (
            x, codes, scales, *(codes if each is None else each for each in (weight.zeros, weight.table, weight.outer)),
            x if factor is None else factor, x if bias is None else bias, target,
            tokens, weight.outputs, weight.inputs, scales.shape[1], weight.rows, float(weight.zero), share,
            x.stride(0), codes.stride(0), target.stride(-2), 0 if direct else target.stride(0),
        ),
        {
            "FORM": weight.form, "BITS": weight.bits, "GROUP": group, "KIND": kind, "ZEROS": weight.zeros is not None,
            "OUTER": outer_of(weight), "FACTOR": factor is not None, "BIAS": direct and bias is not None,
            "BLOCK_M": tile.rows, "BLOCK_N": tile.keys, "BLOCK_K": tile.depth, "UP": launch.target.interpreted,
        },
        warps=tile.warps, stages=tile.stages,
    )  # fmt: skip
    if not direct:
        add_parts(launch, target, bias, out)
