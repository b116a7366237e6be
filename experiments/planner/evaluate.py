"""One candidate with so many replicas: simulated, held against the SLO, and what stands in the way told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from experiments import runner
from experiments.load_response import mean_shape
from experiments.planner.bounds import first_token
from experiments.planner.demand import Demand, declared
from experiments.planner.slo import Limit
from experiments.resolve import Resolved
from reports.kv_use import kv_use
from reports.metrics import distributions
from reports.percentiles import Distribution
from reports.run_data import FINISHED, RunData
from reports.saturation import OVERLOADED, saturation
from reports.wording import number
from workloads.errors import InputError

KV_FULL = 0.95  # peak share of the pool from which on it counts as full
QUEUED = 2.0  # times what a first token takes alone, from which on it is said to queue
SAFE = 4  # times as many requests as a percentile needs at least
BINDS = {
    "compute": "compute", "memory": "memory bandwidth", "link": "links between GPUs", "host": "host time",
    "latency": "launch time",
}  # fmt: skip
KV, QUEUE = "KV memory", "queueing"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a simulation said.

    Attributes:
        replicas: of how many it was one.   requests: simulated.
        figures: summary key → milliseconds (None where too few finished); of every limit.
        ratios: those over what is allowed, in the order of the limits: all at most 1 where the SLO is met.
        meets: whether it is.   reason: why not.
        overloaded: the queue grew for as long as requests came.
        binds: what stands in the way of more load: one of BINDS' values, `KV memory` or `queueing`.
        batch: mean sequences decoding.   kv_peak: share of the pool.
        output_rate: tokens a second of a replica.
    """

    replicas: int
    requests: int
    figures: dict[str, float | None]
    ratios: tuple[float, ...]
    meets: bool
    reason: str
    overloaded: bool
    binds: str
    batch: float
    kv_peak: float
    output_rate: float

    @property
    def worst(self) -> float:
        """The largest ratio."""
        return max(self.ratios)


def evaluate(resolved: Resolved, demand: Demand, limits: Sequence[Limit], replicas: int, rows: int) -> Evaluation:
    """`evaluate_run` without the run."""
    return evaluate_run(resolved, demand, limits, replicas, rows)[0]


