"""Reports of guidellm: JSON or YAML with `benchmarks[]`, one for each rate or number of streams of a run.

What we call TPOT is its `inter_token_latency_ms` (first token left out), which its own statistics weigh by tokens; its
`time_per_output_token_ms` has the first token in it and is not used. Where the report holds every request, TPOT is computed
from these, every request once. Gaps between single tokens are not in the file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reports.imports.build import integers, subject_of, title
from reports.imports.fields import MOST_SECONDS, MOST_TOKENS, Fields, spread, told_unknown
from reports.imports.records import Records
from reports.subject import Subject
from workloads.errors import InputError, Place

TOOL = "guidellm"
_METRICS = {
    "requests_per_second": "request_throughput", "output_tokens_per_second": "output_throughput",
    "tokens_per_second": "total_token_throughput", "request_concurrency": "mean_concurrency",
}  # fmt: skip
_VERSIONS = (1, 2)
_KNOWN = (
    "type_", "id_", "run_id", "run_index", "args", "config", "benchmarker", "worker", "request_loader", "env_args", "extras",
    "run_stats", "scheduler_state", "scheduler_metrics", "scheduler", "request_totals", "backend", "requests", "metrics",
    "warmup_duration", "cooldown_duration", "environment", "start_time", "end_time", "duration", "request_samples",
)  # fmt: skip


def is_result(raw: Any) -> bool:
    """Whether a parsed file is such a report."""
    return isinstance(raw, dict) and isinstance(raw.get("benchmarks"), list)


def from_raw(raw: Any, file: str) -> list[Subject]:
    """A run for every benchmark of a parsed report.

    Raises:
        InputError: naming the key that is missing or wrong.
    """
    report = Fields(raw, file)
    items = report.items("benchmarks") or []
    if not items:
        raise InputError("has no benchmarks", place=Place(file=file, key="benchmarks"))
    metadata = report.inner("metadata")
    version, written = metadata.get("version"), metadata.text("guidellm_version") or ""
    notes = ["TPOT is guidellm's inter_token_latency_ms; gaps between single tokens are not in the file"]
    if isinstance(version, int) and version not in _VERSIONS:
        notes.append(f"report version {version} is newer than those known here ({', '.join(map(str, _VERSIONS))})")
    return [
        _benchmark(Fields(item, file, f"benchmarks[{i}]"), f"guidellm {written}".strip(), notes, len(items) > 1)
        for i, item in enumerate(items)
    ]


def _benchmark(f: Fields, written: str, notes: list[str], several: bool) -> Subject:
    metrics = f.inner("metrics")
    totals = Fields(metrics.get("request_totals") or f.get("request_totals") or {}, f.file, f"{f.where}.request_totals")
    completed, errored, cut = (totals.count(key) for key in ("successful", "errored", "incomplete"))
    reported: dict[str, float | None] = {
        "duration": _duration(f), "completed": completed, "failed": None if errored is None else errored + (cut or 0),
    }  # fmt: skip
    for key, name in _METRICS.items():
        reported[name] = _ok(metrics, key).number("mean")
    for key, name in (("prompt_token_count", "total_input_tokens"), ("output_token_count", "total_output_tokens")):
        counts = _ok(metrics, key)
        mean = counts.number("mean")
        whole = counts.number("total_sum")
        reported[name] = whole if whole is not None else None if mean is None or completed is None else mean * completed
    reported |= spread(_ok(metrics, "time_to_first_token_ms"), "ttft_ms", 1.0, std="std_dev")
    reported |= spread(_ok(metrics, "inter_token_latency_ms"), "tpot_ms", 1.0, std="std_dev")
    reported |= spread(_ok(metrics, "request_latency"), "e2el_ms", 1e3, std="std_dev")
    if not completed:
        reported = {k: v for k, v in reported.items() if not k.endswith("_ms")}
    load, kind = _load(f)
    records, told = _records(f, completed, (errored or 0) + (cut or 0))
    model = _model(f)
    for key in _KNOWN:
        f.get(key)
    size = totals.count("total")
    return subject_of(
        tool=TOOL, name=title(model or "guidellm", kind if several or model else ""), source=f.file, reported=reported,
        load=load, records=records, config={"model": model, "strategy": kind, "load": load} if model else {"load": load},
        notes=[*notes, *told, *told_unknown(f.unknown(), written)], requests=size if size is not None else completed, model=model,
    )  # fmt: skip


def _ok(metrics: Fields, key: str) -> Fields:
    return metrics.inner(key).inner("successful")


def _duration(f: Fields) -> float | None:
    found = f.number("duration")
    if found is None:
        start, end = f.number("start_time"), f.number("end_time")
        found = end - start if start is not None and end is not None else None
    if found is not None and found <= 0:
        raise f.error("duration", f"must be more than 0, is {found:g}")
    return found


def _strategy(f: Fields) -> Fields:
    """Where versions keep it: `config.strategy`, before that `args.strategy` or `scheduler.strategy`."""
    for outer in ("config", "args", "scheduler"):
        inner = f.raw.get(outer)
        if isinstance(inner, dict) and isinstance(inner.get("strategy"), dict):
            return Fields(inner["strategy"], f.file, f"{f.where}.{outer}.strategy")
    return Fields({}, f.file)


def _load(f: Fields) -> tuple[dict[str, Any], str]:
    """The load, and a few words on it."""
    s = _strategy(f)
    kind = s.text("type_") or s.text("kind") or ""
    rate, streams = s.number("rate"), s.count("streams")
    if kind == "synchronous":
        return {"mode": "closed", "concurrency": 1}, "one at a time"
    if kind == "concurrent":
        return {"mode": "closed", **({"concurrency": streams} if streams else {})}, f"{streams} streams"
    if kind == "throughput":
        cap = s.count("max_concurrency")
        return {"mode": "closed", "concurrency": cap} if cap else {"mode": "open"}, "throughput"
    if rate is not None:
        return {"mode": "open", "rate": rate}, f"{rate:g} requests/s"
    return {}, kind


def _model(f: Fields) -> str | None:
    for outer, key in (("config", "model"), ("backend", "model"), ("config", "backend"), ("worker", "backend_model")):
        inner = f.raw.get(outer)
        value = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(value, dict):
            value = value.get("model")
        if isinstance(value, str):
            return value
    return None


def _records(f: Fields, completed: int | None, others: int) -> tuple[Records | None, list[str]]:
    """Every request, or a word on why not: reports may hold a sample of them only, or none."""
    raw = f.raw.get("requests")
    groups = raw if isinstance(raw, dict) else {}
    held = Fields(groups, f.file, f"{f.where}.requests")
    good, *others_held = (
        [Fields(r, f.file, f"{held.where}.{name}[{i}]") for i, r in enumerate(held.items(name) or [])]
        for name in ("successful", "errored", "incomplete")
    )
    bad = [row for group in others_held for row in group]
    if not good:
        return None, []
    if completed is not None and (len(good) != completed or len(bad) > others):
        return None, [f"the report holds {len(good)} requests of {completed}: figures are as reported"]
    rows = [*good, *bad]

    def column(key: str, factor: float = 1.0, most: float = MOST_SECONDS) -> np.ndarray:
        values = [row.number(key, most=most / factor, finite=True) for row in rows]
        return np.array([np.nan if v is None else v * factor for v in values])

    starts = column("request_start_time")
    ok = np.arange(len(rows)) < len(good)
    ttft, gap, outputs = (
        column("time_to_first_token_ms", 1e-3),
        column("inter_token_latency_ms", 1e-3),
        column("output_tokens", most=MOST_TOKENS),
    )
    # to the last token, as TPOT wants it; request_latency goes on to the end of the stream
    latency = np.where(np.isfinite(gap) & (outputs > 1), ttft + gap * (outputs - 1), column("request_latency"))
    records = Records(
        ttft, latency, integers(column("prompt_tokens", most=MOST_TOKENS), len(rows)), integers(outputs, len(rows)), ok,
        ["" if good_one else "errored" for good_one in ok], starts if np.isfinite(starts).all() else None, None,
    )  # fmt: skip
    names = "time_to_first_token_ms", "request_latency"
    return records.check(lambda i, key, message: rows[i].error(key, message), *names), []
