"""80 % intervals of predictions: how far the cost model's own errors and what a source leaves open may put them off.

Errors of an operator class are one draw for a whole run, so they do not average out over its steps
(`experiments.propagation`). Where no clock but the engine's own sets the pace (static batches, offline runs, closed loops) every
latency and every throughput goes with the time of a step, and its deviation is that of the mean step with or without
prefill; a first token has its front end besides. Under an open loop slower steps also queue: there the point is simulated twice
more, with steps slower and faster by their deviation, as `experiments.intervals` does for a run.

What is not stated in a row adds to that (`experiments.validation.unstated`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp, hypot
from typing import Any

from experiments.load_response import mean_shape
from experiments.propagation import FRONT, Mix
from experiments.validation.load import OPEN as OPEN_LOOP
from experiments.validation.load import PHASE
from experiments.validation.metrics import LATENCIES
from reports.uncertainty import Z
from sim.cost.base import DecodeLine, StepShape


def deviations(point: Any, data: Any, mix: Mix, first_token: float) -> dict[str, float]:
    """Deviation of each quantity's logarithm that the cost model's errors make; empty where a run has no steps.

    Args:
        first_token: mean TTFT, seconds.
    """
    mean = mean_shape(data)
    if mean is None:
        return {}
    shape = mean[0]
    plain, mixed = (mix.deviation(mix.of(each)) for each in (shape._replace(chunks=()), shape))
    prompts, answers = float(data.requests.input_tokens.sum()), float(data.requests.output_tokens.sum())
    whole = max(plain, mixed) if prompts > answers else plain
    if point.kind == PHASE and point.phase == "prefill":
        whole = mixed
    outside = (
        mix.cost.front_end.request_seconds(int(data.requests.input_tokens.mean())) + mix.cost.front_end.token_seconds
    )
    share = min(outside / first_token, 1.0) if first_token > 0 else 0.0
    first = hypot((1 - share) * mixed, share * mix.deviations[FRONT])
    return {"ttft_ms": first, "tpot_ms": whole, "itl_ms": whole, "e2e_latency_ms": whole, "rate": whole}


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
    if not hasattr(resolved.cost, "uncertainty"):
        return {}
    mean = mean_shape(data)
    mix = Mix(
        resolved.cost, mean and mean[0]._replace(chunks=()), elsewhere=0.0
    )  # `unstated` has what a row leaves open
    if point.kind == OPEN_LOOP:
        return _queued(point, resolved, mix, figures)
    found = deviations(point, data, mix, figures.get("ttft_ms_mean", 0.0) * 1e-3)
    factors = {}
    for key in figures if found else ():
        name = next((each for each in LATENCIES if key.startswith(each)), "rate")
        factors[key] = [exp(-Z * found[name]), exp(Z * found[name])]
    return factors


def _queued(point: Any, resolved: Any, mix: Mix, figures: Mapping[str, float]) -> dict[str, list[float]]:
    """The factors of an open loop: from two more simulations."""
    from experiments import runner
    from experiments.validation.simulate import latencies, throughputs

    ends: dict[str, list[float]] = {key: [1.0] for key in figures}
    for cost in mix.both_ends():
        data = runner.run(replace(resolved, cost=cost))
        again = latencies(point.kind, data) | throughputs(point, data.requests)
        for key, value in figures.items():
            if value and again.get(key):
                ends[key].append(again[key] / value)
    return {key: [min(found), max(found)] for key, found in ends.items()}
