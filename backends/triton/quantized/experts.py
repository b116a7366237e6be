"""A mixture of experts with packed weights: as `backends.triton.experts`, with weights that are expanded on the way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backends.quantization.base import QuantizedBank
from backends.triton.elementwise import silu_mul
from backends.triton.experts import own_visits, sorted_visits
from backends.triton.launch import Launcher, rows_last
from backends.triton.quantized.expand import expanded_sum, group_of, outer_of, scale_bits
from backends.triton.quantized.inputs import plain_inputs
from backends.triton.tiles import packed_experts_tile


@triton.jit
def grouped_expand_kernel(
    x_ptr, codes_ptr, scales_ptr, zeros_ptr, table_ptr, outer_ptr, factor_ptr, out_ptr, ends_ptr, order_ptr, share_ptr,
    experts, outputs, inputs, groups, scale_rows, zero, top_k, x_row, code_row,
    FORM: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, ZEROS: tl.constexpr,
    OUTER: tl.constexpr, FACTOR: tl.constexpr, FIRST: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one expert times a block of its outputs. Visit v of the sorted ones is of token order[v] // top_k.

    Rows e × outputs to (e + 1) × outputs of the weight are expert e's. `FIRST`: rows of x are tokens, and out[v] is the product.
    Otherwise: rows of x are visits, and out[order[v]] = share[order[v]] × the product. `FACTOR`: the product times factor of the
    row of x.
    """
    tile, block = tl.program_id(0), tl.program_id(1)
    mine, first, stop = own_visits(ends_ptr, experts, tile, BLOCK_E, BLOCK_M)
    if mine < experts:
        visit = first + tl.arange(0, BLOCK_M)
        there = visit < stop
        place = tl.load(order_ptr + visit, mask=there, other=0).to(tl.int64)
        source = place // top_k if FIRST else visit.to(tl.int64)
        n = block * BLOCK_N + tl.arange(0, BLOCK_N)
        live = n < outputs
        x_place = x_ptr + source[:, None] * x_row + tl.arange(0, BLOCK_K)[None, :]
        acc = expanded_sum(
            x_place, there, codes_ptr, scales_ptr, zeros_ptr, table_ptr, outer_ptr, mine.to(tl.int64) * outputs + n, live, 0,
            inputs, inputs, groups, scale_rows, zero, code_row, FORM, BITS, GROUP, KIND, ZEROS, OUTER, BLOCK_M, BLOCK_N, BLOCK_K,
            UP,
        )  # fmt: skip
        if FACTOR:
            acc = acc * tl.load(factor_ptr + source, mask=there, other=0.0)[:, None]
        target = visit.to(tl.int64) if FIRST else place
        if not FIRST:
            acc = acc * tl.load(share_ptr + place, mask=there, other=0.0)[:, None]
        tl.store(
            out_ptr + target[:, None] * outputs + n[None, :], acc.to(out_ptr.dtype.element_ty),
            mask=there[:, None] & live[None, :],
        )  # fmt: skip


def run_packed_experts(
    launch: Launcher,
    x: Tensor,
    scores: Tensor,
    gate_up: QuantizedBank,
    down: QuantizedBank,
    top_k: int,
    renormalise: bool,
) -> Tensor:
    """See `backends.ops.base.Operators.experts`; `scores` [T, experts] is what the router gave."""
    tokens = len(x)
    shares, order, ends = sorted_visits(scores, top_k, renormalise)
    wide = torch.empty(tokens * top_k, gate_up.outputs, dtype=x.dtype, device=x.device)
    parts = torch.empty(tokens * top_k, down.outputs, dtype=torch.float32, device=x.device)
    _visit(launch, x, gate_up, wide, ends, order, shares, top_k, True)
    _visit(launch, silu_mul(launch, wide), down, parts, ends, order, shares, top_k, False)
    return parts.view(tokens, top_k, down.outputs).sum(1).to(x.dtype)


def _visit(
    launch: Launcher, x: Tensor, bank: QuantizedBank, out: Tensor, ends: Tensor, order: Tensor, shares: Tensor, top_k: int,
    first: bool,
) -> None:  # fmt: skip
    """Fill `out` [visits, outputs] with the products of a bank's experts."""
    weight, visits, group = bank.weight, len(out), group_of(bank.weight)
    x, factor = (rows_last(x), None) if weight.activation is None else plain_inputs(launch, x, weight.activation)
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    heavy = weight.zeros is not None or 0 < group < 32
    tile = packed_experts_tile(launch.target, max(1, visits // bank.experts), x.dtype, weight.bits, heavy)
    tiles = min(visits, triton.cdiv(visits, tile.rows) + bank.experts)
    (scales, kind), codes = scale_bits(weight), weight.codes
    launch(
        grouped_expand_kernel,
        (tiles, triton.cdiv(bank.outputs, tile.keys)),
        (
            x, codes, scales, *(codes if each is None else each for each in (weight.zeros, weight.table, weight.outer)),
            shares if factor is None else factor, out, ends, order, shares, bank.experts, bank.outputs, bank.inputs,
            scales.shape[1], weight.rows, float(weight.zero), top_k, x.stride(0), codes.stride(0),
        ),
        {
            "FORM": weight.form, "BITS": weight.bits, "GROUP": group, "KIND": kind, "ZEROS": weight.zeros is not None,
            "OUTER": outer_of(weight), "FACTOR": factor is not None, "FIRST": first,
            "BLOCK_E": triton.next_power_of_2(bank.experts), "BLOCK_M": tile.rows, "BLOCK_N": tile.keys, "BLOCK_K": tile.depth,
            "UP": launch.target.interpreted,
        },
        warps=tile.warps, stages=tile.stages,
    )  # fmt: skip
