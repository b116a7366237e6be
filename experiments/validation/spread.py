"""80 % intervals of predictions: how far the cost model's own errors and what a source leaves open may put them off.

Errors of an operator class are one draw for a whole run, so they do not average out over its steps. Where no clock but the
engine's own sets the pace (static batches, offline runs, closed loops) every latency and every throughput goes with the
time of a step, and its deviation is that of the mean step with or without prefill. Under an open loop slower steps also
queue: there the point is simulated twice more, with steps slower and faster by that deviation.

What is not stated in a row adds to that (`experiments.validation.unstated`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Any

from experiments.validation.load import OPEN as OPEN_LOOP
from experiments.validation.load import PHASE
from experiments.validation.metrics import LATENCIES
from sim.cost.base import DecodeLine, StepShape

Z = 1.2816
"""Half of an 80 % interval, in standard deviations."""


def mean_steps(data: Any) -> tuple[StepShape, StepShape]:
    """The mean step of a run, and the same with a prompt in it that is as long as the mean."""
    r, t = data.requests, data.timeline
    steps = max(int(t.steps.sum()), 1)
    outputs = r.output_tokens.astype(float)
    context = float((outputs * (r.input_tokens + outputs / 2)).sum() / max(outputs.sum(), 1.0))
    rows = max(round(int(t.decode_tokens.sum()) / steps), 1)
    prompt = max(round(float((r.input_tokens - r.cached_tokens).mean())), 1)
    return StepShape(rows, round(rows * context), (), rows), StepShape(
        rows, round(rows * context), ((prompt, 0),), rows + 1
    )


def deviations(point: Any, data: Any, cost: Any) -> dict[str, float]:
    """Deviation of each quantity's logarithm that the cost model's errors make; empty where it states none."""
    if not hasattr(cost, "step_uncertainty"):
        return {}
    plain, mixed = (cost.step_uncertainty(shape) for shape in mean_steps(data))
    prompts, answers = float(data.requests.input_tokens.sum()), float(data.requests.output_tokens.sum())
    whole = max(plain, mixed) if prompts > answers else plain
    if point.kind == PHASE and point.phase == "prefill":
        plain = whole = mixed
    return {"ttft_ms": mixed, "tpot_ms": whole, "itl_ms": whole, "e2e_latency_ms": whole, "rate": whole}


class Slower:
    """A cost model whose steps all take `factor` times as long."""

    def __init__(self, cost: Any, factor: float) -> None:
        self._cost, self._factor = cost, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cost, name)

    def step_seconds(self, shape: StepShape) -> float:
        """Duration of a step."""
        return self._factor * self._cost.step_seconds(shape)

    def decode_line(self, rows: int, context: int) -> DecodeLine:
        """Line for decode-only steps."""
        line = self._cost.decode_line(rows, context)
        return line._replace(intercept=self._factor * line.intercept, slope=self._factor * line.slope)


def spread_of(point: Any, resolved: Any, data: Any, figures: Mapping[str, float]) -> dict[str, list[float]]:
    """Key of a figure → the factors by which it may be lower and higher, from the cost model's errors alone."""
    found = deviations(point, data, resolved.cost)
    if not found:
        return {}
    if point.kind == OPEN_LOOP:
        return _queued(point, resolved, max(found["tpot_ms"], found["ttft_ms"]), figures)
    factors = {}
    for key in figures:
        name = next((each for each in LATENCIES if key.startswith(each)), "rate")
        factors[key] = [exp(-Z * found[name]), exp(Z * found[name])]
    return factors


def _queued(point: Any, resolved: Any, deviation: float, figures: Mapping[str, float]) -> dict[str, list[float]]:
    """The factors of an open loop: from two more simulations."""
    from dataclasses import replace

    from experiments import runner
    from experiments.validation.simulate import latencies, throughputs

    ends: dict[str, list[float]] = {key: [1.0] for key in figures}
    for side in (-1, 1):
        data = runner.run(replace(resolved, cost=Slower(resolved.cost, exp(side * Z * deviation))))
        again = latencies(point.kind, data) | throughputs(point, data.requests)
        for key, value in figures.items():
            if value and again.get(key):
                ends[key].append(again[key] / value)
    return {key: [min(found), max(found)] for key, found in ends.items()}
