"""Series over tokens, computed from segments: never a list per token.

Decode steps are shared by the rows of a batch, so a run's tokens are counts over its step ends, and those counts are
sums of the segments that cover a step: a difference array. Time and memory go with segments and steps, not with tokens.
"""

from __future__ import annotations

import numpy as np

from reports.percentiles import Distribution
from reports.run_data import TokenTimes


def segment_ends(tokens: TokenTimes) -> np.ndarray:
    """float64, time of the last token of every segment."""
    ends = tokens.start.astype(np.float64, copy=True)
    more = tokens.steps > 0
    ends[more] = tokens.step_ends[tokens.first_step[more] + tokens.steps[more] - 1]
    return ends


def select(tokens: TokenTimes, wanted: np.ndarray) -> TokenTimes:
    """The segments of the requests in `wanted` (bool, by row of the traffic); step ends are shared."""
    if not len(tokens.request):
        return tokens
    kept = wanted[tokens.request]
    return TokenTimes(
        tokens.request[kept],
        tokens.start[kept],
        tokens.first_step[kept],
        tokens.steps[kept],
        tokens.step_ends,
    )


def gaps(tokens: TokenTimes) -> Distribution:
    """Inter-token latency: the gaps in seconds between successive tokens of one request.

    Counted are the gaps inside segments and, where a segment begins after all earlier ones of its request ended (it
    was preempted in between), the gap across. Segments that begin while an earlier one runs are samples beside it.
    Lone tokens at one instant are a chunk, over which the gap before it is spread.
    """
    many = tokens.steps > 0
    first = tokens.first_step[many]
    opening = tokens.step_ends[first] - tokens.start[many]
    inner = np.diff(tokens.step_ends)
    # gap k lies between steps k and k + 1: a segment holds gaps first … first + steps - 2
    covered = _cover(first, tokens.steps[many] - 1, len(inner))
    across, weights = _gaps_across(tokens)
    values = np.concatenate([inner, opening, across])
    return Distribution.of(values, np.concatenate([covered, np.ones(len(opening), np.int64), weights]))


def token_counts(tokens: TokenTimes) -> tuple[np.ndarray, np.ndarray]:
    """Times at which tokens came (ascending) and how many have come up to and including each."""
    counts = _cover(tokens.first_step, tokens.steps, len(tokens.step_ends))
    used = counts > 0
    times = np.concatenate([tokens.step_ends[used], tokens.start])
    counts = np.concatenate([counts[used], np.ones(len(tokens.start), np.int64)])
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(counts[order])


def tokens_between(series: tuple[np.ndarray, np.ndarray], low: float, high: float) -> int:
    """Tokens of `token_counts` with `low <= time < high`."""
    times, cumulative = series
    before = np.concatenate([[0], cumulative])
    a, b = np.searchsorted(times, [low, high], side="left")
    return int(before[b] - before[a])


def peak_rate(series: tuple[np.ndarray, np.ndarray], window: float = 1.0) -> float | None:
    """Most tokens in any half-open window of `window` seconds, per second; None of no tokens.

    The best window can be slid right until it begins at a token, so only those are tried: the result is exact.
    """
    times, cumulative = series
    if not len(times):
        return None
    before = np.concatenate([[0], cumulative])
    ends = np.searchsorted(times, times + window, side="left")
    return float((before[ends] - before[: len(times)]).max() / window)


def _cover(first: np.ndarray, length: np.ndarray, size: int) -> np.ndarray:
    """How many of the ranges `first … first + length - 1` cover each of `size` places."""
    real = length > 0
    first, length = first[real], length[real]
    change = np.bincount(first, minlength=size + 1).astype(np.int64)
    change -= np.bincount(first + length, minlength=size + 1).astype(np.int64)
    return np.cumsum(change)[:size]


def _gaps_across(tokens: TokenTimes) -> tuple[np.ndarray, np.ndarray]:
    """Gaps between the segments of a request and how many tokens each stands for."""
    order = np.lexsort((tokens.start, tokens.request))
    request, start = tokens.request[order], tokens.start[order]
    same = request[1:] == request[:-1]
    if not same.any():
        return np.zeros(0), np.zeros(0, np.int64)
    joined = np.zeros(len(request), bool)
    joined[1:] |= same
    joined[:-1] |= same
    request, start, order = request[joined], start[joined], order[joined]
    latest = _running_latest(request, segment_ends(tokens)[order])
    lone = tokens.steps[order] == 0

    # tokens of one request at one instant form a group; only the latest end before the group matters
    new_group = np.ones(len(start), bool)
    new_group[1:] = (request[1:] != request[:-1]) | (start[1:] != start[:-1])
    begin = np.flatnonzero(new_group)
    size = np.diff(np.append(begin, len(start)))
    follows = np.zeros(len(begin), bool)
    follows[1:] = request[begin[1:]] == request[begin[1:] - 1]
    gap = np.zeros(len(begin))
    gap[1:] = start[begin[1:]] - latest[begin[1:] - 1]
    chunk = np.minimum.reduceat(lone, begin) if len(begin) else lone[:0]
    counted = follows & (gap > 0)
    gap = np.where(chunk, gap / size, gap)
    return gap[counted], size[counted]


def _running_latest(request: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Running maximum of `ends` within each run of equal `request`, exactly (through integer ranks)."""
    distinct, rank = np.unique(ends, return_inverse=True)
    group = np.cumsum(np.concatenate([[0], (request[1:] != request[:-1]).astype(np.int64)]))
    return distinct[np.maximum.accumulate(group * len(distinct) + rank) - group * len(distinct)]
