"""What the cost model's own errors do to a run: the run again, with a cost model that errs.

The errors of an operator class are systematic: one draw for a whole run, which does not average out over its steps. So is
what the deployment makes of all of them (`experiments.propagation`).

**By default** there are two more runs, in which every step takes `exp(±1.28 σ)` times as long, σ being the deviation of
that step: the root of the sum of squares of the deployment's deviation and of (share of the class in the step × deviation of the
class). They bound 80 %.
A long workload is not run again as a whole: its first requests (2.5 %, at least 150) are, without errors and with
`exp(1.28 σ)`, and the ratio between the two is taken, upwards and downwards. A few requests do not show how an open load
piles up behind slower steps: `experiments.load_response` says it from the run's mean step, and the wider of the two holds.
Throughput is that of Little's law in a closed loop; in an open one what the engine can keep up with, and how much longer it
takes to work off what is left at the last arrival. All of it takes about
a tenth more time.

**With `--intervals`** the whole workload runs 16 times. Each time every class takes a factor of its own for the whole
run, from a normal distribution cut into as many equally likely parts as there are draws (a Latin hypercube, whose order
is fixed by the seed); and drawn traffic another seed. The interval runs from the 10th to the 90th percentile of the draws.

Time before and after the engine (the front end) is taken to be as uncertain as the host's. A deployment calibrated on a
served run is as uncertain as the loads held out were wrong, if that is less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, isfinite
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.error_parts import error_parts
from experiments.load_response import mean_shape, respond
from experiments.propagation import ErringCost, Mix
from reports.metrics import distributions, met_slo, summarize
from reports.run_data import FINISHED
from reports.uncertainty import FIGURES, LATENCIES, LEVEL, RATES, SPREAD, STATS, Z, uncertain
from workloads.streams import Streams

if TYPE_CHECKING:
    from experiments.resolve import Resolved
    from reports.run_data import RunData

DRAWS = 16
SHORT, SHARE = 200, 0.025
"""Requests up to which a workload is run again as a whole, and the share of it that is run otherwise."""
PART = 150
STEPS = 20_000
"""Engine steps up to which a rerun is short, however few requests take them."""


def add_spread(
    resolved: Resolved,
    data: RunData,
    summary: dict,
    *,
    draws: int = 0,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Put what the cost model's errors do to a finished run into `data.info`, and the intervals that follow from it into its
    summary; nothing where the cost model states no errors.

    Args:
        draws: runs with drawn errors and traffic; 0 for the two quick ones.
        tell: called with (runs done, runs in all).
    """
    cost = resolved.cost
    known = cost is not None and all(hasattr(cost, name) for name in ("uncertainty", "explain", "front_end"))
    if not known or not data.info.get("complete", True) or not len(data.requests):
        return
    found = _drawn(resolved, data, summary, draws, tell) if draws else _quick(resolved, data, summary, tell)
    data.info[SPREAD] = found | error_parts(_mix(resolved, data), data, summary, _deployment(resolved))
    summary["interval"] = uncertain(data, summary, distributions(data), met_slo(data))


def _quick(resolved: Resolved, data: RunData, summary: dict, tell: Callable[[int, int], None]) -> dict[str, Any]:
    """Two more runs: of all requests of a short workload, of the first of a long one."""
    mix = _mix(resolved, data)
    rows = rows_to_repeat(len(data.requests), int(data.timeline.steps.sum()))
    costs = mix.both_ends()
    if rows == len(data.requests):
        found = []
        for cost in costs:
            found.append(_summary(resolved, cost))
            tell(len(found), 2)
        figures = {key: _around(summary.get(key), [f.get(key) for f in found], key) for key in FIGURES}
        return {"method": "two runs", "draws": 0, "traffic": False, "figures": _filled(figures)}
    from workloads.transform import limit

    part = replace(resolved, _traffic=limit(resolved.traffic, rows))
    base = _summary(part, None)
    tell(1, 2)
    slow = _summary(part, costs[1])
    tell(2, 2)
    figures = {}
    for key in FIGURES:
        change = (_changes(base.get(key), [slow.get(key)], key) or [None])[-1]
        figures[key] = change and sorted((change, 1 / change))
    figures = carried_over(_filled(figures), data, summary, mix)
    return {"method": f"the first {rows:,} requests", "draws": 0, "traffic": False, "figures": figures}


