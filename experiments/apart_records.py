"""From the records of prefill and decode engines to one `RunData`.

What a decode engine had counts for what it had; else what the prefill engine had. The timeline is the sum over all engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.cluster_records import joined, seen_of, stacked, summed
from experiments.host import host_facts
from experiments.records import EARLIER_TURN, Ledger, requests_of, rows_only, tokens_of
from experiments.timeline import build_timeline, level_of, mean_of_samples
from reports.run_data import CANCELLED, REFUSED, UNFINISHED, Requests, RunData, Timeline, TokenTimes
from workloads.readers.times import alarming

if TYPE_CHECKING:
    from experiments.apart import Apart
    from experiments.cluster import Member
    from experiments.resolve import Resolved


def assemble(resolved: Resolved, apart: Apart, end: float, complete: bool, loop_seconds: float) -> RunData:
    """The run of prefill and decode engines that stopped at `end` seconds, after `loop_seconds` of ours."""
    traffic = apart.traffic
    ledger_of = lambda member: Ledger(member.refused, member.delivery, end, True)  # noqa: E731
    onward = np.isfinite(apart.handed) | np.isfinite(apart.reserved)
    unfinished = np.zeros(len(traffic), bool)
    unfinished[list(apart._onward)] = True
    before = [
        _part(apart, m, apart.before.place, apart.queued, ledger_of(m), onward | unfinished) for m in apart.prefill
    ]
    first = len(apart.prefill)
    after = [_part(apart, m, apart.after.place + first, apart.handed, ledger_of(m), None) for m in apart.decode]
    requests = _requests(apart, [part[0] for part in before], [part[0] for part in after], onward, complete)
    if not complete:
        requests = rows_only(requests, np.isfinite(requests.sent) & (requests.sent <= end))
    parts = before + after
    timeline = summed([part[2] for part in parts])
    _add_between(apart, timeline, end)
    members = [*apart.prefill, *apart.decode]
    out = float(np.nanmax(requests.finish, initial=0.0)) if np.isfinite(requests.finish).any() else 0.0
    last = max(out, *(member.delivery.time(end) for member in members))
    info = {**resolved.info, "complete": complete, "end": last, "process": traffic.name}
    info["pools"] = {
        name: {**info["pools"][name], **_use(pool, end)}
        for name, pool in (("prefill", apart.prefill), ("decode", apart.decode))
    }
    path, moved = apart.links.path, int(apart.moved[np.isfinite(apart.received)].sum())
    info["transfer"] = {
        "bytes": apart.links.bytes, "tokens": moved, "rate": path.rate,
        "busy_share": apart.links.busy / end / min(len(apart.prefill), len(apart.decode)) if end else None,
    }  # fmt: skip
    timed = resolved.workload.load.mode == "open"
    warnings = [*resolved.warnings, *alarming(traffic.notes, timed=timed)]
    steps, plans = sum(m.engine.recorder.steps for m in members), sum(m.plans for m in members)
    host = host_facts(loop_seconds) | {
        "plans": plans, "requests_per_second": int(np.isfinite(apart.sent).sum()) / loop_seconds,
        "steps_per_second": steps / loop_seconds,
    }  # fmt: skip
    provenance = list(getattr(resolved.cost, "provenance", ()))
    tokens = joined([part[1] for part in parts])
    return RunData(requests, tokens, timeline, info, resolved.config, provenance, warnings, list(traffic.notes), host)


def _part(
    apart: Apart, member: Member, place: np.ndarray, queued: np.ndarray, ledger: Ledger, onward: np.ndarray | None
) -> tuple[Requests, TokenTimes, Timeline]:
    """What one engine has to tell, as the client saw it.

    Args:
        onward: rows that a decode engine continues: their first tokens, and what becomes of them, are its affair. None for one
            that continues them: requests arrived, and were found in caches, elsewhere.
    """
    own = place == member.number
    sent = apart.sent if onward is not None else np.full(len(own), np.nan)
    seen = seen_of(own, sent, sent, queued)
    engine = member.engine
    tokens, _ = tokens_of(engine)
    if onward is not None:
        keep = ~onward[tokens.request]
        columns = (tokens.request, tokens.start, tokens.first_step, tokens.steps)
        tokens = TokenTimes(*(column[keep] for column in columns), tokens.step_ends)
    requests = requests_of(engine, seen, apart.traffic, ledger, tokens)
    if onward is not None:
        requests.finish[onward] = np.nan
    cached = requests.cached_tokens
    if onward is None:
        requests.cached_tokens = np.zeros_like(cached)
    timeline = build_timeline(engine, requests, tokens, ledger.end)
    ledger.delivery.apply(tokens, requests.first_token, requests.finish)
    return requests, tokens, timeline


def _requests(
    apart: Apart, before: list[Requests], after: list[Requests], onward: np.ndarray, complete: bool
) -> Requests:
    """Every row as the engines have it that served it."""
    first, second = stacked(before, apart.before.place), stacked(after, apart.after.place)
    columns = {}
    for name in ("output_tokens", "first_token", "finish", "status", "reason"):
        columns[name] = np.where(onward, second[name], first[name])
    for name in ("recomputed_tokens", "preemptions"):
        columns[name] = first[name] + np.where(onward, second[name], 0)
    columns |= {name: first[name] for name in first if name not in columns}
    columns["sent"], columns["scheduled"] = apart.sent.copy(), apart.source.due.copy()
    columns["queued"] = np.fmin(apart.queued, apart.handed)
    status, reason = columns["status"], columns["reason"]
    waits = np.zeros(len(status), bool)
    waits[list(apart._onward)] = True
    status[waits & ~onward & (status != REFUSED)] = UNFINISHED
    never = np.isnan(apart.sent)
    status[never & complete], reason[never & complete] = REFUSED, EARLIER_TURN
    for member in (*apart.prefill, *apart.decode):
        for row, why in member.refused.items():
            status[row], reason[row] = REFUSED, why
    for row, why in apart.refused.items():
        status[row], reason[row] = REFUSED, why
    gone = (status == REFUSED) | (status == CANCELLED)
    columns["finish"] = np.where(gone, np.nan, columns["finish"])
    return Requests(
        **columns, replica=apart.before.place.copy(), decode_replica=apart.after.place.copy(), prefilled=apart.prefilled,
        handed=apart.handed, reserved=apart.reserved, moving=apart.moving, received=apart.received, moved_tokens=apart.moved,
    )  # fmt: skip


def _add_between(apart: Apart, timeline: Timeline, end: float) -> None:
    """Who has left the prefill engine and is in the queue of no decode engine yet waits, in a front end; and who is in both, with
    memory in one, is counted once."""
    edges = np.append(timeline.time, max(end, timeline.width * 1e-9))
    if apart.push:
        both = np.isfinite(apart.queued) & np.isfinite(apart.reserved)
        over = np.where(np.isnan(apart.prefilled), end, apart.prefilled)
        timeline.running -= level_of([(apart.queued[both], 1.0), (over[both], -1.0)], edges)
        return
    between = np.isfinite(apart.prefilled) & np.isfinite(apart.handed)
    timeline.waiting += level_of([(apart.prefilled[between], 1.0), (apart.handed[between], -1.0)], edges)


def _use(pool: list[Member], end: float) -> dict[str, float | None]:
    """How busy the engines of a pool were, and how full their memory, on average."""
    if not end:
        return {"busy_share": None, "kv_used_mean": None}
    busy = [member.engine.recorder.busy / end for member in pool]
    kv = [mean_of_samples(m.engine, "kv_used", end) / max(m.engine.state.allocator.capacity, 1) for m in pool]
    return {"busy_share": float(np.mean(busy)), "kv_used_mean": float(np.mean(kv))}
