"""Attention to paged keys and values in plain torch, accumulated in float32.

Sequences with one query (decoding) are computed together, a few dozen of about equal length at a time; those with more, one
by one. Only keys within a sequence's length reach the arithmetic, so that whatever lies in the rest of a page, even NaN, has no
influence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backends.ops.base import PackedBatch
from backends.ops.int8_pages import dequantised_heads

_TOGETHER = 32
"""Decoding sequences in one padded product; sorted by length first, so that the padding is small."""


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PackedBatch, scale: float, window: int, softcap: float,
    head_scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """See `backends.ops.base.Operators.attention`; `head_scales` are those of int8 pages."""
    out = torch.zeros_like(q)
    pages = _Pages(k_pages, None), _Pages(v_pages, None)
    if head_scales is not None:
        pages = _Pages(k_pages, head_scales[0]), _Pages(v_pages, head_scales[1])
    starts = np.concatenate(([0], np.cumsum(batch.queries)))
    single = np.flatnonzero((batch.queries == 1) & (batch.lengths > 0))
    single = single[np.argsort(batch.lengths[single], kind="stable")]
    for first in range(0, len(single), _TOGETHER):
        part = single[first : first + _TOGETHER]
        rows = torch.as_tensor(starts[part], device=q.device)
        out[rows] = _decode(q[rows], pages, batch, part, scale, window, softcap)
    for index in np.flatnonzero((batch.queries > 1) & (batch.lengths > 0)).tolist():
        mine = slice(int(starts[index]), int(starts[index + 1]))
        table = batch.block_tables[index]
        out[mine] = _prefill(q[mine], pages, table, int(batch.lengths[index]), scale, window, softcap)
    return out


class _Pages(NamedTuple):
    """Keys or values, and the scales of int8 ones."""

    values: Tensor
    scales: Tensor | None

    def read(self, which: Tensor) -> Tensor:
        """Pages `which` [...] in float32: [..., page size, KV heads, head dim]."""
        if self.scales is not None:
            return dequantised_heads(gathered(self.values, which), self.scales[which])
        return gathered(self.values, which).float()


def _prefill(
    q: Tensor, sides: tuple[_Pages, _Pages], table: Tensor, length: int, scale: float, window: int, softcap: float
) -> Tensor:
    """One sequence's queries [n, heads, dim]. Keys that are behind the window of all of them are not read."""
    size = sides[0].values.shape[1]
    count, heads, dim = q.shape
    low = max(0, length - count + 1 - window) if window else 0
    skipped = low // size
    pages = table[skipped : -(-length // size)]
    k, v = (side.read(pages).flatten(0, 1)[low - skipped * size : length - skipped * size] for side in sides)
    group = heads // k.shape[1]
    grouped = q.float().reshape(count, -1, group, dim)
    scores = _capped(torch.einsum("nhgd,mhd->hgnm", grouped, k) * scale, softcap)
    place = torch.arange(length - count, length, device=q.device)[:, None]
    key = torch.arange(low, length, device=q.device)[None, :]
    hidden = key > place
    if window:
        hidden |= key <= place - window
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return torch.einsum("hgnm,mhd->nhgd", weights, v).reshape(count, heads, dim).to(q.dtype)


def _decode(
    q: Tensor, sides: tuple[_Pages, _Pages], batch: PackedBatch, part: np.ndarray, scale: float, window: int, softcap: float
) -> Tensor:  # fmt: skip
    """One query each [n, heads, dim] of the sequences `part`."""
    size = sides[0].values.shape[1]
    index = torch.as_tensor(part, device=q.device)
    longest = int(batch.lengths[part].max())
    lengths = batch.kv_lengths[index][:, None]
    key = torch.arange(longest, device=q.device)[None, :]
    hidden = key >= lengths
    if window:
        hidden |= key < lengths - window
    reach = torch.arange(-(-longest // size), device=q.device)[None, :]
    tables = batch.block_tables[index, : reach.shape[1]]
    seen = reach * size < lengths
    if window:
        seen &= (reach + 1) * size > lengths - window
    pages = torch.where(seen, tables, tables.gather(1, (lengths - 1) // size))  # a page is read in place of what is not
    k, v = (side.read(pages).flatten(1, 2)[:, :longest] for side in sides)
    v = v.masked_fill(hidden[:, :, None, None], 0.0)  # a weight of 0 does not silence NaN
    count, heads, dim = q.shape
    grouped = q.float().reshape(count, k.shape[2], -1, dim)
    scores = _capped(torch.einsum("nhgd,nmhd->nhgm", grouped, k) * scale, softcap)
    weights = torch.softmax(scores.masked_fill(hidden[:, None, None, :], float("-inf")), dim=-1)
    return torch.einsum("nhgm,nmhd->nhgd", weights, v).reshape(count, heads, dim).to(q.dtype)


def gathered(pages: Tensor, which: Tensor) -> Tensor:
    """`pages[which]`, for fp8 by way of bytes, which torch can index on every device."""
    if pages.element_size() > 1:
        return pages[which]
    return pages.view(torch.uint8)[which].view(pages.dtype)


def _capped(scores: Tensor, softcap: float) -> Tensor:
    return softcap * torch.tanh(scores / softcap) if softcap else scores
