"""Products of int8 or fp8 codes, of inputs and weights alike, on the tensor cores of these types; scales come after."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from backends.quantization.base import QuantizedWeight
from backends.triton.launch import Launcher
from backends.triton.quantized.parts import add_parts
from backends.triton.tiles import codes_tile, packed_splits


@triton.jit
def codes_product(a, b, acc, UP: tl.constexpr):
    """`a @ b + acc` of codes: int8 in int32, fp8 in float32, promoted after every block, which Hopper does not do by itself."""
    if a.dtype == tl.int8:
        acc = tl.dot(a, b, acc, out_dtype=tl.int32)
    elif UP:
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc, max_num_imprecise_acc=64)
    return acc


@triton.jit
def scaled_kernel(
    codes_ptr, inputs_ptr, row_ptr, scales_ptr, outer_ptr, bias_ptr, out_ptr,
    tokens, outputs, inputs, row_groups, groups, scale_rows, share, code_row, out_row, out_part,
    ROW_GROUP: tl.constexpr, GROUP: tl.constexpr, ROW_ONE: tl.constexpr, OUTER: tl.constexpr, BIAS: tl.constexpr,
    INTEGRAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    """A tile of outputs of a tile of tokens, over `share` columns. Inputs [tokens, inputs] have scales row [tokens, row_groups].

    `ROW_GROUP`, `GROUP`: columns that share a scale, of inputs and of the weight; multiples of BLOCK_K, or 0: all. `ROW_ONE`: one
    scale for all tokens.
    """
    block, across, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n, m = block * BLOCK_N + tl.arange(0, BLOCK_N), across * BLOCK_M + tl.arange(0, BLOCK_M)
    live, row = n < outputs, n.to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    a_place = inputs_ptr + m.to(tl.int64)[:, None] * inputs + k[None, :]
    w_place = codes_ptr + row[None, :] * code_row + k[:, None]
    r_place = row_ptr + (0 if ROW_ONE else m * row_groups)
    s_place = scales_ptr + row // scale_rows * groups
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if INTEGRAL else tl.float32)
    first = split * share
    for start in range(first, tl.minimum(first + share, inputs), BLOCK_K):
        inside = k < inputs - start
        if INTEGRAL:
            a = tl.load(a_place + start, mask=(m < tokens)[:, None] & inside[None, :], other=0)
            w = tl.load(w_place + start, mask=inside[:, None] & live[None, :], other=0)
        else:
            a = tl.load(a_place + start, mask=(m < tokens)[:, None] & inside[None, :], other=0.0)
            w = tl.load(w_place + start, mask=inside[:, None] & live[None, :], other=0.0)
        if ROW_GROUP + GROUP > 0:
            part = codes_product(a, w, tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if INTEGRAL else tl.float32), UP)
            part = part.to(tl.float32)
            if ROW_GROUP > 0:
                part = part * tl.load(r_place + start // ROW_GROUP, mask=m < tokens, other=0.0)[:, None]
            if GROUP > 0:
                part = part * tl.load(s_place + start // GROUP, mask=live, other=0.0).to(tl.float32)[None, :]
            total += part
        else:
            acc = codes_product(a, w, acc, UP)
    if ROW_GROUP + GROUP == 0:
        total = acc.to(tl.float32)
    if ROW_GROUP == 0:
        total = total * (tl.load(r_place) if ROW_ONE else tl.load(r_place, mask=m < tokens, other=0.0)[:, None])
    if GROUP == 0:
        total = total * tl.load(s_place, mask=live, other=0.0).to(tl.float32)[None, :]
    if OUTER == 1:
        total = total * tl.load(outer_ptr + n, mask=live, other=1.0)[None, :]
    if OUTER == -1:
        total = tl.div_rn(
            total, tl.zeros(total.shape, tl.float32) + tl.load(outer_ptr + n, mask=live, other=1.0)[None, :]
        )
    if BIAS:
        total = total + tl.load(bias_ptr + n, mask=live, other=0.0).to(tl.float32)[None, :]
    target = out_ptr + split.to(tl.int64) * out_part + m.to(tl.int64)[:, None] * out_row + n[None, :]
    tl.store(target, total.to(out_ptr.dtype.element_ty), mask=(m < tokens)[:, None] & live[None, :])


def fits(weight: QuantizedWeight, row_group: int) -> bool:
    """Whether codes can be multiplied as they are: 8 bits and no zeros, and scales that do not change within a tile.

    Args:
        row_group: columns of the inputs that share a scale; 0: all.
    """
    plain = (
        weight.bits == 8 and weight.zeros is None and not weight.zero and weight.order is None and weight.sparse is None
    )
    group = weight.group if weight.group < weight.inputs else 0
    return plain and group % 128 == 0 and row_group % 128 == 0 and weight.scales.itemsize > 1


def scaled_product(
    launch: Launcher,
    codes: Tensor,
    scales: Tensor,
    row_group: int,
    weight: QuantizedWeight,
    bias: Tensor | None,
    out: Tensor,
) -> None:
    """Fill `out` [T, outputs] with the product of `codes` [T, inputs] and the weight's, of the same type; see `fits`.

    Args:
        scales: float32, [1, 1], [T, 1], or [T, groups] of `row_group` columns.
    """
    tokens, inputs = codes.shape
    row_group = row_group if scales.shape[1] > 1 else 0
    group = weight.group if weight.group < inputs else 0
    tile = codes_tile(launch.target, tokens, row_group + group > 0)
    blocks = triton.cdiv(weight.outputs, tile.keys)
    splits, share = packed_splits(launch.target, blocks * triton.cdiv(tokens, tile.rows), inputs, tile.depth)
    direct = splits == 1
    target = out if direct else out.new_empty(splits, *out.shape, dtype=scales.dtype)
    launch(
        scaled_kernel,
        (blocks, triton.cdiv(tokens, tile.rows), splits),
        (
            weight.codes, codes, scales, weight.scales, scales if weight.outer is None else weight.outer,
            codes if bias is None else bias, target, tokens, weight.outputs, inputs, scales.shape[1], weight.scales.shape[1],
            weight.rows, share, weight.codes.stride(0), target.stride(-2), 0 if direct else target.stride(0),
        ),
        {
            "ROW_GROUP": row_group, "GROUP": group, "ROW_ONE": scales.numel() == 1,
            "OUTER": 0 if weight.outer is None else -1 if weight.outer_divides else 1,
            "BIAS": direct and bias is not None, "INTEGRAL": weight.form == "int",
            "BLOCK_M": tile.rows, "BLOCK_N": tile.keys, "BLOCK_K": tile.depth, "UP": launch.target.interpreted,
        },
        warps=tile.warps, stages=tile.stages,
    )  # fmt: skip
    if not direct:
        add_parts(launch, target, bias, out)