def carried_over(figures: dict[str, list[float]], data: RunData, whole: dict, mix: Mix) -> dict[str, list[float]]:
    """What happens to the figures of a few requests, made to hold for the whole run that they are from.

    Args:
        figures: factors of the first requests. whole: figures of the whole run.
    """
    if data.info["load"].get("mode") == "closed":  # Little's law
        low, high = figures.get("mean_e2el_ms", [1.0, 1.0])
        rates = [1 / high, 1 / low]
    else:
        rates = _queued(figures, data, mix, whole)
    figures |= {key: rates for key in RATES if whole.get(key)}
    attained = [attainment(data, figures, side) for side in (1, 0)]
    figures.pop("slo_attainment", None)
    if None not in attained and whole.get("slo_attainment") is not None:
        now = whole["slo_attainment"]
        figures["slo_attainment"] = [min(attained[0] - now, 0.0), max(attained[1] - now, 0.0)]
    return figures


def _queued(figures: dict[str, list[float]], data: RunData, mix: Mix, whole: dict) -> list[float]:
    """Widens latencies of an open load by what few requests do not show: that slower steps fill up the engine.

    Returns:
        The factors of its throughputs.
    """
    mean = mean_shape(data)
    if mean is None:
        return [1.0, 1.0]
    shape, often = mean
    mixed, plain = (mix.deviation(mix.of(s)) for s in (shape, shape._replace(chunks=())))
    factor = exp(Z * (plain + min(often, 1.0) * (mixed - plain)))
    if whole["saturation"]["label"] == "overloaded":
        return [1 / factor, factor]
    slow, fast = respond(mix.cost, data, factor), respond(mix.cost, data, 1 / factor)
    for name in LATENCIES:
        waits = slow.wait * 1e3 if name in ("ttft", "e2el") else 0.0
        # Faster steps shorten what is no queue by little more than their own factor, whatever slower ones pile up in one.
        idle = min((whole.get("mean_queue_ms") or 0.0) / (whole.get(f"mean_{name}_ms") or 1.0), 1.0) if waits else 0.0
        least = fast.latency**1.5 * (1 - idle)
        for stat, p in STATS.items():
            key = f"{stat}_{name}_ms"
            value = whole.get(key)
            if key in figures and value:
                later = waits * (0.5 if p is None else p / 100) / value
                low, high = figures[key]
                figures[key] = [max(min(low, fast.latency), min(least, 1.0)), max(high, slow.latency) + later]
    return [min(slow.served, _worked_off(data, whole, factor)), _worked_off(data, whole, 1 / factor)]


def _worked_off(data: RunData, whole: dict, factor: float) -> float:
    """Factor of the throughput if what is worked off after the last arrival takes `factor` times as long: in a backlog that
    came all at once this is all of the run, in a steady load next to nothing."""
    sent = data.requests.sent[np.isfinite(data.requests.sent)]
    if not whole.get("duration") or not len(sent):
        return 1.0
    after = min(max(1 - float(np.ptp(sent)) / whole["duration"], 0.0), 1.0)
    return 1 / (1 - after + after * factor)


def attainment(data: RunData, figures: Mapping[str, list[float]], side: int) -> float | None:
    """Share of the requests sent that would meet the SLO if all TTFT, TPOT and E2E went by the factors of their means."""
    r = data.requests
    limits = data.info.get("slo") or {}
    sent = int(np.isfinite(r.sent).sum())
    if not limits or not sent:
        return None
    took = {
        "ttft": r.first_token - r.sent,
        "tpot": (r.finish - r.first_token) / np.maximum(r.output_tokens - 1, 1) * (r.output_tokens > 1),
        "e2e": r.finish - r.sent,
    }
    good = r.status == FINISHED
    for name, values in took.items():
        if limits.get(f"{name}_ms"):
            factor = figures.get(f"mean_{'e2el' if name == 'e2e' else name}_ms", [1.0, 1.0])[side]
            with np.errstate(invalid="ignore"):
                good = good & (values * factor * 1e3 <= limits[f"{name}_ms"])
    return int(good.sum()) / sent


def rows_to_repeat(requests: int, steps: int) -> int:
    """How many of the first requests are run again: all of a short run, a small share of a long one."""
    if requests <= SHORT and steps <= STEPS:
        return requests
    most = max(STEPS * requests / max(steps, 1), SHARE * requests)
    return min(max(int(min(max(PART, SHARE * requests), most)), 1), requests)