def evaluate_run(
    resolved: Resolved, demand: Demand, limits: Sequence[Limit], replicas: int, rows: int
) -> tuple[Evaluation, RunData]:
    """Simulate a replica of `replicas`, or several where one gets too few requests for the percentiles.

    Args:
        rows: requests to simulate at most of one replica.

    Returns:
        What it says, and the run of the first replica.

    Raises:
        InputError: the traffic is too small for the percentiles asked for.
    """
    fewest = max(limit.fewest for limit in limits)
    each = max(len(demand.traffic) // replicas, 1)
    sessions = int((demand.traffic.parent < 0).sum())
    shards = min(ceil(SAFE * fewest / min(each, rows)), replicas, sessions)
    runs = [_run(resolved, demand, replicas, which, rows) for which in range(shards)]
    requests = sum(len(run.requests) for run in runs)
    if requests < fewest:
        raise InputError(f"the traffic has {requests} requests, and the SLO's percentiles need {fewest}")
    return _judge(resolved, runs, limits, replicas, requests), runs[0]


def prepared(resolved: Resolved, demand: Demand, replicas: int, which: int, rows: int) -> Resolved:
    """The candidate with a replica's traffic."""
    from dataclasses import replace

    workload = resolved.workload
    traffic = declared(demand.share(replicas, which, rows), workload, resolved.budget.max_model_len)
    if demand.concurrency:
        load = workload.load.model_copy(update={"concurrency": max(ceil(demand.concurrency / replicas), 1)})
        workload = workload.model_copy(update={"load": load})
        info = {**resolved.info, "load": load.plain()}
        return replace(resolved, workload=workload, info=info, _traffic=traffic)
    return replace(resolved, _traffic=traffic)


def _run(resolved: Resolved, demand: Demand, replicas: int, which: int, rows: int) -> RunData:
    data = runner.run(prepared(resolved, demand, replicas, which, rows))
    if not data.info["complete"]:
        raise KeyboardInterrupt
    return data


def _judge(
    resolved: Resolved, runs: list[RunData], limits: Sequence[Limit], replicas: int, requests: int
) -> Evaluation:
    found = pooled([distributions(run) for run in runs])
    figures = {limit.key: figure(found, limit) for limit in limits}
    overloaded = any(saturation(run)["label"] == OVERLOADED for run in runs)
    unserved = sum(int((run.requests.status != FINISHED).sum()) for run in runs)
    ratios = tuple(
        float("inf") if (value := figures[limit.key]) is None else value / (limit.seconds * 1e3) for limit in limits
    )
    reason = _reason(figures, ratios, limits, overloaded, unserved, requests)
    use = [kv_use(run) for run in runs]
    seconds = sum(float(run.info["end"]) for run in runs)
    steps = sum(int(run.timeline.steps.sum()) for run in runs)
    worst = limits[int(np.argmax(ratios))]
    peak = max(each["kv_used_peak"] or 0.0 for each in use)
    return Evaluation(
        replicas, requests, figures, ratios, not reason, reason, overloaded,
        what_binds(resolved, runs, worst, figures[worst.key], peak, overloaded),
        sum(int(run.timeline.decode_tokens.sum()) for run in runs) / steps if steps else 0.0, peak,
        sum(int(run.requests.output_tokens.sum()) for run in runs) / seconds if seconds else 0.0,
    )  # fmt: skip


def pooled(parts: Sequence[dict[str, Distribution]]) -> dict[str, Distribution]:
    """Distributions of several replicas as one."""
    if len(parts) == 1:
        return parts[0]
    return {
        name: Distribution.of(
            np.concatenate([each[name].values for each in parts]), np.concatenate([each[name].counts for each in parts])
        )
        for name in parts[0]
    }


def figure(found: dict[str, Distribution], limit: Limit) -> float | None:
    """A limit's statistic in milliseconds; None where too few requests finished."""
    d = found["e2el" if limit.metric == "e2e" else limit.metric]
    if limit.metric in ("tpot", "itl") and not d.count:
        return 0.0  # answers of one token have no gaps
    value = d.mean() if limit.percentile is None else d.percentile(limit.percentile)
    return None if value is None else value * 1e3


def _reason(
    figures: dict, ratios: Sequence[float], limits: Sequence[Limit], overloaded: bool, unserved: int, requests: int
) -> str:
    """Why the SLO is not met; "" where it is."""
    if unserved:
        return f"{unserved:,} of {requests:,} requests were not served"
    broken = [
        f"{limit.name} {number(figures[limit.key], 'ms')} > {number(limit.seconds * 1e3, 'ms')}"
        for limit, ratio in zip(limits, ratios, strict=True)
        if ratio > 1
    ]
    if overloaded:
        return "overloaded: its queue grows" + (f"; {', '.join(broken)}" if broken else "")
    return ", ".join(broken)


def what_binds(
    resolved: Resolved, runs: Sequence[RunData], worst: Limit, value: float | None, peak: float, overloaded: bool
) -> str:
    """What stands in the way: KV memory where the pool is full and requests wait for it or are preempted; queueing where the
    first token takes several times what it takes alone, although the engine keeps up; else what the mean step spends most of
    its time on.

    Args:
        worst: the limit that is nearest or broken most, and `value` its figure in milliseconds.   peak: of the KV pool.
    """
    waits, served, preempted = 0.0, 0.0, 0
    for run in runs:
        r = run.requests
        waits += float(np.nansum(r.admitted - r.queued))
        served += float(np.nansum(r.finish - r.admitted))
        preempted += int(r.preemptions.sum())
    if preempted or (peak >= KV_FULL and waits > 0.02 * served):
        return KV
    if worst.metric == "ttft" and not overloaded and value is not None:
        prompt = np.concatenate([run.requests.input_tokens for run in runs])
        alone = first_token(
            resolved, int(prompt.mean() if worst.percentile is None else np.percentile(prompt, worst.percentile))
        )
        if value > QUEUED * alone * 1e3:
            return QUEUE
    mean = mean_shape(runs[0])
    if mean is None:
        return QUEUE
    shape, chunks = mean
    seconds: dict[str, float] = {}
    for part, weight in ((shape, min(chunks, 1.0)), (shape._replace(chunks=()), 1 - min(chunks, 1.0))):
        for operator in resolved.cost.explain(part):
            seconds[operator.bound] = seconds.get(operator.bound, 0.0) + weight * operator.seconds
    return BINDS.get(max(seconds, key=lambda bound: seconds[bound]), QUEUE)
