"""Intervals of ratios between two runs, by resampling blocks of successive requests.

Requests that queue behind each other are not independent, so blocks of successive ones are drawn, not single ones (Künsch
1989): sixteen, long enough to hold what requests of a busy time have in common. Where both runs had the same traffic the same
blocks are drawn on both sides: what one request took here is held against what the same one took there, and the traffic's own
chance cancels (a paired bootstrap). Otherwise each side is drawn alone.

A resample is a weight for every block. Means and rates are then ratios of weighted block sums; a percentile is found in the
sorted values with their blocks' weights, so that a hundred thousand requests stay quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.metrics import met_slo
from reports.run_data import FINISHED, RunData
from reports.subject import Subject

LEVEL = 0.95
MOST, FEWEST, WORK = 1000, 400, 40_000_000
BLOCKS = 16
TAIL = 0.0139
"""Share of resamples cut off at either end. Resamples of 16 blocks vary too little: the plain 2.5 % would hold some 93 %. Cut is
what a normal law leaves beyond sqrt(16/15) times Student's 2.131 (the expanded percentile interval, Hesterberg 2015)."""
PERCENTILES = {"median": 50.0, "p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


@dataclass(slots=True)
class Sorted:
    """One latency: values in ascending order and the block of each."""

    values: np.ndarray
    blocks: np.ndarray

    def percentiles(self, weights: np.ndarray, wanted: Sequence[float]) -> np.ndarray:
        """Percentiles of the resample in which block `b` was drawn `weights[b]` times; NaN of nothing."""
        reach = np.cumsum(weights[self.blocks])
        size = int(reach[-1]) if len(reach) else 0
        if not size:
            return np.full(len(wanted), np.nan)
        position = (size - 1) * np.asarray(wanted) / 100
        low = position.astype(np.int64)
        places = np.searchsorted(reach, np.concatenate([low, np.minimum(low + 1, size - 1)]), side="right")
        first, second = self.values[places].reshape(2, -1)
        return first + (second - first) * (position - low)


@dataclass(slots=True)
class Sample:
    """A run cut into blocks.

    Attributes:
        blocks: how many.   sums: by name, float64, the amount in each block; `time` is the part of the run that a block took.
        latencies: `ttft`, `tpot`, `e2el`.
    """

    blocks: int
    sums: dict[str, np.ndarray]
    latencies: dict[str, Sorted]


def sample(data: RunData, *, timed: bool, blocks: int | None = None) -> Sample:
    """Cut a run into blocks of successive rows of its traffic."""
    r = data.requests
    count = blocks or max(1, min(BLOCKS, len(r)))
    block = np.minimum(np.arange(len(r)) * count // max(len(r), 1), count - 1)
    done = (r.status == FINISHED) & np.isfinite(r.first_token) & np.isfinite(r.finish) & np.isfinite(r.sent)
    several = done & (r.output_tokens > 1)

    def summed(amount: np.ndarray, where: np.ndarray) -> np.ndarray:
        return np.bincount(block[where], np.asarray(amount, float)[where], count)

    one, gaps = np.ones(len(r)), np.maximum(r.output_tokens - 1, 0)
    admitted = np.isfinite(r.admitted)
    sums = {
        "done": summed(one, done), "outputs": summed(r.output_tokens, done), "inputs": summed(r.input_tokens, done),
        "ttft": summed(r.first_token - r.sent, done), "e2el": summed(r.finish - r.sent, done),
        "tpot": summed((r.finish - r.first_token) / np.maximum(gaps, 1), several), "several": summed(one, several),
        "decoding": summed(r.finish - r.first_token, done), "gaps": summed(gaps, done),
        "cached": summed(r.cached_tokens, admitted), "prompt": summed(r.input_tokens, admitted),
        "sent": summed(one, np.isfinite(r.sent)),
    }  # fmt: skip
    good = met_slo(data)
    if good is not None:
        sums["good"] = summed(one, good)
    if timed:
        sums["time"] = _times(data, block, count)
    columns = {
        "ttft": (r.first_token - r.sent, done), "e2el": (r.finish - r.sent, done),
        "tpot": ((r.finish - r.first_token) / np.maximum(gaps, 1), several),
    }  # fmt: skip
    latencies = {}
    for name, (values, where) in columns.items():
        order = np.argsort(values[where], kind="stable")
        latencies[name] = Sorted(values[where][order], block[where][order])
    return Sample(count, sums, latencies)


def _times(data: RunData, block: np.ndarray, count: int) -> np.ndarray:
    """Seconds of the run that belong to each block: from its first sending to that of the next, the last to the end."""
    sent = np.where(np.isfinite(data.requests.sent), data.requests.sent, np.inf)
    first = np.full(count, np.inf)
    np.minimum.at(first, block, sent)
    end = float(np.nanmax(np.append(data.requests.finish, data.info["end"])))
    edges = np.minimum.accumulate(np.append(first, end)[::-1])[::-1]  # sessions may send a later block's turn earlier
    return np.maximum(np.diff(edges), 0.0)


# (numerator, denominator) of every figure that is a ratio of sums
MEANS = {
    "output_throughput": ("outputs", "time"), "request_throughput": ("done", "time"), "request_goodput": ("good", "time"),
    "slo_attainment": ("good", "sent"), "mean_ttft_ms": ("ttft", "done"), "mean_tpot_ms": ("tpot", "several"),
    "mean_e2el_ms": ("e2el", "done"), "mean_itl_ms": ("decoding", "gaps"), "prefix_hit_rate": ("cached", "prompt"),
}  # fmt: skip


def ratio_intervals(
    first: Subject, second: Subject, *, paired: bool, seed: int = 0, draws: int | None = None
) -> dict[str, tuple[float, float]]:
    """95 % intervals of `second / first` for every figure that both can tell; nothing where either has no requests.

    Args:
        paired: both had the same traffic, request by request.
        draws: how many resamples; None for as many as stay quick.
    """
    if first.data is None or second.data is None or not len(first.data.requests) or not len(second.data.requests):
        return {}
    a = sample(first.data, timed=first.timed)
    b = sample(second.data, timed=second.timed, blocks=a.blocks if paired else None)
    rng = np.random.default_rng([seed, 11])
    size = max(len(first.data.requests), len(second.data.requests))
    draws = draws or int(np.clip(WORK // size, FEWEST, MOST))
    left = _weights(rng, a.blocks, draws)
    right = left if paired else _weights(rng, b.blocks, draws)
    ratios: dict[str, np.ndarray] = {}
    with np.errstate(divide="ignore", invalid="ignore"):
        for key, (over, under) in MEANS.items():
            found = [_rate(s, w, over, under) for s, w in ((a, left), (b, right))]
            if found[0] is not None and found[1] is not None:
                ratios[key] = found[1] / found[0]
        if "time" in a.sums and "time" in b.sums:
            total = [
                (w @ (s.sums["inputs"] + s.sums["outputs"])) / (w @ s.sums["time"]) for s, w in ((a, left), (b, right))
            ]
            ratios["total_token_throughput"] = total[1] / total[0]
        for name in ("ttft", "tpot", "e2el"):
            keys = list(PERCENTILES)
            wanted = [PERCENTILES[key] for key in keys]
            x, y = (
                np.array([s.latencies[name].percentiles(w, wanted) for w in weights])
                for s, weights in ((a, left), (b, right))
            )
            ratios |= {f"{key}_{name}_ms": (y / x)[:, i] for i, key in enumerate(keys)}
    return {key: ends for key, values in ratios.items() if (ends := _ends(values)) is not None}


def _weights(rng: np.random.Generator, blocks: int, draws: int) -> np.ndarray:
    """How often each block is drawn, one row a resample; blocks are drawn with replacement."""
    return rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=draws).astype(np.int64)


def _rate(s: Sample, weights: np.ndarray, over: str, under: str) -> np.ndarray | None:
    if over not in s.sums or under not in s.sums or not s.sums[under].sum():
        return None
    return (weights @ s.sums[over]) / (weights @ s.sums[under])


def _ends(values: np.ndarray) -> tuple[float, float] | None:
    kept = values[np.isfinite(values)]
    if len(kept) < 0.9 * len(values) or not len(kept):
        return None
    low, high = np.quantile(kept, [TAIL, 1 - TAIL])
    return float(low), float(high)
