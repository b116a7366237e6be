"""Which sequences of a batch go to which attention kernel: worked out once a step, used by every layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backends.ops.base import PackedBatch
from backends.triton.tiles import FEW_ROWS

_FEW_QUERIES = 8


@dataclass(frozen=True, slots=True)
class Decoding:
    """Sequences for the decode kernel: their numbers [N] int32, the most queries and the most cached tokens of one."""

    sequences: Tensor
    queries: int
    longest: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One step's work. `tiles` [N, 2] int32: (sequence, first query) of each tile of the prefill kernel, longest first."""

    decoding: tuple[Decoding, ...]
    tiles: Tensor


def plan_attention(batch: PackedBatch, group: int, tile_queries: int, numbers: Tensor) -> AttentionPlan:
    """Single queries decode together; a few queries of a sequence also decode, apart; more are cut into tiles.

    Args:
        group: query heads of a KV head.
        tile_queries: queries in a tile of the prefill kernel.
        numbers: int32, from 0 to S − 1 at least, on the device: nothing is sent there for a step that only decodes.
    """
    queries, lengths = batch.queries, batch.lengths
    if (queries == 1).all():
        decoding = (Decoding(numbers[: len(queries)], 1, int(lengths.max())),) if len(queries) else ()
        return AttentionPlan(decoding, numbers[:0].view(-1, 2))
    few = min(_FEW_QUERIES, max(1, FEW_ROWS // group))
    kinds = (np.flatnonzero(queries == 1), np.flatnonzero((queries > 1) & (queries <= few)))
    many = np.flatnonzero(queries > few)
    counts = -(-queries[many] // tile_queries)
    sequence = np.repeat(many, counts)
    first = (np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)) * tile_queries
    seen = lengths[sequence] - queries[sequence] + first
    tiles = np.stack((sequence, first), axis=1)[np.argsort(-seen, kind="stable")]
    host = np.concatenate((*kinds, tiles.ravel())).astype(np.int32)
    there = torch.from_numpy(host)
    if batch.query_starts.is_cuda:
        there = there.pin_memory().to(batch.query_starts.device, non_blocking=True)
    parts = there.split([len(kinds[0]), len(kinds[1]), tiles.size])
    decoding = tuple(
        Decoding(part, int(queries[kind].max()), int(lengths[kind].max()))
        for part, kind in zip(parts, kinds, strict=False)
        if len(kind)
    )
    return AttentionPlan(decoding, parts[2].view(-1, 2))
