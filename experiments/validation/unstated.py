"""What a measured row leaves open, and how much wider the interval around its prediction is for it.

Each is the standard deviation of the logarithm of a figure. They are estimates, set once so that about 80 % of all counted
cells lie inside their interval; none of them looks at a cell's value, source or GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, hypot, log
from typing import Any

from experiments.validation.metrics import Metric
from reports.uncertainty import Z

DEVIATIONS = {
    "measured": 0.05,  # the same cell measured with two neighbouring versions of an engine differs by 3-8 %
    "deployment": 0.1,  # drivers, clocks, settings that no table tells
    "engine version": 0.1,
    "weights": 0.2,
    "KV type": 0.05,
    "routing": 0.15,  # how evenly tokens choose their experts
    "lengths": 0.15,  # only a mean is stated
    "first token": 0.3,  # how the load was ramped up, and the front end
    "repeated prompts": 0.5,  # how much of a prompt was cached when it came again, for first tokens
    "no warm-up": 0.8,  # how long kernels were compiled while the first requests waited, for first tokens
}


def left_open(row: Any, metric: Metric, deployment: Any) -> dict[str, float]:
    """What the row of a deployment does not say, of `DEVIATIONS`."""
    mapped = deployment.mapped
    applies = {
        "measured": True,
        "deployment": True,
        "engine version": not row.engine_version,
        "weights": not row.weight_dtype,
        "KV type": not row.kv_dtype and mapped.weights not in ("bf16", "fp16", "auto"),
        "routing": bool(deployment.model.experts),
        "lengths": any("mean" in str(text) for text in (row.isl, row.osl)),
        "first token": metric.quantity == "ttft_ms",
        "repeated prompts": metric.quantity == "ttft_ms" and mapped.prompts > 0,
        "no warm-up": metric.quantity == "ttft_ms" and _held_up(row, metric, deployment),
    }
    return {name: DEVIATIONS[name] for name, does in applies.items() if does}


def _held_up(row: Any, metric: Metric, deployment: Any) -> bool:
    """Whether requests that waited for kernels to be compiled weigh in a figure.

    They do in the mean of a closed loop, which begins with as many as it holds, and in the tail of longer runs.
    """
    late = deployment.mapped.cold and bool(deployment.model.experts)
    return late and (row.load_kind == "closed_loop_concurrency" or metric.statistic in ("p90", "p95", "p99"))


def interval(predicted: float, factors: list[float], besides: Mapping[str, float]) -> tuple[float, float]:
    """The 80 % interval around a prediction: the cost model's factors and what is left open, in quadrature of logarithms."""
    more = Z * hypot(*besides.values())
    low, high = factors
    return predicted * exp(-hypot(log(low), more)), predicted * exp(hypot(log(high), more))
