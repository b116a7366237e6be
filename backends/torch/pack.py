"""From the rows of a plan to tensors, with one copy from host to device."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backends.ops.base import PackedBatch, SamplingBatch
from backends.torch.places import NOBODY, Places
from backends.torch.tokens import Tokens
from sim.engine.sequence import Sequence


class Draw(NamedTuple):
    """A token that is wanted for `seq`.

    `guest`: a parallel sample that is to split off from the sequence whose prompt is computed, if it finds memory.
    """

    seq: Sequence
    tokens: Tokens
    guest: bool = False


@dataclass(slots=True)
class Rows:
    """What a step computes: of each sequence some tokens that follow those it has in the cache. S rows, R draws.

    Attributes:
        places: [S] int64, of the sequences. past, counts: [S] int64, tokens in the cache and tokens to compute.
        live: [S] bool; the keys and values of others are not kept, nobody wants them.
        prompts: row → tokens, for those whose tokens the host knows; of the others the device knows the one token.
        draws: who gets a token. owners, positions: [R] int64, the row whose last token it follows, and its number.
    """

    places: np.ndarray
    past: np.ndarray
    counts: np.ndarray
    live: np.ndarray
    prompts: dict[int, Tokens] = field(default_factory=dict)
    draws: list[Draw] = field(default_factory=list)
    owners: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    positions: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def padded(self, rows: int) -> Rows:
        """With dead rows of one token at the end, until there are `rows`."""
        more = rows - len(self.places)
        if not more:
            return self
        wide = [
            np.concatenate((column, np.full(more, filler)))
            for column, filler in ((self.places, NOBODY), (self.past, 0), (self.counts, 1), (self.live, False))
        ]
        return Rows(*wide, self.prompts, self.draws, self.owners, self.positions)


class Layout(NamedTuple):
    """How many tokens, rows and sampled positions a step has, and so where each of its columns lies in one flat array."""

    tokens: int
    rows: int
    samples: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of ids, sources, positions, slots, query starts, KV lengths, places and sample rows, in this order."""
        return (*[self.tokens] * 4, self.rows + 1, self.rows, self.rows, self.samples)

    def batch(self, flat: Tensor, places: Places, queries: np.ndarray, lengths: np.ndarray, pages: int) -> PackedBatch:
        """The batch whose columns are in `flat` [sum of sizes]: tokens that the host lacks and tables come from `places`.

        Nothing here depends on values on the host, so that it may be part of a CUDA graph.

        Args:
            queries, lengths: see `PackedBatch`.
            pages: of each table that may be read.
        """
        ids, source, positions, slots, starts, there, who, drawn = flat.split(self.sizes)
        ids = torch.where(source >= 0, places.latest[source.clamp(min=0)], ids)
        tables = places.tables[:, :pages].index_select(0, who)
        return PackedBatch(ids, positions, slots, starts, there, tables, drawn, queries, lengths)


@dataclass(frozen=True, slots=True)
class Packed:
    """A step on the device.

    Attributes:
        layout: of `flat`. queries, lengths: [S] on the host; pages: that the longest row has.
        sampling: how tokens are drawn. spots: [R] int64, the places that get them.
    """

    layout: Layout
    flat: Tensor
    queries: np.ndarray
    lengths: np.ndarray
    pages: int
    sampling: SamplingBatch
    spots: Tensor

    def batch(self, places: Places) -> PackedBatch:
        """What the model takes."""
        return self.layout.batch(self.flat, places, self.queries, self.lengths, self.pages)


