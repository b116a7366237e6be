"""From what an importer found to a subject: figures under our definitions, and a word where they differ from the tool's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from reports.fingerprint import leaves
from reports.imports.records import Records, run_of
from reports.metrics import summarize
from reports.subject import Subject
from reports.traffic import Traffic
from reports.wording import clean, number

APART = 0.01
_UNLIKE, _OTHER_UNIT = 0.1, 30.0
"""A rate may be so far from its amount over the duration; latencies may be so many times off what the load says of them."""
_ALWAYS = ("tpot", "ttft", "e2el")
_RATES = (
    "duration", "request_throughput", "output_throughput", "total_token_throughput", "arrival_rate",
    "max_output_tokens_per_s", "max_concurrent_requests", "mean_concurrency", "steady_output_throughput",
)  # fmt: skip
_OF_COUNTS = ("completed", "failed", "total_input_tokens", "total_output_tokens")
_FROM_RECORDS = (*_OF_COUNTS, *_RATES)
STATS = ("mean", "median", "std", "p50", "p90", "p95", "p99")


def subject_of(
    *, tool: str, name: str, source: str, reported: dict[str, float | None], load: dict[str, Any],
    records: Records | None = None, config: dict[str, Any] | None = None, notes: Iterable[str] = (),
    requests: int | None = None, model: str | None = None,
) -> Subject:  # fmt: skip
    """Put a subject together.

    Args:
        reported: figures that the file itself has, under our keys.
        load: {"mode", "rate"?, "concurrency"?} as far as known.
        records: every request, where the file has them; latencies are then computed from these under our definitions, rates
            too if the times of sending are known.
        requests: how many were sent, where there are no records.
    """
    notes = list(notes)
    settings = {str(key): value for key, value, _ in leaves(config or {})}
    known = {k: v for k, v in reported.items() if v is not None}
    notes += _contradictions(known, load)
    if records is None:
        traffic = Traffic(
            None, requests, _whole(known.get("total_input_tokens")), _whole(known.get("total_output_tokens")),
            load.get("mode"), load.get("concurrency"), load.get("rate"),
        )  # fmt: skip
        if known.get("failed"):  # totals are of the finished ones only
            traffic = Traffic(None, requests, None, None, load.get("mode"), load.get("concurrency"), load.get("rate"))
        summary = {"requests": requests, **known} if requests is not None else known
        return Subject(name, source, tool, _complete(summary), traffic, settings, notes=tuple(notes), timed=False)
    info = {"name": name, "backend": tool, "model": model, "load": {"mode": load.get("mode") or "open", **_given(load)}}
    run = run_of(records, info, notes)
    timed = records.sent is not None
    if not timed:
        run.info |= {"sent_seen": False, "reported": {k: v for k, v in _complete(dict(known)).items() if k in _RATES}}
    computed = summarize(run, with_intervals=False)
    summary, other = _merged(computed, known, timed=timed, tokens_seen=records.gaps is not None)
    notes += _apart(tool, other)
    failed = bool((run.requests.status != "finished").any())
    traffic = Traffic(
        None, len(run.requests), int(records.inputs.sum()), None if failed else int(records.outputs.sum()),
        load.get("mode"), load.get("concurrency"), load.get("rate"),
    )  # fmt: skip
    run.notes[:] = notes
    return Subject(name, source, tool, summary, traffic, settings, data=run, timed=timed, notes=tuple(notes))


def _merged(
    computed: dict, known: dict, *, timed: bool, tokens_seen: bool
) -> tuple[dict, dict[str, tuple[float, float]]]:
    """One summary: ours where records tell, the file's elsewhere; and where both do and are apart, (file's, ours)."""
    own = [f"{stat}_{name}_ms" for name in _ALWAYS for stat in STATS]
    if tokens_seen:
        own += [f"{stat}_itl_ms" for stat in STATS]
    own += list(_FROM_RECORDS if timed else _OF_COUNTS)
    summary = {"requests": computed["requests"], **known}
    apart = {}
    for key in own:
        value = computed.get(key)
        if value is None and key in known:
            continue  # too few requests for this percentile: the file's is as good as any
        summary[key] = value
        theirs = known.get(key)
        if theirs is not None and value is not None and abs(value - theirs) > APART * max(abs(theirs), abs(value)):
            apart[key] = (theirs, value)
    for key in ("failed_reasons", "latency_counts", "saturation", "slo_attainment", "littles_law"):
        summary[key] = computed[key]
    return _complete(summary), apart


def _apart(tool: str, other: dict[str, tuple[float, float]]) -> list[str]:
    if not other:
        return []
    shown = [f"{key} {number(theirs)} there, {number(ours)} here" for key, (theirs, ours) in list(other.items())[:4]]
    more = f" and {len(other) - 4} more" if len(other) > 4 else ""
    return [
        f"{tool} counts some figures otherwise; computed from its requests by our definitions: {'; '.join(shown)}{more}"
    ]


def _contradictions(known: dict[str, float], load: dict[str, Any]) -> list[str]:
    """Where a file's own figures cannot all be true, as where one was put into another unit by hand."""
    notes, seconds = [], known.get("duration")
    for rate, amount in (
        ("output_throughput", known.get("total_output_tokens")), ("request_throughput", known.get("completed")),
    ):  # fmt: skip
        if seconds and amount and known.get(rate) and abs(known[rate] * seconds / amount - 1) > _UNLIKE:
            notes.append(
                f"its figures disagree: {rate} is {number(known[rate])}, but what was done in its duration "
                f"({number(amount)} in {number(seconds)} s) gives {number(amount / seconds)}"
            )
    mean, cap = known.get("mean_e2el_ms"), load.get("concurrency")
    if load.get("mode") == "closed" and cap and mean and seconds and known.get("completed"):
        flight = mean / 1e3 * known["completed"] / seconds  # Little's law
        if not min(cap, known["completed"]) / _OTHER_UNIT < flight < cap * _OTHER_UNIT:
            notes.append(
                f"its figures disagree: latencies of {number(mean)} ms at its rate are {number(flight)} requests in flight, and "
                f"its concurrency is {cap:,}; are they in milliseconds?"
            )
    return notes


def _complete(summary: dict) -> dict:
    """Totals that follow from others."""
    if summary.get("duration") is None and summary.get("request_throughput") and summary.get("completed"):
        summary["duration"] = summary["completed"] / summary["request_throughput"]
    inputs, outputs, seconds = (summary.get(k) for k in ("total_input_tokens", "total_output_tokens", "duration"))
    if seconds:
        for key, amount in (
            ("output_throughput", outputs), ("request_throughput", summary.get("completed")),
            ("total_token_throughput", None if inputs is None or outputs is None else inputs + outputs),
        ):  # fmt: skip
            if summary.get(key) is None and amount is not None:
                summary[key] = amount / seconds
    return summary


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _given(load: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in load.items() if k != "mode" and v is not None}


def integers(values: Sequence[float] | None, size: int) -> np.ndarray:
    """Token counts as int64; what is missing or negative is 0."""
    if values is None:
        return np.zeros(size, np.int64)
    return np.maximum(np.nan_to_num(np.asarray(values, float)), 0).astype(np.int64)


def title(*parts: object) -> str:
    """A name from what is known of a run."""
    return clean(" ".join(str(p) for p in parts if p not in (None, "")), 120) or "measured"
