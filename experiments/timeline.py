"""A run over time, in buckets of equal width.

Who ran and waited when follows exactly from the requests' own times. Memory and counters are known at the recorder's samples,
taken before and after stretches of equal steps, and grow evenly in between.
"""

from __future__ import annotations

import numpy as np

from reports.run_data import REFUSED, Requests, Timeline, TokenTimes
from sim.engine.engine import Engine
from sim.engine.recorder import Sample

_BUCKETS = 500
_STATES = ("kv_used", "kv_cached", "kv_reserved", "kv_internal", "kv_external", "kv_free", "swapped")


def build_timeline(engine: Engine, requests: Requests, tokens: TokenTimes, end: float) -> Timeline:
    """The timeline of a run that stopped at `end` seconds."""
    width = _width(end)
    count = max(1, int(np.ceil(end / width - 1e-9)))
    edges = np.minimum(np.arange(count + 1) * width, max(end, width * 1e-9))
    samples = _columns(engine.recorder.samples, engine.state.allocator.capacity)
    states = {name: mean_between(samples["time"], samples[name], edges) for name in _STATES}
    sums = {
        name: _counted(samples["time"], samples[name], edges) for name in ("steps", "prefill_tokens", "decode_rows")
    }
    busy = np.diff(np.interp(edges, samples["time"], samples["busy"])) / np.maximum(np.diff(edges), 1e-12)
    running, waiting = _queues(engine, requests, edges)
    admitted = np.isfinite(requests.admitted)
    changes = engine.recorder.changes.array()
    device, host = _spent(engine, edges)
    return Timeline(
        width=width, time=edges[:-1], running=running, waiting=waiting, **states, steps=sums["steps"],
        prefill_tokens=sums["prefill_tokens"], decode_tokens=sums["decode_rows"],
        output_tokens=_token_counts(tokens, edges), arrivals=_count(requests.sent, edges),
        finished=_count(requests.finish, edges), refused=_count(requests.queued[requests.status == REFUSED], edges),
        preemptions=_count(changes["time"][changes["running"] < 0], edges),
        cached_tokens=_count(requests.admitted[admitted], edges, requests.cached_tokens[admitted]),
        busy=np.clip(busy, 0.0, 1.0), device_seconds=device, host_seconds=host,
    )  # fmt: skip


def client_timeline(requests: Requests, tokens: TokenTimes, until: np.ndarray, end: float) -> Timeline:
    """What a client sees of a server over time: requests sent, in flight and finished, and tokens. What it cannot see is 0,
    and NaN for the KV pool.

    Args:
        until: when each request was over, in whatever way; NaN for one that was not at the end.
    """
    width = _width(end)
    count = max(1, int(np.ceil(end / width - 1e-9)))
    edges = np.minimum(np.arange(count + 1) * width, max(end, width * 1e-9))
    sent = np.isfinite(requests.sent)
    over = until[sent & np.isfinite(until)]
    unseen = {name: np.full(count, np.nan) if name.startswith("kv_") else np.zeros(count) for name in
              ("waiting", *_STATES, "busy")}  # fmt: skip
    nothing = {name: np.zeros(count, np.int64) for name in (
        "steps", "prefill_tokens", "decode_tokens", "refused", "preemptions", "cached_tokens",
    )}  # fmt: skip
    return Timeline(
        width=width, time=edges[:-1], running=level_of([(requests.sent[sent], 1.0), (over, -1.0)], edges), **unseen, **nothing,
        output_tokens=_token_counts(tokens, edges), arrivals=_count(requests.sent, edges),
        finished=_count(requests.finish, edges),
    )  # fmt: skip


def mean_of_samples(engine: Engine, column: str, end: float) -> float:
    """Time-weighted mean of a column of the recorder's samples over a run that stopped at `end` seconds."""
    samples = _columns(engine.recorder.samples, engine.state.allocator.capacity)
    return float(mean_between(samples["time"], samples[column], np.array([0.0, max(end, 1e-9)]))[0])