def pack(rows: Rows, places: Places, page_size: int, every_row: bool = False) -> Packed:
    """Put the rows of a step one after the other, and bring the device's tables up to date.

    Args:
        every_row: the last token of every row is a sample row, drawn from or not.
    """
    queries, past = rows.counts, rows.past
    starts = np.concatenate(([0], np.cumsum(queries)))
    lengths = past + queries
    owner = np.repeat(np.arange(len(queries)), queries)
    positions = np.arange(starts[-1]) + np.repeat(past - starts[:-1], queries)
    pages = -(-int(lengths.max()) // page_size)
    places.widen(pages)
    slots = places.host[rows.places[owner], positions // page_size] * page_size + positions % page_size
    if not rows.live.all():
        slots[~rows.live[owner]] = -1
    ids, source = _ids(rows, starts)
    drawn = starts[1:] - 1 if every_row else starts[rows.owners + 1] - 1
    layout = Layout(int(starts[-1]), len(queries), len(drawn))
    step = np.concatenate((ids, source, positions, slots, starts, lengths, rows.places, drawn))
    spots = np.array([draw.tokens.place for draw in rows.draws], np.int64)
    reals, whole = places.knobs.reals[:, spots], places.knobs.whole[:, spots]
    columns = [step, *places.news(), spots, rows.positions, reals, whole, *_seen(rows, reals[3])]
    flat, index, news, spots_there, drawn_at, reals_there, whole_there, *seen = to_device(columns, places.device)
    if len(index):
        places.tables.view(-1)[index] = news
    sampling = _sampling(reals, whole, reals_there, whole_there, drawn_at, seen, places.latest)
    return Packed(layout, flat, queries, lengths, pages, sampling, spots_there)


def _ids(rows: Rows, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Token ids, and for those that only the device knows the place where it has them (−1: known here)."""
    ids, source = np.zeros(starts[-1], np.int64), np.repeat(rows.places, rows.counts)
    source[np.repeat(~rows.live, rows.counts)] = -1
    for row, tokens in rows.prompts.items():
        start, past = int(starts[row]), int(rows.past[row])
        known = tokens.ids[past : past + int(rows.counts[row])]
        ids[start : start + len(known)] = known
        source[start : start + len(known)] = -1
    return ids, source


def _seen(rows: Rows, penalties: np.ndarray) -> list[np.ndarray]:
    """(row, token id) of all that draws with a penalty have seen, then (row, place) of those whose last token the device alone
    knows."""
    pairs: list[list] = [[], [], [], []]
    for index in np.flatnonzero(penalties != 1).tolist():
        tokens, position = rows.draws[index].tokens, int(rows.positions[index])
        known = np.unique(np.frombuffer(tokens.ids[:position], np.int32))
        pairs[0] += [index] * len(known)
        pairs[1] += known.tolist()
        if len(tokens.ids) < position:
            pairs[2].append(index)
            pairs[3].append(tokens.place)
    return [np.array(column, np.int64) for column in pairs]


def _sampling(
    reals: np.ndarray, whole: np.ndarray, reals_there: Tensor, whole_there: Tensor, positions: Tensor, seen: Seq[Tensor],
    latest: Tensor,
) -> SamplingBatch:  # fmt: skip
    warm = reals[0] > 0
    filtered = bool((warm & ((whole[0] > 0) | (reals[1] < 1) | (reals[2] > 0))).any())
    temperature, top_p, min_p, penalty = reals_there.unbind()
    top_k, seed, request, sample = whole_there.unbind()
    penalised: tuple = ()
    if (reals[3] != 1).any():
        rows, ids, waiting, spots = seen
        penalised = penalty, torch.cat((rows, waiting)), torch.cat((ids, latest[spots]))
    return SamplingBatch(
        temperature, top_k, top_p, min_p, seed, request, sample, positions, not warm.any(), filtered, *penalised
    )


def to_device(arrays: Seq[np.ndarray], device: torch.device) -> list[Tensor]:
    """Arrays of int64 or float64 on the device, float64 as float32, all in one copy."""
    host = torch.from_numpy(np.concatenate([array.ravel().view(np.int64) for array in arrays]))
    there = host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
    tensors, start = [], 0
    for array in arrays:
        tensor = there[start : start + array.size].view(array.shape)
        start += array.size
        tensors.append(tensor.view(torch.float64).to(torch.float32) if array.dtype == np.float64 else tensor)
    return tensors


def bare_batch(past: Seq[int], counts: Seq[int], tables: np.ndarray, page_size: int, device: torch.device,
               live: bool = True) -> PackedBatch:  # fmt: skip
    """A batch of made-up rows for timing and warming up: all ids 0, the last token of every row sampled.

    Args:
        tables: [S, P] int64, pages of every row.
        live: whether keys and values are written.
    """
    places = Places(device, 0, len(counts) + 1, tables.shape[1])
    for row, pages in enumerate(tables):
        places.lay(row + 1, 0, pages)
    numbers = np.arange(1, len(counts) + 1)
    rows = Rows(numbers, np.array(past, np.int64), np.array(counts, np.int64), np.full(len(counts), live))
    return pack(rows, places, page_size, every_row=True).batch(places)
