"""Batches over scattered pages, in which everything that no sequence owns is poisoned."""

from __future__ import annotations

import numpy as np
import torch
from compare import normal

from backends.ops.base import PackedBatch
from backends.ops.int8_pages import quantised_heads
from backends.ops.reference import FP8


def make_batch(rows: list[tuple[int, int]], page: int, seed: int = 0) -> tuple[PackedBatch, int]:
    """A batch of (queries, cached tokens) a sequence, whose tables are −1 beyond their ends; and the number of pages."""
    needs = [-(-length // page) for _, length in rows]
    order = np.random.default_rng(seed).permutation(sum(needs) + 3)
    tables = np.full((len(rows), max(*needs, 1)), -1, np.int64)
    used = 0
    for index, need in enumerate(needs):
        tables[index, :need] = order[used : used + need]
        used += need
    queries, lengths = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    starts = np.concatenate(([0], np.cumsum(queries)))
    positions = np.concatenate([np.arange(length - count, length) for count, length in rows])
    none = torch.zeros(0, dtype=torch.int64)
    there = (torch.as_tensor(each) for each in (positions, starts, lengths, tables))
    positions, starts, lengths_there, tables = there
    return PackedBatch(none, positions, none, starts, lengths_there, tables, none, queries, lengths), len(order)


def make_int8_pages(pages: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """These pages [2, pages, page, KV heads, dim] in int8, and their scales, which are NaN where pages are."""
    values, scales = quantised_heads(pages.nan_to_num(nan=1e4))
    scales[pages.isnan().any(-1)] = float("nan")
    return values, tuple(scales)


def make_pages(
    batch: PackedBatch, pages: int, page: int, kv_heads: int, dim: int, dtype: torch.dtype, seed: int = 0
) -> torch.Tensor:
    """[2, pages, page, KV heads, dim]: keys and values, NaN wherever no sequence has a token."""
    wide = torch.full((2, pages, page, kv_heads, dim), float("nan"))
    for index, length in enumerate(batch.lengths.tolist()):
        places = torch.arange(length)
        where = batch.block_tables[index, places // page], places % page
        wide[:, *where] = normal(2, length, kv_heads, dim, seed=seed + index)
    if dtype not in FP8:
        return wide.to(dtype)
    # The reference reads fp8's NaN; the interpreter does not know it, so there poison is the largest value.
    return torch.where(wide.isnan(), torch.finfo(dtype).max, wide).to(dtype)