def _spent(engine: Engine, edges: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Seconds in each bucket that a real engine's device and host spent on steps, evenly from the end of one to that of the
    next; None where nobody timed them."""
    times = getattr(engine.executor, "times", None)
    if times is None:
        return None, None
    columns = times.columns()
    ends = np.concatenate([[0.0], columns["end"]])
    totals = (np.concatenate([[0.0], np.cumsum(columns[name])]) for name in ("device", "host"))
    device, host = (np.diff(np.interp(edges, ends, total)) for total in totals)
    return device, host


def _width(end: float) -> float:
    """A round width that gives at most `_BUCKETS` buckets."""
    least = max(end, 1e-6) / _BUCKETS
    power = 10.0 ** np.floor(np.log10(least))
    return float(next(power * step for step in (1, 2, 5, 10) if power * step >= least * (1 - 1e-12)))


def _columns(samples: list[Sample], capacity: int) -> dict[str, np.ndarray]:
    """Samples as columns, beginning with an empty pool at time 0."""
    empty = Sample(0.0, *([0] * (len(Sample._fields) - 1)))._replace(kv_free=capacity)
    table = np.array([empty, *samples], np.float64)
    return {name: table[:, index] for index, name in enumerate(Sample._fields)}


def _mean(time: np.ndarray, value: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Time-weighted mean in each bucket of a value that holds from one sample to the next."""
    integral = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(time))])
    beyond = np.maximum(edges - time[-1], 0.0) * value[-1]
    return np.diff(np.interp(edges, time, integral) + beyond) / np.maximum(np.diff(edges), 1e-12)


def mean_between(time: np.ndarray, value: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Time-weighted mean in each bucket of a value that changes evenly from one sample to the next."""
    at_edges = np.interp(edges, time, value)
    times = np.concatenate([time, edges])
    order = np.argsort(times, kind="stable")
    times, values = times[order], np.concatenate([value, at_edges])[order]
    integral = np.concatenate([[0.0], np.cumsum((values[1:] + values[:-1]) / 2 * np.diff(times))])
    return np.diff(np.interp(edges, times, integral)) / np.maximum(np.diff(edges), 1e-12)


def _counted(time: np.ndarray, total: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """What a running total gained in each bucket, in whole numbers that add up to the total."""
    at = np.round(np.interp(edges, time, total)).astype(np.int64)
    at[-1] = int(total[-1])
    return np.diff(at)


def _count(times: np.ndarray, edges: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Events in each bucket; one at the very end belongs to the last."""
    known = np.isfinite(times)
    index = np.clip(np.searchsorted(edges, times[known], "right") - 1, 0, len(edges) - 2)
    return np.bincount(index, None if weights is None else weights[known], len(edges) - 1).astype(np.int64)


def _token_counts(tokens: TokenTimes, edges: np.ndarray) -> np.ndarray:
    gained = np.zeros(len(tokens.step_ends) + 1, np.int64)
    np.add.at(gained, tokens.first_step, 1)
    np.add.at(gained, tokens.first_step + tokens.steps, -1)
    return _count(tokens.start, edges) + _count(tokens.step_ends, edges, np.cumsum(gained)[:-1])


def _queues(engine: Engine, requests: Requests, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean numbers of sequences that ran and waited, from when each was queued, admitted, preempted, resumed and gone."""
    left = engine.recorder.departures.array()
    changes = engine.recorder.changes.array()
    queued = requests.queued[np.isfinite(requests.queued) & (requests.status != REFUSED)]
    admitted = requests.admitted[np.isfinite(requests.admitted)]
    gone = _gone(engine, requests, left)
    running = [(admitted, 1.0), (gone, -1.0), (changes["time"], changes["running"])]
    waiting = [(queued, 1.0), (admitted, -1.0), (changes["time"], changes["waiting"])]
    return level_of(running, edges), level_of(waiting, edges)


def _gone(engine: Engine, requests: Requests, left: dict[str, np.ndarray]) -> np.ndarray:
    """When each request's last sample left; answers that are held back leave with their batch."""
    if engine.held_back:
        left = engine.recorder.deliveries.array()
    row = left["row"].astype(np.int64)
    last = np.full(len(requests), np.nan)
    np.fmax.at(last, row, left["time"])
    return last[np.isfinite(last) & np.isfinite(requests.admitted)]


def level_of(events: list[tuple[np.ndarray, float | np.ndarray]], edges: np.ndarray) -> np.ndarray:
    """Time-weighted mean, in each bucket, of a count that events raise and lower."""
    times = np.concatenate([np.asarray(t, np.float64) for t, _ in events] or [np.zeros(0)])
    steps = np.concatenate([np.broadcast_to(np.asarray(s, np.float64), np.shape(t)) for t, s in events])
    order = np.argsort(times, kind="stable")
    times = np.concatenate([[0.0], times[order]])
    level = np.concatenate([[0.0], np.cumsum(steps[order])])
    return np.maximum(_mean(times, level, edges), 0.0)
