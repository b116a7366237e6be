"""From the rows of a plan to tensors, with one copy from host to device."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backends.ops.base import PackedBatch, SamplingBatch
from backends.torch.sampling import SamplingParams
from backends.torch.tokens import Tokens
from sim.engine.sequence import Sequence

_WRAP = 1 << 64


class Draw(NamedTuple):
    """A token that is wanted: number `position` of sequence `seq`.

    `guest`: a parallel sample that is to split off from the sequence whose prompt is computed, if it finds memory.
    """

    seq: Sequence
    tokens: Tokens
    position: int
    guest: bool = False


class Row(NamedTuple):
    """`count` tokens of a sequence after its first `past`, with its pages, and what is drawn from the last of them.

    `dead`: computed for nothing, as a static batch has it; its keys and values are not kept.
    """

    tokens: Tokens
    past: int
    count: int
    pages: np.ndarray
    draws: Seq[Draw] = ()
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Packed:
    """A step on the device. `places` [R] int64: where each drawn token is kept in the list of latest tokens."""

    batch: PackedBatch
    sampling: SamplingBatch
    places: Tensor
    draws: list[Draw]


def pack(rows: Seq[Row], page_size: int, latest: Tensor, seed: int) -> Packed:
    """Put the rows of a step one after the other.

    Args:
        latest: [places] int64 on the device: the last token of sequences, which the host may not know yet.
        seed: of draws whose request has none of its own.
    """
    queries = np.array([row.count for row in rows], np.int64)
    past = np.array([row.past for row in rows], np.int64)
    starts = np.concatenate(([0], np.cumsum(queries)))
    lengths = past + queries
    tables = _tables(rows, lengths, page_size)
    owner = np.repeat(np.arange(len(rows)), queries)
    positions = np.arange(starts[-1]) + np.repeat(past - starts[:-1], queries)
    slots = tables[owner, positions // page_size] * page_size + positions % page_size
    if any(row.dead for row in rows):
        slots[np.repeat([row.dead for row in rows], queries)] = -1
    ids, source = _ids(rows, starts)
    draws = [draw for row in rows for draw in row.draws]
    drawn = np.repeat(starts[1:] - 1, [len(row.draws) for row in rows])
    places = np.array([draw.tokens.last for draw in draws], np.int64)
    columns = [ids, source, positions, slots, starts, lengths, tables, drawn, places]
    sent = to_device([*columns, *_coordinates(draws, seed)], latest.device)
    ids_there, source_there, *batch, places_there = sent[:9]
    if (source >= 0).any():
        ids_there = torch.where(source_there >= 0, latest[source_there.clamp(min=0)], ids_there)
    packed = PackedBatch(ids_there, *batch, queries, lengths)
    return Packed(packed, _sampling(draws, sent[9:], latest), places_there, draws)


def _tables(rows: Seq[Row], lengths: np.ndarray, page_size: int) -> np.ndarray:
    needs = -(-lengths // page_size)
    tables = np.zeros((len(rows), int(needs.max())), np.int64)
    for index, (row, need) in enumerate(zip(rows, needs.tolist(), strict=True)):
        tables[index, :need] = row.pages[:need]
    return tables


def _ids(rows: Seq[Row], starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Token ids, and for those that only the device knows their place in its list (−1: known here)."""
    ids, source = np.zeros(starts[-1], np.int64), np.full(starts[-1], -1, np.int64)
    for row, start in zip(rows, starts.tolist(), strict=False):
        known = row.tokens.ids[row.past : row.past + row.count]
        ids[start : start + len(known)] = known
        source[start + len(known) : start + row.count] = row.tokens.last
    return ids, source


def _coordinates(draws: Seq[Draw], seed: int) -> list[np.ndarray]:
    """Numbers of how each token is drawn, in the order of `SamplingBatch`."""
    how = [draw.tokens.sampling for draw in draws]
    reals = [[getattr(each, name) for each in how] for name in ("temperature", "top_p", "min_p")]
    seeds = [_signed(seed if each.seed is None else each.seed) for each in how]
    requests = [draw.seq.row + 1 if each.seed is None else 0 for draw, each in zip(draws, how, strict=True)]
    samples, positions = [draw.seq.sample for draw in draws], [draw.position for draw in draws]
    whole = [[each.top_k for each in how], seeds, requests, samples, positions]
    return [*(np.array(column, np.float64) for column in reals), *(np.array(column, np.int64) for column in whole)]


def _signed(seed: int) -> int:
    """A seed as 64 bits with a sign."""
    seed %= _WRAP
    return seed - _WRAP if seed >= _WRAP // 2 else seed


def _seen(draws: Seq[Draw], latest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Penalties [R], and (row, token id) of all that rows with a penalty have seen; the last token may be known to the device
    alone."""
    rows, ids, waiting, places = [], [], [], []
    for index, draw in enumerate(draws):
        if draw.tokens.sampling.repetition_penalty != 1:
            known = np.unique(np.frombuffer(draw.tokens.ids[: draw.position], np.int32)).astype(np.int64)
            rows.append(np.full(len(known), index, np.int64))
            ids.append(known)
            if len(draw.tokens.ids) < draw.position:
                waiting.append(index)
                places.append(draw.tokens.last)
    penalty = np.array([draw.tokens.sampling.repetition_penalty for draw in draws], np.float64)
    columns = [
        penalty,
        np.concatenate(rows),
        np.concatenate(ids),
        np.array(waiting, np.int64),
        np.array(places, np.int64),
    ]
    penalty_there, rows_there, ids_there, waiting_there, places_there = to_device(columns, latest.device)
    return penalty_there, torch.cat((rows_there, waiting_there)), torch.cat((ids_there, latest[places_there]))


def _sampling(draws: Seq[Draw], sent: Seq[Tensor], latest: Tensor) -> SamplingBatch:
    temperature, top_p, min_p, top_k, seed, request, sample, position = sent
    how: set[SamplingParams] = {draw.tokens.sampling for draw in draws}
    greedy = not any(each.temperature for each in how)
    filtered = any(each.filters for each in how if each.temperature)
    seen = _seen(draws, latest) if any(each.repetition_penalty != 1 for each in how) else (None, None, None)
    return SamplingBatch(temperature, top_k, top_p, min_p, seed, request, sample, position, greedy, filtered, *seen)


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
