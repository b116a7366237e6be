"""Attention of prompts and prompt pieces: many queries of a sequence to all its keys, cached ones and new ones alike.

The keys and values of the piece itself are in their pages before this runs, so a prefix hit, a later chunk and a fresh prompt are
the same thing: queries that stand at the end of a longer row of keys.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from backends.ops.base import PackedBatch
from backends.triton.attend import attend_block, query_rows, sequence_of
from backends.triton.launch import Launcher, scale_strides
from backends.triton.tiles import LOG2_E, Tile


@triton.jit
def prefill_kernel(
    q_ptr, k_ptr, v_ptr, ks_ptr, vs_ptr, out_ptr, tiles_ptr, starts_ptr, lengths_ptr, tables_ptr,
    scale, v_scale, softcap, window, q_token, q_head, out_token, out_head, table_row,
    k_page, k_slot, k_head, v_page, v_slot, v_head, s_page, s_slot,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SCALED: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    """BLOCK_M // GROUP queries of one sequence for one KV head. Row r is query first + r // GROUP, head r % GROUP.

    Keys come in up to three parts: those that leave the window of some row, with a mask; those that all rows see, without; and
    those around the rows themselves, with a mask. What is behind the window of all rows is not read.
    """
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    item, head = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(tiles_ptr + 2 * item).to(tl.int64)
    first = tl.load(tiles_ptr + 2 * item + 1)
    start, queries, length = sequence_of(starts_ptr, lengths_ptr, sequence)
    q, query, member, live = query_rows(
        q_ptr, q_token, q_head, start, first, queries, head, GROUP, DIM, BLOCK_M, BLOCK_D
    )  # fmt: skip
    best = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    table = tables_ptr + sequence * table_row
    k_base, v_base = k_ptr + head.to(tl.int64) * k_head, v_ptr + head.to(tl.int64) * v_head
    place = length - queries + query
    past = length - queries + first  # position of the first row
    stop = tl.minimum(past + QUERIES, length)
    low = 0
    begin = 0
    seen = (
        tl.maximum(0, past + 1) // BLOCK_N * BLOCK_N
    )  # the first row sees all keys before this one, if no window hides them
    if WINDOW:
        low = tl.maximum(0, past - window + 1)
        whole = tl.cdiv(tl.maximum(0, stop - window), BLOCK_N) * BLOCK_N  # the last row sees all keys from here on
        begin = tl.minimum(whole, seen)
        for block in range(low // BLOCK_N * BLOCK_N, begin, BLOCK_N):
            best, total, acc = attend_block(
                q, best, total, acc, block + tl.arange(0, BLOCK_N), place, low, stop, table, k_base, v_base, ks_ptr + head,
                vs_ptr + head, k_page, k_slot, v_page, v_slot, s_page, s_slot, scale, softcap, window,
                DIM, BLOCK_D, PAGE, True, True, SOFTCAP, SCALED, UP,
            )  # fmt: skip
    for block in range(begin, seen, BLOCK_N):
        best, total, acc = attend_block(
            q, best, total, acc, block + tl.arange(0, BLOCK_N), place, low, length, table, k_base, v_base, ks_ptr + head,
            vs_ptr + head, k_page, k_slot, v_page, v_slot, s_page, s_slot, scale, softcap, window,
            DIM, BLOCK_D, PAGE, False, False, SOFTCAP, SCALED, UP,
        )  # fmt: skip
    for block in range(seen, stop, BLOCK_N):
        best, total, acc = attend_block(
            q, best, total, acc, block + tl.arange(0, BLOCK_N), place, low, stop, table, k_base, v_base, ks_ptr + head,
            vs_ptr + head, k_page, k_slot, v_page, v_slot, s_page, s_slot, scale, softcap, window,
            DIM, BLOCK_D, PAGE, True, WINDOW, SOFTCAP, SCALED, UP,
        )  # fmt: skip
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None] * v_scale
    column = tl.arange(0, BLOCK_D)
    out_place = out_ptr + ((start + query) * out_token + member * out_head)[:, None] + column[None, :]
    tl.store(out_place, acc.to(out_ptr.dtype.element_ty), mask=live)


def prefill_attention(
    launch: Launcher, out: Tensor, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PackedBatch, tiles: Tensor, tile: Tile,
    *, scale: float, window: int, softcap: float, kv_scales: tuple[float, float],
    head_scales: tuple[Tensor, Tensor] | None,
) -> None:  # fmt: skip
    """Fill the rows of `out` [T, heads, dim] that belong to `tiles` [N, 2], cut for `tile`; `head_scales` are of int8 pages."""
    heads, dim = q.shape[1:]
    page, kv_heads = k_pages.shape[1:3]
    launch(
        prefill_kernel,
        (len(tiles), kv_heads),
        (
            q, k_pages, v_pages, *(head_scales or (q, q)), out, tiles, batch.query_starts, batch.kv_lengths, batch.block_tables,
            float(scale * kv_scales[0] * (1.0 if softcap else LOG2_E)), float(kv_scales[1]), float(softcap), window,
            q.stride(0), q.stride(1), out.stride(0), out.stride(1), batch.block_tables.stride(0),
            *k_pages.stride()[:3], *v_pages.stride()[:3], *scale_strides(head_scales),
        ),
        {
            "GROUP": heads // kv_heads, "DIM": dim, "BLOCK_D": triton.next_power_of_2(dim), "PAGE": page,
            "BLOCK_M": tile.rows, "BLOCK_N": tile.keys, "WINDOW": window > 0, "SOFTCAP": softcap > 0,
            "SCALED": head_scales is not None, "UP": launch.target.interpreted,
        },
        warps=tile.warps, stages=tile.stages,
    )  # fmt: skip
