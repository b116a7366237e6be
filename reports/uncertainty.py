"""How far each figure of a run may be off: 80 % intervals, from the cost model's errors and from the chance in the traffic.

**Cost.** A simulated run is made again with a cost model that errs (`experiments.intervals`); what becomes of each figure
then is kept in the run as `info["cost_spread"]`: the factors by which it went down and up.

**Chance.** Arrivals and lengths drawn at random would come out otherwise with another seed; a real engine would not take
the same time twice. A mean is a sum over requests, its standard error that of sums over blocks of successive requests
(batch means), which counts requests that queue behind each other once and not many times. The blocks vary about a
straight line, so that a queue that grows throughout is not taken for chance. Throughputs are ratios of two sums,
percentiles the share of values below them (Woodruff 1952). A trace in simulation has no chance in it: there, cost alone
counts. Of simulated seeds 60-85 % fell into such intervals of TTFT, E2E latency and throughput, 40-70 % into those of TPOT,
which is one for all requests of a time: its truth is wider.

The two parts are independent and add up in quadrature, on a logarithmic scale.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, hypot, isfinite, log
from typing import Any

import numpy as np

from reports.percentiles import Distribution
from reports.run_data import FINISHED, RunData

LEVEL, Z = 0.8, 1.2816
BLOCKS, FEWEST = 12, 8
STATS = {"mean": None, "median": 50, "p50": 50, "p90": 90, "p95": 95, "p99": 99}
LATENCIES = ("ttft", "tpot", "itl", "e2el")
RATES = ("request_throughput", "output_throughput", "total_token_throughput")
FIGURES = (*RATES, "request_goodput", "slo_attainment", *(f"{s}_{n}_ms" for n in LATENCIES for s in STATS))
"""The figures that carry an interval, by their key in the summary."""

SPREAD = "cost_spread"
"""Key of `RunData.info` with what the cost model's errors do: {"method", "draws", "traffic", "figures": {key: [low, high]}};
factors, for `slo_attainment` differences. `traffic` says that the draws had traffic of their own, so that chance is in."""


def uncertain(
    data: RunData, summary: dict, found: dict[str, Distribution], good: np.ndarray | None = None
) -> dict | None:
    """The intervals of a run.

    Args:
        summary: its figures. found: its latencies, of `metrics.distributions`.
        good: which requests met the SLO, if there is one.

    Returns:
        {"level", "from": which of "cost" and "traffic" are in them, "method": how cost was treated, "draws",
        "figures": {key: [low, high]}}; None where nothing is known of either.
    """
    spread = data.info.get(SPREAD) or {}
    drawn = _by_chance(data) and not spread.get("traffic")
    chance = _chance(data, found, good) if drawn else {}
    factors = spread.get("figures", {})
    if not factors and not chance:
        return None
    figures = {}
    for key in FIGURES:
        value = summary.get(key)
        if value is None or key in ("slo_attainment", "request_goodput"):
            continue
        ends = _joined(value, factors.get(key), chance.get(key))
        if ends is not None:
            figures[key] = ends
    figures |= _attained(summary, factors.get("slo_attainment"), chance.get("slo_attainment"))
    parts = (["cost"] if factors else []) + (["traffic"] if chance or spread.get("traffic") else [])
    return {
        "level": LEVEL, "from": parts, "method": spread.get("method"), "draws": spread.get("draws"),
        "figures": {key: figures[key] for key in FIGURES if key in figures},
    }  # fmt: skip


def _by_chance(data: RunData) -> bool:
    """Whether the run would come out otherwise if it were made again: drawn traffic, or a real engine."""
    return data.info.get("backend", "sim") != "sim" or "synthetic" in (data.config.get("traffic") or {})


def _joined(value: float, cost: list[float] | None, chance: tuple[float, float] | None) -> list[float] | None:
    """Low and high end of a figure; each side is the root of the sum of squares of its logarithms."""
    if cost is None and chance is None:
        return None
    low, high = cost or (1.0, 1.0)
    less, more = chance or (1.0, 1.0)
    return [value * exp(-hypot(log(low), log(less))), value * exp(hypot(log(high), log(more)))]


def _attained(s: dict, cost: list[float] | None, chance: tuple[float, float] | None) -> dict[str, list[float]]:
    """Attainment is a share, so its parts are differences; goodput goes with it."""
    share = s.get("slo_attainment")
    if share is None or (cost is None and chance is None):
        return {}
    (low, high), (less, more) = cost or (0.0, 0.0), chance or (0.0, 0.0)
    ends = [max(share - hypot(low, less), 0.0), min(share + hypot(high, more), 1.0)]
    sent = s["request_goodput"] / share if share and s["request_goodput"] else (s["request_throughput"] or 0.0)
    return {"slo_attainment": ends, "request_goodput": [end * sent for end in ends]}


# Chance


def _chance(data: RunData, found: dict[str, Distribution], good: np.ndarray | None) -> dict[str, tuple[float, float]]:
    """Factors below and above of every figure that chance moves; differences for the attainment."""
    r = data.requests
    done = (r.status == FINISHED) & np.isfinite(r.first_token) & np.isfinite(r.finish) & np.isfinite(r.sent)
    rows = np.flatnonzero(done)
    if len(rows) < FEWEST:
        return {}
    rows = rows[np.argsort(r.sent[rows], kind="stable")]
    first, last, sent = r.first_token[rows], r.finish[rows], r.sent[rows]
    tokens = r.output_tokens[rows].astype(float)
    gaps = np.maximum(tokens - 1, 0)
    several = gaps > 0
    values = {"ttft": first - sent, "e2el": last - sent, "tpot": ((last - first)[several] / gaps[several])}
    factors: dict[str, tuple[float, float]] = {}
    for name, column in values.items():
        factors |= _latency(name, column, found[name])
    factors |= _even("mean_itl_ms", _relative(last - first, gaps))
    # what a request takes of the run: the time to the next one, or, in a closed loop, its stay (Little's law)
    stay = np.diff(sent, append=sent[-1:]) if data.info["load"].get("mode") != "closed" else last - sent
    amounts = (np.ones(len(rows)), tokens, tokens + r.input_tokens[rows])
    for key, amount in zip(RATES, amounts, strict=True) if stay.any() else ():  # all at once: no times to go by
        factors |= _even(key, _relative(amount, stay))
    if good is not None:
        off = Z * _error(good[rows].astype(float))
        factors["slo_attainment"] = (off, off)
    return factors


def _latency(name: str, values: np.ndarray, d: Distribution) -> Iterable[tuple[str, tuple[float, float]]]:
    """Mean and percentiles of one latency; `values` in the order in which requests were sent."""
    if len(values) < FEWEST:
        return {}
    found = _even(f"mean_{name}_ms", _relative(values, np.ones(len(values))))
    ends: dict[int, tuple[float, float]] = {}
    for p in sorted({p for p in STATS.values() if p is not None}):
        at = d.quantile(p)
        if not at > 0:
            continue
        share = p / 100
        error = max(_error((values > at).astype(float)), (share * (1 - share) / len(values)) ** 0.5)
        low, high = (d.quantile(100 * min(max(share + side * Z * error, 0.0), 1.0)) for side in (-1, 1))
        if low > 0 and isfinite(high):
            ends[p] = (low / at, high / at)
    return found | {f"{stat}_{name}_ms": ends[p] for stat, p in STATS.items() if p in ends}


def _even(key: str, relative: float) -> dict[str, tuple[float, float]]:
    return {key: (exp(-Z * relative), exp(Z * relative))} if relative < 2 else {}


def _relative(amount: np.ndarray, base: np.ndarray) -> float:
    """Relative standard error of `sum(amount) / sum(base)`."""
    total, whole = float(amount.sum()), float(base.sum())
    if total <= 0 or whole <= 0:
        return 0.0
    return _error(amount - total / whole * base) * len(amount) / total


def _error(values: np.ndarray) -> float:
    """Standard error of a mean, from the means of blocks of successive values about the line through them."""
    n = len(values)
    edges = np.linspace(0, n, min(BLOCKS, n) + 1).astype(np.int64)[:-1]
    means = np.add.reduceat(values, edges) / np.diff(edges, append=n)
    if len(means) < 4:
        return 0.0
    place = np.arange(len(means)) - (len(means) - 1) / 2
    rest = means - means.mean() - place * (np.dot(place, means) / np.dot(place, place))
    return float(np.sqrt(np.dot(rest, rest) / (len(means) - 2) / len(means)))


def interval_of(summary: dict, key: str) -> list[float] | None:
    """Low and high end of a figure; None where it has no interval."""
    return ((summary.get("interval") or {}).get("figures") or {}).get(key)


def told(summary: dict) -> str:
    """One sentence on what the intervals of a run hold."""
    found: dict[str, Any] | None = summary.get("interval")
    if not found:
        return ""
    causes = {"cost": "the errors of the cost model", "traffic": "the chance in the traffic"}
    return f"Ranges hold with {found['level']:.0%} probability, given {' and '.join(causes[p] for p in found['from'])}."
