"""Tile sizes by architecture: small fixed tables in place of autotuning, so that a run does the same on every start.

They are chosen so that the hot kernels spill no registers and fit in shared memory wherever they compile (docs/kernels.md has
the figures); they were not tuned on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from backends.triton.launch import Target

LOG2_E = 1.4426950408889634
MOST_SPLITS = 64
FEW_ROWS = 64
"""Query heads × queries of a sequence up to which it is treated as decoding."""


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` of queries (or tokens) × `keys` (or outputs), with the launch's warps and pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


def split_keys(target: Target) -> int:
    """Keys of a split in decode attention, while there are not more than `MOST_SPLITS`: few enough that one long sequence keeps
    many processors at work, so many that partial results are small beside keys and values."""
    return 64 if target.interpreted else 256


def decode_tile(target: Target, block_d: int, rows: int, dtype: torch.dtype) -> Tile:
    """For split decode attention: keys in blocks that keep a few loads in flight."""
    if target.interpreted:
        return Tile(rows, 32, 4, 1)
    if dtype == torch.float32:
        small = block_d <= 128 and rows == 16
        return Tile(rows, 32 if small else 16, 8, 2 if small and target.compute else 1)
    return Tile(rows, 64 if block_d <= 128 else 32, 4, 3 if target.compute else 1)


def prefill_tile(
    target: Target, block_d: int, dtype: torch.dtype, group: int, stored: torch.dtype | None = None
) -> Tile:
    """For prefill attention: 128 rows on tensor cores, fewer where the head or the type is wide, but a query's whole `group`.

    `stored`: type of the pages; int8 is widened in registers, for which shorter blocks of keys leave room.
    """
    tile = _prefill_tile(target, block_d, dtype)
    if stored == torch.int8 and not target.interpreted:
        tile = replace(tile, keys=min(tile.keys, 32))
    return tile if group <= tile.rows else replace(tile, rows=1 << (group - 1).bit_length())


def _prefill_tile(target: Target, block_d: int, dtype: torch.dtype) -> Tile:
    if target.interpreted:  # where a program costs and its size does not
        return Tile(64, 32, 4, 1)
    if dtype == torch.float32:
        return Tile(32 if block_d <= 128 else 16, 16, 8, 1)
    if not target.compute:
        return Tile(128, 64 if block_d <= 128 else 32, 4 if block_d <= 128 else 8, 1)
    if block_d > 128:
        return Tile(64, 32, 8, 2)
    if target.compute < 90:
        return Tile(128 if block_d <= 64 else 64, 64, 8, 2)
    return Tile(128, 64, 8, 3)


def experts_tile(target: Target, visits: float, dtype: torch.dtype) -> Tile:
    """For grouped products: as many rows as an expert has on average, `visits`, within what is useful."""
    rows = 16 if visits <= 16 else 64 if visits <= 128 else 128
    if dtype == torch.float32:
        return Tile(min(rows, 64), 64, 4, 2)
    if not target.compute:
        return Tile(rows, 128, 8 if rows == 128 else 4, 2)
    if target.compute < 90:
        return Tile(rows, 64 if rows == 128 else 128, 4 if rows == 16 else 8, 3)
    return Tile(rows, 128, 8 if rows == 128 else 4, 3)


@dataclass(frozen=True, slots=True)
class PackedTile:
    """`rows` of tokens × `keys` of outputs, over `depth` columns at a time."""

    rows: int
    keys: int
    depth: int
    warps: int
    stages: int


def packed_tile(target: Target, tokens: int, dtype: torch.dtype, bits: int, heavy: bool) -> PackedTile:
    """For products with packed weights: a weight is expanded once for each tile of rows, so that few tiles of rows are best.

    What is expanded lies in registers, so tiles are small where that takes many: codes across words, and `heavy` ones with zeros
    of their own or scales of a few columns.
    """
    if target.interpreted:
        return PackedTile(min(64, max(16, 1 << (tokens - 1).bit_length())), 64, 64, 4, 1)
    if dtype == torch.float32:
        return PackedTile(16 if tokens <= 16 else 32, 32, 32, 4, 2)
    if tokens <= 16:
        return PackedTile(16, 32, 128, 4, 4 if target.compute else 2)
    if tokens <= 64:
        return PackedTile(64, 64, 32 if heavy or bits == 3 else 64, 4, 3 if target.compute else 2)
    narrow = heavy or bits == 3 or (bits == 4 and 0 < target.compute < 90)
    return PackedTile(128, 64 if bits == 3 else 128, 32 if narrow else 64, 8, 3 if target.compute else 2)


def packed_experts_tile(target: Target, visits: int, dtype: torch.dtype, bits: int, heavy: bool) -> PackedTile:
    """For grouped products with packed weights, of experts with `visits` on average: where rows lie takes registers too."""
    tile = packed_tile(target, visits, dtype, bits, heavy)
    if target.interpreted or not target.compute or dtype == torch.float32:
        return tile
    if tile.rows == 16 and heavy:
        return replace(tile, depth=64)
    return replace(tile, keys=64) if tile.rows == 128 and target.compute < 90 else tile


def whole_from(target: Target) -> int:
    """Tokens from which on a weight is expanded once, and multiplied after: see `backends.triton.quantized.whole`."""
    return 160 if target.interpreted else 1024


def whole_tile(target: Target, bits: int, heavy: bool) -> Tile:
    """`rows` of outputs × `keys` of columns that a program expands: long, for whole lines of memory.

    Tables of 8 entries need as many rows as there are threads over 8, or Triton fails to share them out.
    """
    if target.interpreted:
        return Tile(64, 128, 4, 1)
    if bits == 3:
        return Tile(32, 64, 4, 1)
    return Tile(8 if heavy else 16, 256, 4, 1)


def codes_tile(target: Target, tokens: int, grouped: bool) -> PackedTile:
    """For products of 8-bit codes with 8-bit codes. `grouped`: scales change along columns, so that there are two sums."""
    if target.interpreted:
        return PackedTile(min(64, max(16, 1 << (tokens - 1).bit_length())), 64, 64, 4, 1)
    stages = 3 if target.compute else 2
    if tokens <= 16:
        return PackedTile(16, 64, 128, 4, stages)
    if tokens <= 64:
        return PackedTile(64, 64, 128, 4, stages)
    return PackedTile(128, 128, 64 if grouped else 128, 8, stages)


_LEAST_SHARE = 512
"""Columns that a program has to itself at least, where columns are split."""


def packed_splits(target: Target, programs: int, inputs: int, depth: int) -> tuple[int, int]:
    """Into how many shares columns are split so that there is work for all processors, and columns of each but the last."""
    least = 2 * depth if target.interpreted else _LEAST_SHARE
    wanted = max(1, 2 * target.processors // max(programs, 1))
    splits = min(wanted, max(1, inputs // least), 16)
    share = -(-inputs // (splits * depth)) * depth
    return -(-inputs // share), share
