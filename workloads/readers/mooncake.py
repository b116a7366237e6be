"""Mooncake's traces (kvcache-ai/Mooncake; FAST 2025): milliseconds, lengths, a hash id a block of the prompt.

Equal ids mean equal text up to and including that block, so every block becomes a span of shared content and
prefix sharing is what it was. Qwen-Bailian's traces have the same form with blocks of 16 tokens.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workloads.errors import InputError, Place, unknown_name
from workloads.readers.files import stem
from workloads.readers.objects import Objects, read_objects
from workloads.readers.times import in_order, to_seconds
from workloads.streams import Streams
from workloads.traffic import SpanTable, Traffic

KNOWN = ("timestamp", "input_length", "output_length", "hash_ids")


def read_mooncake(
    path: Path, *, block_size: int = 512, spread: str = "none", time_unit: str = "auto", seed: int = 0
) -> Traffic:
    """JSON lines with timestamp (ms), input_length, output_length, hash_ids.

    Args:
        path: plain or gzipped file.
        block_size: tokens of a block; the last of a prompt may be partial.
        spread: what to do with arrivals that were recorded in coarse bins (about 3 s in the conversation
            trace, so that ten arrive at once): `none` keeps them; `random` draws each arrival's place within
            its bin; `even` spaces them.
        time_unit: unit of `timestamp` where it is not milliseconds.
        seed: of `random`.
    """
    if block_size < 1:
        raise InputError(f"block_size must be at least 1, not {block_size}")
    data = read_objects(path)
    ignored = data.unknown(KNOWN)
    notes = [f"ignored fields: {', '.join(ignored)}"] if ignored else []
    stamps = data.real("timestamp")
    inputs, outputs = data.whole("input_length"), data.whole("output_length")
    spans = _spans(data, inputs, block_size)
    arrival = to_seconds(stamps, "ms", time_unit, notes)
    traffic = in_order(Traffic(arrival, inputs, outputs, spans=spans, name=stem(path), notes=notes))
    traffic.arrival = _spread(traffic, spread, seed)
    return traffic


def _spans(data: Objects, inputs: np.ndarray, block_size: int) -> SpanTable | None:
    lists = data.values("hash_ids", ())
    try:
        counts = np.fromiter(map(len, lists), np.int64, len(lists))
        ids = np.array([i for ids in lists for i in ids])
        plain = not len(ids) or ids.dtype.kind in "iu"
    except (TypeError, ValueError):  # not lists, or lists within them
        plain = False
    if not plain:
        row = next((i for i, ids in enumerate(lists) if not _is_ids(ids)), None)
        if row is not None:
            raise data.rows.error(row, "hash_ids", f"expected a list of whole numbers, not {reprlib.repr(lists[row])}")
        ids = _numbered(lists)  # hashes of more than 64 bits
    if not len(ids):
        return None
    blocks = -(-inputs // block_size)
    bad = counts != blocks
    if bad.any():
        row = int(np.argmax(bad))
        raise data.rows.error(
            row,
            "hash_ids",
            f"{counts[row]} ids for {inputs[row]} tokens, which are {blocks[row]} blocks of {block_size}",
            "set block_size if the blocks of this trace have another size",
        )
    if ids.min() < 0 or ids.max() > 2**62:  # true hashes rather than running numbers
        ids = np.unique(ids, return_inverse=True)[1]
    start = np.concatenate([[0], np.cumsum(counts)])
    length = np.full(len(ids), block_size, np.int64)
    length[start[1:] - 1] = inputs - (blocks - 1) * block_size
    return SpanTable(start.astype(np.int64), -1 - ids.astype(np.int64), np.zeros(len(ids), np.int64), length)


def _numbered(lists: Sequence[list[int]]) -> np.ndarray:
    """A running number for each id, in the order of their first use."""
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(i, len(numbers)) for ids in lists for i in ids], np.int64)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)


def _spread(traffic: Traffic, how: str, seed: int) -> np.ndarray:
    """Arrival times, spread within their bins if asked; notes what was found and done."""
    if how not in ("none", "random", "even"):
        raise unknown_name("spread", how, ("none", "random", "even"), place=Place(key="spread"))
    arrival = traffic.arrival
    bins, first, which, sizes = np.unique(arrival, return_index=True, return_inverse=True, return_counts=True)
    if len(bins) < 2:
        return arrival
    width = np.diff(bins, append=bins[-1] + np.median(np.diff(bins)))
    told = f"{len(bins):,} distinct time stamps, {np.median(width):.3g} s apart, for {len(arrival):,} requests"
    if how == "none":
        if len(arrival) > 2 * len(bins):
            traffic.notes.append(f"arrivals were recorded in bins ({told}); `spread: random` spreads them")
        return arrival
    if how == "even":
        place = (np.arange(len(arrival)) - first[which]) / sizes[which]
    else:
        place = Streams(seed).get("spread").random(len(arrival))
        place = place[np.lexsort((place, which))]  # in order within each bin
    traffic.notes.append(f"arrivals spread within their bins ({how}; {told})")
    return arrival + place * width[which]
