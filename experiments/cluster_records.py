"""From the records of several replicas to one `RunData`: requests and tokens of all, a timeline that is their sum."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from experiments.admission_limits import gate_reservation, kept_back, learned_reservation, whole_prompts
from experiments.drafts import told
from experiments.front_end_limits import front_end_limits
from experiments.host import host_facts
from experiments.records import Ledger, collect, rows_only
from experiments.scaled_records import gone, scaling_info, while_there
from reports.run_data import Requests, RunData, Timeline, TokenTimes
from sim.engine.state import RESERVING
from workloads.readers.times import alarming
from workloads.traffic import Traffic

if TYPE_CHECKING:
    from experiments.cluster import Cluster
    from experiments.resolve import Resolved
    from experiments.scaled import Scaled


@dataclass(slots=True)
class Seen:
    """Of the load what one replica saw: times of its own rows, NaN elsewhere."""

    due: np.ndarray
    sent: np.ndarray
    queued: np.ndarray


def seen_of(own: np.ndarray, *times: np.ndarray) -> Seen:
    """What a replica saw that had the rows in the mask, of when they were due, sent and queued."""
    return Seen(*(np.where(own, each, np.nan) for each in times))


def assemble(
    resolved: Resolved, traffic: Traffic, cluster: Cluster | Scaled, end: float, complete: bool, loop_seconds: float
) -> RunData:
    """The run of a cluster that stopped at `end` seconds, after `loop_seconds` of ours."""
    parts = []
    for replica in cluster.replicas:
        own = cluster.place == replica.number
        seen = seen_of(own, cluster.source.due, cluster.sent, cluster.queued)
        ledger = Ledger(replica.refused, replica.delivery, end, True)
        parts.append(collect(replica.engine, seen, traffic, ledger))
    requests = _merged(cluster, [part[0] for part in parts])
    if not complete:
        requests = rows_only(requests, np.isfinite(requests.sent) & (requests.sent <= end))
    lines, there = [part[2] for part in parts], None
    if scales := hasattr(cluster, "lives"):
        until = gone(cluster, [part[0] for part in parts], end)
        there = while_there(cluster, lines, until, end)
    tokens, timeline = joined([part[1] for part in parts]), summed(lines, there)
    engines = [replica.engine for replica in cluster.replicas]
    out = float(np.nanmax(requests.finish, initial=0.0)) if np.isfinite(requests.finish).any() else 0.0
    last = max(out, *(replica.delivery.time(end) for replica in cluster.replicas))
    info = {**resolved.info, "complete": complete, "end": last, "process": traffic.name, **told(engines)}
    if scales:
        info["replicas"] = len(cluster.lives)
        info["scaling"] = scaling_info(cluster, until, end, info["gpus"] // resolved.workload.cluster.most)
    timed = resolved.workload.load.mode == "open"
    warnings = [*resolved.warnings, *alarming(traffic.notes, timed=timed), *whole_prompts(engines[0], requests)]
    if engines[0].config.scheduler.gate in RESERVING:
        info["kv_kept_back_share"] = share = float(np.mean([kept_back(engine, requests, end) for engine in engines]))
        warnings += gate_reservation(engines[0], requests, share, resolved.workload.traffic.max_tokens)
    warnings += learned_reservation(engines, requests, resolved.workload.traffic.max_tokens)
    warnings += _front_ends(resolved, requests, last)
    steps, plans = sum(engine.recorder.steps for engine in engines), sum(r.plans for r in cluster.replicas)
    sent = sum(replica.driver.count for replica in cluster.replicas)
    host = host_facts(loop_seconds) | {
        "plans": plans, "requests_per_second": sent / loop_seconds, "steps_per_second": steps / loop_seconds,
    }  # fmt: skip
    provenance = list(getattr(resolved.cost, "provenance", ()))
    return RunData(requests, tokens, timeline, info, resolved.config, provenance, warnings, list(traffic.notes), host)


def _merged(cluster: Cluster, parts: list[Requests]) -> Requests:
    return Requests(**stacked(parts, cluster.place), replica=cluster.place.copy())


def stacked(parts: list[Requests], place: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of every row as its own replica has it; of one that was never routed as any has it."""
    place = np.maximum(place, 0)
    columns = {}
    for name in Requests.__slots__:
        if getattr(parts[0], name) is not None:
            columns[name] = np.stack([getattr(part, name) for part in parts])[place, np.arange(len(place))]
    return columns


def joined(parts: list[TokenTimes]) -> TokenTimes:
    """All segments; the decode steps of one replica after those of another."""
    offset = np.cumsum([0, *(len(part.step_ends) for part in parts[:-1])])
    return TokenTimes(
        np.concatenate([part.request for part in parts]),
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.first_step + before for part, before in zip(parts, offset, strict=True)]),
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.step_ends for part in parts]),
    )


def summed(parts: list[Timeline], there: np.ndarray | None = None) -> Timeline:
    """The sum over replicas; of `busy` the mean, over so many as were `there` in each bucket (all if not told)."""
    columns = {
        each.name: np.sum([getattr(part, each.name) for part in parts], axis=0)
        for each in fields(Timeline)
        if each.name not in ("width", "time")
    }
    columns["busy"] = np.clip(columns["busy"] / (len(parts) if there is None else np.maximum(there, 1e-9)), 0.0, 1.0)
    return Timeline(width=parts[0].width, time=parts[0].time, **columns)


def _front_ends(resolved: Resolved, requests: Requests, seconds: float) -> list[str]:
    """What to tell of front ends, of which each replica has one: of the one that hands out most."""
    tokens = np.bincount(np.maximum(requests.replica, 0), requests.output_tokens)
    busiest = int(tokens.argmax()) if len(tokens) else 0
    found = front_end_limits(resolved.cost.front_end, rows_only(requests, requests.replica == busiest), seconds)
    return [f"replica {busiest}, which has most to do: {text}" for text in found]
