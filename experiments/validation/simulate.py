"""One point simulated: its figures under the protocol's own definitions.

Latencies are those of `reports.metrics`, save that a static batch is one thing: its first token is there when all of its
sequences have theirs, its latency ends with its last token. Throughput counts whole runs, ramp and drain included.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from experiments.validation.load import NONE, OFFLINE, PHASE, STATIC
from experiments.validation.points import Point
from experiments.validation.spread import Slower, spread_of

PERCENTILES = (50, 75, 90, 95, 99)
WARM_UP = "warm-up"  # status of rows that are not counted
WAVES, FEWEST = 6, 1000  # of an offline run at least so much is simulated


@dataclass(slots=True)
class Result:
    """What became of a point.

    Attributes:
        figures: by `Metric.key`, of the whole deployment. error: why there are none.
        warnings: of the simulator, and what this run showed (preemptions, queueing).
        config: dotted key → value, what was simulated. sources: what the cost figures are calibrated on.
        spread: by figure, the factors that the cost model's own errors may put it off by (`experiments.validation.spread`).
        facts: numbers for the tables: KV pool, running limit, mean running, mean step. seconds: wall time it took.
    """

    figures: dict[str, float] = field(default_factory=dict)
    error: str = ""
    warnings: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    spread: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def from_plain(cls, plain: dict) -> Result:
        """From what `plain` gave."""
        names = {each.name for each in fields(cls)}
        return cls(**{key: value for key, value in plain.items() if key in names})

    def plain(self) -> dict:
        """JSON-ready."""
        return asdict(self)


def simulate(point: Point) -> Result:
    """Run a point. A deployment that cannot be (it does not fit, heads do not divide) is a result with an error."""
    from experiments import runner
    from workloads.errors import InputError

    began = time.perf_counter()
    try:
        resolved = _resolved(point.workload)
        if point.kind == NONE:
            result = Result({"kv_capacity_tokens": float(resolved.budget.kv_tokens * point.share)})
        else:
            resolved = _cut(point, resolved)
            _settle_cost(point, resolved)
            data = runner.run(resolved)
            result = _result(point, resolved, data)
    except (InputError, ValueError) as error:  # pydantic's errors are ValueErrors
        return Result(error=_sentence(error), seconds=time.perf_counter() - began)
    if not result.error:
        _describe(result, resolved)
    result.seconds = time.perf_counter() - began
    return result


def _resolved(workload: dict) -> Any:
    """A workload, ready to run."""
    from experiments import runner
    from experiments.schema import Workload

    return runner.resolve(Workload.model_validate(workload))


def _sentence(error: Exception) -> str:
    found = getattr(error, "errors", None)
    if callable(found):
        first = found()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error).splitlines()[0]


def _cut(point: Point, resolved: Any) -> Any:
    """Simulate only as many requests of an offline run as its steady rate needs."""
    if point.kind != OFFLINE or "synthetic" not in point.workload["traffic"]:
        return resolved
    synthetic = point.workload["traffic"]["synthetic"]
    enough = max(FEWEST, WAVES * running_limit(resolved, point))
    if synthetic["requests"] <= enough:
        return resolved
    workload = copy.deepcopy(point.workload)
    workload["traffic"]["synthetic"]["requests"] = enough
    point.requests = synthetic["requests"]
    return _resolved(workload)


def _mean(law: Any) -> float:
    if isinstance(law, dict):
        return law.get("mean") or (law["low"] + law["high"]) / 2
    return float(law)


def running_limit(resolved: Any, point: Point) -> int:
    """Requests that may run at once: by the scheduler's limit and by the KV pool."""
    synthetic = point.workload["traffic"]["synthetic"]
    length = _mean(synthetic["input_tokens"]) + _mean(synthetic["output_tokens"])
    return max(min(resolved.engine.scheduler.max_num_seqs, resolved.budget.batch(length)), 1)


def _settle_cost(point: Point, resolved: Any) -> None:
    """No HTTP front end where the protocol has none; the fitted host time or pace where there is one."""
    if resolved.pools is not None:
        _settle_cost(point, resolved.pools.prefill)
    cost = resolved.cost
    if not point.front_end and hasattr(cost, "front_end"):
        cost.front_end = cost.front_end.scaled(0.0)
    elif point.stream > 1 and hasattr(cost, "front_end"):
        cost.front_end = replace(cost.front_end, output_work=cost.front_end.output_work / point.stream)
    if point.host_ms:
        cost.host = replace(cost.host, exposed=cost.host.exposed + point.host_ms * 1e-3)
    if point.pace != 1.0:
        resolved.cost = Slower(cost, point.pace)