def _deployment(resolved: Resolved) -> str:
    """Two runs with the same text here are taken to be of one build of one engine, set up by the same hands: that made most
    of the difference between public reports, and the machine little."""
    return f"{resolved.gpu.vendor} {resolved.engine.host}"


def _mix(resolved: Resolved, data: RunData) -> Mix:
    mean = mean_shape(data)
    return Mix(resolved.cost, mean and mean[0]._replace(chunks=()))


def _drawn(
    resolved: Resolved, data: RunData, base: dict, draws: int, tell: Callable[[int, int], None]
) -> dict[str, Any]:
    """Runs with drawn errors, and drawn traffic where there is any; the run itself is always inside."""
    mix = _mix(resolved, data)
    seed = resolved.workload.seed
    errors = drawn_errors(mix.deviations, draws, seed)
    synthetic = resolved.workload.traffic.synthetic is not None
    found = []
    for draw in range(draws):
        again = _reseeded(resolved, draw + 1) if synthetic else resolved
        factors = {kind: column[draw] for kind, column in errors.items()}
        found.append(_summary(again, mix.erring(lambda shares, factors=factors: mix.weighted(shares, factors))))
        tell(draw + 1, draws)
    figures = {key: _quantiles(base.get(key), [f.get(key) for f in found], key) for key in FIGURES}
    spread = {"method": "draws", "draws": draws, "traffic": synthetic, "figures": _filled(figures)}
    if synthetic:  # for comparisons, which look at the chance in the traffic by themselves
        spread["cost"] = _quick(resolved, data, base, lambda done, total: None)["figures"]
    return spread


def drawn_errors(deviations: Mapping[str, float], draws: int, seed: int) -> dict[str, list[float]]:
    """For each class the factor of each draw: the middles of `draws` equally likely parts, in an order of their own."""
    normal = NormalDist()
    middles = [normal.inv_cdf((i + 0.5) / draws) for i in range(draws)]
    errors = {}
    for kind in sorted(deviations):
        order = Streams(seed).get(f"errors of {kind}").permutation(draws)
        errors[kind] = [exp(deviations[kind] * middles[i]) for i in order]
    return errors


def _reseeded(resolved: Resolved, draw: int) -> Resolved:
    """The same workload with traffic of another seed."""
    from experiments.traffic import make_traffic

    seed = int(Streams(resolved.workload.seed).get("traffic of draws", draw).integers(1 << 31))
    workload = resolved.workload.model_copy(update={"seed": seed})
    return replace(resolved, _traffic=make_traffic(workload, resolved.budget.max_model_len))


def _summary(resolved: Resolved, cost: ErringCost | None) -> dict:
    from experiments import runner

    data = runner.run(resolved if cost is None else replace(resolved, cost=cost))
    if not data.info["complete"]:
        raise KeyboardInterrupt
    return summarize(data, with_intervals=False)


# From figures of the runs to an interval


def _around(base: float | None, ends: Sequence[float | None], key: str) -> list[float] | None:
    """The least and the greatest change of a figure, no change included."""
    values = _changes(base, ends, key)
    return values and [min(values), max(values)]


def _quantiles(base: float | None, found: Sequence[float | None], key: str) -> list[float] | None:
    """10th and 90th percentile of the changes, stretched to include no change."""
    values = _changes(base, found, key)
    if not values or len(values) <= len(found):  # `_changes` adds one
        return None
    low, high = np.quantile(values[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="hazen")
    return [min(float(low), values[0]), max(float(high), values[0])]


def _changes(base: float | None, found: Sequence[float | None], key: str) -> list[float] | None:
    """No change, and the change to each: factors; differences for the attainment, which is a share."""
    if base is None or any(value is None for value in found):
        return None
    if key == "slo_attainment":
        return [0.0, *(value - base for value in found)]
    if not base > 0 or not all(value > 0 for value in found):
        return None
    return [1.0, *(value / base for value in found)]


def _filled(figures: dict[str, list[float] | None]) -> dict[str, list[float]]:
    """Percentiles that a short rerun withholds take what the mean of the same latency takes."""
    for name in LATENCIES:
        for stat in STATS:
            key = f"{stat}_{name}_ms"
            figures[key] = figures[key] or figures[f"mean_{name}_ms"]
    return {key: ends for key, ends in figures.items() if ends and all(isfinite(end) for end in ends)}
