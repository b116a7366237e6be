"""Attention of sequences with one or a few queries: keys are split among programs, whose partial results are merged after.

This is flash decoding. The query heads of a KV head, times the queries of a sequence, are the rows of one tile, so keys and
values are read once for all of them. How a sequence is split goes by its own length alone, so that its result does not depend on
who else is in the batch; and the grid goes by the longest that there may be, so that a launch can be recorded and replayed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backends.ops.base import PackedBatch
from backends.triton.attend import attend_block, query_rows, sequence_of
from backends.triton.launch import Launcher, scale_strides
from backends.triton.tiles import LOG2_E, MOST_SPLITS, decode_tile, split_keys


@triton.jit
def keys_a_split(span, SHARE: tl.constexpr, MOST: tl.constexpr):
    """Keys of each split of a sequence that sees `span`: a multiple of `SHARE`, so large that `MOST` splits are enough."""
    return tl.maximum(tl.cdiv(span, MOST * SHARE), 1) * SHARE


@triton.jit
def decode_kernel(
    q_ptr, k_ptr, v_ptr, ks_ptr, vs_ptr, out_ptr, part_ptr, lse_ptr, sequences_ptr, starts_ptr, lengths_ptr, tables_ptr,
    scale, v_scale, softcap, window, q_token, q_head, out_token, out_head, table_row,
    k_page, k_slot, k_head, v_page, v_slot, v_head, s_page, s_slot,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, DIRECT: tl.constexpr, SCALED: tl.constexpr,
    UP: tl.constexpr, SHARE: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """One of a sequence's splits for one KV head. Row r is query r // GROUP, head r % GROUP.

    `DIRECT`: there is one split, which writes to out; else partial results go to part [N, KV heads, splits, M, D], each divided
    by its own sum, and their log2-sum-exp2 to lse [N, KV heads, splits, M]. Splits beyond a sequence's own write nothing.
    """
    item, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(2)
    sequence = tl.load(sequences_ptr + item).to(tl.int64)
    start, queries, length = sequence_of(starts_ptr, lengths_ptr, sequence)
    low = 0
    if WINDOW:
        low = tl.maximum(0, length - queries + 1 - window)
    share = keys_a_split(length - low, SHARE, MOST)
    first = low + split * share
    last = tl.minimum(first + share, length)
    if not DIRECT:  # noqa: SIM102 (this is known when it is compiled, the other is not)
        if first >= length:
            return
    q, query, member, live = query_rows(
        q_ptr, q_token, q_head, start, 0, queries, head, GROUP, DIM, BLOCK_M, BLOCK_D
    )  # fmt: skip
    place = length - queries + query
    column = tl.arange(0, BLOCK_D)
    best = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    table = tables_ptr + sequence * table_row
    k_base, v_base = k_ptr + head.to(tl.int64) * k_head, v_ptr + head.to(tl.int64) * v_head
    for block in range(first, last, BLOCK_N):
        best, total, acc = attend_block(
            q, best, total, acc, block + tl.arange(0, BLOCK_N), place, low, last, table, k_base, v_base, ks_ptr + head,
            vs_ptr + head, k_page, k_slot, v_page, v_slot, s_page, s_slot, scale, softcap, window,
            DIM, BLOCK_D, PAGE, True, WINDOW, SOFTCAP, SCALED, UP,
        )  # fmt: skip
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None] * v_scale
    if DIRECT:
        out_place = out_ptr + ((start + query) * out_token + member * out_head)[:, None] + column[None, :]
        tl.store(out_place, acc.to(out_ptr.dtype.element_ty), mask=live)
    else:
        line = ((item.to(tl.int64) * tl.num_programs(1) + head) * splits + split) * BLOCK_M
        line = line + tl.arange(0, BLOCK_M)
        tl.store(lse_ptr + line, best + tl.log2(total))  # −∞ for a row that saw nothing
        tl.store(part_ptr + line[:, None] * DIM + column[None, :], acc, mask=live)


@triton.jit
def combine_kernel(
    part_ptr, lse_ptr, out_ptr, sequences_ptr, starts_ptr, lengths_ptr, out_token, out_head, window,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
    WINDOW: tl.constexpr, SHARE: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Merge a sequence's own splits for one query head of one query, with weights by their log2-sum-exp2."""
    item, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence = tl.load(sequences_ptr + item).to(tl.int64)
    start, queries, span = sequence_of(starts_ptr, lengths_ptr, sequence)
    query = row // GROUP
    if query < queries:
        if WINDOW:
            span = tl.minimum(span, queries - 1 + window)
        own = tl.cdiv(span, keys_a_split(span, SHARE, MOST))
        split, column = tl.arange(0, SPLITS), tl.arange(0, BLOCK_D)
        line = ((item.to(tl.int64) * tl.num_programs(1) + head) * SPLITS + split) * ROWS + row
        lse = tl.load(lse_ptr + line, mask=split < own, other=-float("inf"))
        best = tl.max(lse, axis=0)
        weights = tl.exp2(lse - tl.where(best == -float("inf"), 0.0, best))
        total = tl.sum(weights, axis=0)
        inside = column < DIM
        wanted = (split < own)[:, None] & inside[None, :]
        part = tl.load(part_ptr + line[:, None] * DIM + column[None, :], mask=wanted, other=0.0)
        mixed = tl.sum(part * weights[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
        out_place = out_ptr + (start + query) * out_token + (head * GROUP + row % GROUP) * out_head + column
        tl.store(out_place, mixed.to(out_ptr.dtype.element_ty), mask=inside)


def decode_attention(
    launch: Launcher, out: Tensor, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PackedBatch, sequences: Tensor,
    queries: int, longest: int, *, scale: float, window: int, softcap: float, kv_scales: tuple[float, float],
    head_scales: tuple[Tensor, Tensor] | None,
) -> None:  # fmt: skip
    """Fill the rows of `out` [T, heads, dim] that belong to `sequences` [N] (int32).

    Args:
        queries: the most that one of them has. longest: tokens in the cache of the longest, or more.
        head_scales: of int8 pages.
    """
    heads, dim = q.shape[1:]
    kv_heads, page = k_pages.shape[2], k_pages.shape[1]
    group = heads // kv_heads
    block_d = triton.next_power_of_2(dim)
    rows = max(16, triton.next_power_of_2(queries * group))
    tile = decode_tile(launch.target, block_d, rows, q.dtype)
    span = min(longest, window + queries - 1) if window else longest
    keys = split_keys(launch.target)
    splits = min(triton.next_power_of_2(triton.cdiv(max(span, 1), keys)), MOST_SPLITS)
    direct = splits == 1
    shape = (len(sequences), kv_heads, splits, rows)
    lse = torch.empty(() if direct else shape, dtype=torch.float32, device=q.device)
    part = lse if direct else torch.empty(*shape, dim, dtype=torch.float32, device=q.device)
    launch(
        decode_kernel,
        (len(sequences), kv_heads, splits),
        (
            q, k_pages, v_pages, *(head_scales or (q, q)), out, part, lse, sequences, batch.query_starts, batch.kv_lengths,
            batch.block_tables,
            float(scale * kv_scales[0] * (1.0 if softcap else LOG2_E)), float(kv_scales[1]), float(softcap), window,
            q.stride(0), q.stride(1), out.stride(0), out.stride(1), batch.block_tables.stride(0),
            *k_pages.stride()[:3], *v_pages.stride()[:3], *scale_strides(head_scales),
        ),
        {
            "GROUP": group, "DIM": dim, "BLOCK_D": block_d, "PAGE": page, "BLOCK_M": rows, "BLOCK_N": tile.keys,
            "WINDOW": window > 0, "SOFTCAP": softcap > 0, "DIRECT": direct,
            "SCALED": head_scales is not None, "UP": launch.target.interpreted, "SHARE": keys, "MOST": MOST_SPLITS,
        },
        warps=tile.warps, stages=tile.stages,
    )  # fmt: skip
    if not direct:
        launch(
            combine_kernel,
            (len(sequences), kv_heads, queries * group),
            (part, lse, out, sequences, batch.query_starts, batch.kv_lengths, out.stride(0), out.stride(1), window),
            {
                "GROUP": group, "DIM": dim, "BLOCK_D": block_d, "ROWS": rows, "SPLITS": splits, "WINDOW": window > 0,
                "SHARE": keys, "MOST": MOST_SPLITS,
            },
        )  # fmt: skip
