"""A mixture of experts as two grouped matrix products over tokens that are sorted by expert.

Nothing is waited for: how many tokens an expert has stays on the device. The grid has room for the worst case, and each program
finds its expert from the running counts of tiles; those that are left over end at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backends.ops.reference import route
from backends.triton.attend import product
from backends.triton.elementwise import silu
from backends.triton.launch import Launcher, rows_last
from backends.triton.tiles import experts_tile


@triton.jit
def own_visits(ends_ptr, experts, tile, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr):
    """Of a program's tile: its expert (beyond the last where nothing is left), its first visit, and the end of the expert's."""
    expert = tl.arange(0, BLOCK_E)
    end = tl.load(ends_ptr + expert, mask=expert < experts, other=0)
    begin = tl.load(ends_ptr + expert - 1, mask=(expert > 0) & (expert < experts), other=0)
    tiles = tl.cdiv(end - begin, BLOCK_M)
    tiles = tl.where(expert < experts, tiles, 0)
    last = tl.cumsum(tiles, axis=0)
    mine = tl.sum(((last <= tile) & (expert < experts)).to(tl.int32), axis=0)
    here = (expert == mine).to(tl.int32)
    first = tl.sum(here * (begin + (tile - last + tiles) * BLOCK_M), axis=0)
    return mine, first, tl.sum(here * end, axis=0)


@triton.jit
def grouped_kernel(
    x_ptr, weight_ptr, out_ptr, ends_ptr, order_ptr, share_ptr, experts, outputs, inputs, top_k, x_row, w_expert, w_row,
    GATED: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    UP: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one expert times a block of its outputs. Visit v of the sorted ones is of token order[v] // top_k.

    `GATED`: rows of x are tokens; out[v] = silu(gate) × up of the visit's token. Otherwise: rows of x are visits, and
    out[order[v]] = share[order[v]] × the product, in float32.

    Args:
        ends_ptr: [experts], visits of all experts up to and including each.
    """
    tile, block = tl.program_id(0), tl.program_id(1)
    mine, first, stop = own_visits(ends_ptr, experts, tile, BLOCK_E, BLOCK_M)
    if mine < experts:
        visit = first + tl.arange(0, BLOCK_M)
        live = visit < stop
        place = tl.load(order_ptr + visit, mask=live, other=0).to(tl.int64)
        row = place // top_k if GATED else visit.to(tl.int64)
        column = block * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        x_place = x_ptr + row[:, None] * x_row + k[None, :]
        w_base = weight_ptr + mine.to(tl.int64) * w_expert + (block * BLOCK_N).to(tl.int64) * w_row
        w_place = (
            w_base + tl.arange(0, BLOCK_N)[None, :] * w_row + k[:, None]
        )  # within a tile 32 bits do, and save registers
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, inputs, BLOCK_K):
            rest = k < inputs - start
            wanted = rest[:, None] & (column < outputs)[None, :]
            x = tl.load(x_place + start, mask=live[:, None] & rest[None, :], other=0.0)
            acc = product(x, tl.load(w_place + start, mask=wanted, other=0.0), acc, UP)
            if GATED:
                second = tl.load(w_place + tl.cast(outputs, tl.int64) * w_row + start, mask=wanted, other=0.0)
                up = product(x, second, up, UP)
        inside = live[:, None] & (column < outputs)[None, :]
        if GATED:
            target = visit.to(tl.int64)
            acc = silu(acc) * up
        else:
            target = place
            acc = acc * tl.load(share_ptr + place, mask=live, other=0.0)[:, None]
        tl.store(out_ptr + target[:, None] * outputs + column[None, :], acc.to(out_ptr.dtype.element_ty), mask=inside)


def sorted_visits(scores: Tensor, top_k: int, renormalise: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Each visit's share, visits sorted by expert (visit v is of token v // top_k), and visits up to each expert's last."""
    shares, chosen = route(scores, top_k, renormalise)
    shares, chosen = shares.flatten(), chosen.flatten()
    counts = torch.zeros(scores.shape[1], dtype=torch.int32, device=scores.device)
    counts.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.int32))
    return shares, torch.argsort(chosen, stable=True), torch.cumsum(counts, dim=0, dtype=torch.int32)


def run_experts(
    launch: Launcher, x: Tensor, scores: Tensor, gate_up: Tensor, down: Tensor, top_k: int, renormalise: bool
) -> Tensor:
    """See `backends.ops.base.Operators.experts`; `scores` [T, experts] is what the router gave."""
    tokens, width = x.shape
    experts, inner = gate_up.shape[0], gate_up.shape[1] // 2
    shares, order, ends = sorted_visits(scores, top_k, renormalise)
    x, visits = rows_last(x), tokens * top_k
    tile = experts_tile(launch.target, visits / experts, x.dtype)
    tiles = min(visits, triton.cdiv(visits, tile.rows) + experts)
    hidden = torch.empty(visits, inner, dtype=x.dtype, device=x.device)
    parts = torch.empty(visits, width, dtype=torch.float32, device=x.device)
    for gated, source, weight, out, outputs in ((True, x, gate_up, hidden, inner), (False, hidden, down, parts, width)):
        keys = tile.keys // 2 if gated else tile.keys  # two accumulators
        launch(
            grouped_kernel,
            (tiles, triton.cdiv(outputs, keys)),
            (
                source, weight, out, ends, order, shares, experts, outputs, source.shape[1], top_k,
                source.stride(0), weight.stride(0), weight.stride(1),
            ),
            {
                "GATED": gated, "BLOCK_E": triton.next_power_of_2(experts), "BLOCK_M": tile.rows, "BLOCK_N": keys,
                "BLOCK_K": 64 if x.dtype != torch.float32 else 32, "UP": launch.target.interpreted,
            },
            warps=tile.warps, stages=tile.stages,
        )  # fmt: skip
    return parts.view(tokens, top_k, width).sum(1).to(x.dtype)