def _result(point: Point, resolved: Any, data: Any) -> Result:
    r = data.requests
    done = r.status == "finished"
    if not done.all():
        reasons = {str(reason) for reason in r.reason[~done]}
        return Result(
            error=f"{int((~done).sum())} of {len(r)} requests were not served: {'; '.join(sorted(reasons))[:200]}"
        )
    if point.skip:
        r.status[r.request < point.skip] = WARM_UP
    figures = latencies(point.kind, data)
    figures |= throughputs(point, r)
    result = Result(figures, warnings=[each for each in resolved.warnings if not _names_a_preset(each)])
    running = data.timeline.running
    result.facts = {
        "kv_tokens": float(resolved.budget.kv_tokens),
        "max_num_seqs": float(resolved.engine.scheduler.max_num_seqs),
        "mean_running": float(running.mean()) if len(running) else 0.0,
        "peak_waiting": float(data.timeline.waiting.max()) if len(running) else 0.0,
        "preemptions": float(r.preemptions.sum()),
        "queue_ms": float((r.admitted - r.queued).mean() * 1e3),
        "cached_share": float(r.cached_tokens.sum() / r.input_tokens.sum()),
        "requests": float(len(r)),
    }
    result.warnings += _seen(point, resolved, r)
    result.spread = spread_of(point, resolved, data, figures)
    return result


def latencies(kind: str, data: Any) -> dict[str, float]:
    """TTFT, TPOT, ITL and E2E in ms, their mean and percentiles."""
    from reports.metrics import distributions
    from reports.percentiles import Distribution

    found = distributions(data)
    if kind == STATIC:
        found |= {name: Distribution.of(found[name].values[-1:]) for name in ("ttft", "e2el")}
    figures: dict[str, float] = {}
    for name, key in (("ttft", "ttft_ms"), ("tpot", "tpot_ms"), ("itl", "itl_ms"), ("e2el", "e2e_latency_ms")):
        if found[name].count:
            figures[f"{key}_mean"] = found[name].mean() * 1e3
            figures |= {f"{key}_p{p}": found[name].quantile(p) * 1e3 for p in PERCENTILES}
    return figures


def throughputs(point: Point, r: Any) -> dict[str, float]:
    """Tokens and requests a second of the whole deployment, and how long the run took."""
    seconds = float(r.finish.max() - r.sent.min())
    scale = 1.0
    if point.requests > len(r):
        whole = seconds + (point.requests - len(r)) / steady_rate(r.finish)
        scale, seconds = point.requests / len(r), whole
    inputs, outputs = float(r.input_tokens.sum()) * scale, float(r.output_tokens.sum()) * scale
    figures = {
        "output_tokens_per_s": outputs / seconds, "total_tokens_per_s": (inputs + outputs) / seconds,
        "input_tokens_per_s": inputs / seconds, "request_per_s": len(r) * scale / seconds,
    }  # fmt: skip
    if point.kind == PHASE and point.phase == "decode":
        longest = float((r.finish - r.first_token).max())
        figures["output_tokens_per_s"] = float((r.output_tokens - 1).sum()) / longest
    figures = {key: value * point.share for key, value in figures.items()}
    return {**figures, "makespan_s": seconds}


def steady_rate(finish: np.ndarray) -> float:
    """Requests a second between the first and the third quarter of those that finished."""
    ends = np.sort(finish)
    low, high = len(ends) // 4, 3 * len(ends) // 4
    seconds = ends[high] - ends[low]
    return (high - low) / seconds if seconds > 0 else len(ends) / ends[-1]


def _names_a_preset(warning: str) -> bool:
    """Whether it only tells which preset a row's version is of: no doubt, unless ranges are wider for it."""
    return " is simulated as " in warning and "ranges are wider" not in warning


def _seen(point: Point, resolved: Any, r: Any) -> list[str]:
    """What the run itself gives reason to be careful about."""
    found = []
    limit = resolved.engine.scheduler.max_num_seqs
    if r.preemptions.sum() > 0.02 * len(r):
        found.append("requests are preempted: KV memory is short")
    if point.kind == STATIC and len(r) > 1:
        admitted = r.admitted - r.queued
        if len(r) > limit or (admitted.max() > 0 and resolved.engine.scheduler.name == "static"):
            found.append("the batch does not run at once: it is larger than the engine's limit or its KV memory")
    return found


def _describe(result: Result, resolved: Any) -> None:
    for key, leaf in _leaves("", resolved.config):
        if key.startswith(("engine.", "backend.", "model")):
            result.config[key] = leaf
    sources = [entry.get("source", "") for entry in getattr(resolved.cost, "provenance", ())]
    result.sources = list(dict.fromkeys(str(source) for source in sources if source))


def _leaves(prefix: str, node: Any) -> list[tuple[str, Any]]:
    if isinstance(node, dict):
        if set(node) == {"value", "source"}:
            value = node["value"]
            return [(prefix, value if not isinstance(value, float) or math.isfinite(value) else str(value))]
        return [leaf for key, inner in node.items() for leaf in _leaves(f"{prefix}.{key}" if prefix else key, inner)]
    return []
