"""Reports of inference-perf: `summary_lifecycle_metrics.json`, `stage_N_lifecycle_metrics.json`, one for every stage of a load,
and `per_request_lifecycle_metrics.json` with every request. Seconds throughout.

Its E2E latency ends with the stream. Its gaps between tokens are nought inside a chunk; ours spread a chunk's gap over its
tokens.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from reports.imports.build import integers, subject_of, title
from reports.imports.fields import MOST_SECONDS, MOST_TOKENS, Fields, read_json, spread, told_unknown
from reports.imports.records import Records
from reports.subject import Subject
from workloads.errors import InputError, Place

TOOL = "inference-perf"
SUMMARY, REQUESTS = "summary_lifecycle_metrics.json", "per_request_lifecycle_metrics.json"
_STAGE = re.compile(r"stage_(\d+)_lifecycle_metrics\.json")
_LATENCIES = {
    "time_to_first_token": "ttft_ms", "time_per_output_token": "tpot_ms", "inter_token_latency": "itl_ms",
    "request_latency": "e2el_ms",
}  # fmt: skip
_RATES = {
    "requests_per_sec": "request_throughput", "output_tokens_per_sec": "output_throughput",
    "total_tokens_per_sec": "total_token_throughput",
}  # fmt: skip


def is_result(raw: Any) -> bool:
    """Whether parsed JSON is a summary or a stage."""
    return isinstance(raw, dict) and isinstance(raw.get("successes"), dict) and "load_summary" in raw


def is_requests(raw: Any) -> bool:
    """Whether parsed JSON is the list of every request."""
    return (
        isinstance(raw, list) and bool(raw) and isinstance(raw[0], dict) and {"start_time", "end_time"} <= set(raw[0])
    )


def is_folder(folder: Path) -> bool:
    """Whether a folder holds its reports."""
    return (folder / SUMMARY).is_file() or any(_STAGE.fullmatch(p.name) for p in folder.iterdir())


def read_folder(folder: Path) -> list[Subject]:
    """A run for each stage; with a single stage every request goes with it, where the folder has them.

    Raises:
        InputError: naming the file and key at fault.
    """
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _STAGE.fullmatch(path.name))]
    stages = [path for _, path in sorted(found)] or [folder / SUMMARY]
    requests = folder / REQUESTS
    records = _records(read_json(requests), str(requests)) if len(stages) == 1 and requests.is_file() else None
    return [_subject(read_json(path), str(path), records, len(stages) > 1) for path in stages]


def from_raw(raw: Any, file: str) -> Subject:
    """The run of a parsed summary, stage or list of requests."""
    if is_requests(raw):
        return _subject({}, file, _records(raw, file), False)
    return _subject(raw, file, None, False)


def _subject(raw: Any, file: str, records: Records | None, several: bool) -> Subject:
    f = Fields(raw, file)
    good, bad, load = f.inner("successes"), f.inner("failures"), f.inner("load_summary")
    latency, rates = good.inner("latency"), good.inner("throughput")
    reported: dict[str, float | None] = {
        "duration": f.number("benchmark_time_seconds"), "completed": good.count("count"), "failed": bad.count("count"),
        "total_input_tokens": _tokens(good, "prompt_tokens", "prompt_len"),
        "total_output_tokens": _tokens(good, "output_tokens", "output_len"),
        "request_goodput": good.inner("goodput_metrics").number("request_goodput"),
    }  # fmt: skip
    for key, name in _RATES.items():
        reported[name] = rates.number(key)
    for key, name in _LATENCIES.items():
        if isinstance(latency.get(key), dict):
            reported |= spread(latency.inner(key), name, 1e3)
    rate, cap = load.number("requested_rate"), load.count("concurrency")
    asked: dict[str, Any] = (
        {"mode": "closed", "concurrency": cap} if cap else {"mode": "open", "rate": rate} if rate else {}
    )
    stage = _STAGE.fullmatch(Path(file).name)
    name = title(TOOL, f"stage {stage[1]}" if stage and several else "", f"at {rate:g}/s" if rate and not cap else "")
    f.get("retries")
    notes = ["E2E latency of inference-perf ends with the stream, not with the last token"] if records is None else []
    count = load.count("count")
    return subject_of(
        tool=TOOL, name=name, source=file, reported=reported, load=asked, records=records,
        config={"load": asked} if asked else {},
        requests=count if count is not None else None, notes=[*notes, *told_unknown(f.unknown())],
    )  # fmt: skip


def _tokens(good: Fields, totals: str, lengths: str) -> float | None:
    """A sum of tokens; of older reports, the mean length times requests."""
    total = good.inner(totals).number("total") if isinstance(good.get(totals), dict) else None
    if total is not None:
        return total
    mean = good.inner(lengths).number("mean") if isinstance(good.get(lengths), dict) else None
    count = good.count("count")
    return mean * count if mean is not None and count is not None else None


def _records(raw: Any, file: str) -> Records:
    """Every request, from `computed_metrics` where they are there, else from the times of its tokens."""
    if not isinstance(raw, list) or not raw:
        raise InputError("must be a list of requests", place=Place(file=file))
    rows = [_request(Fields(item, file, f"[{i}]")) for i, item in enumerate(raw)]
    ttft, latency, inputs, outputs, sent = (np.array([row[i] for row in rows], float) for i in range(5))
    errors = [row[5] for row in rows]
    gaps = [row[6] for row in rows]
    records = Records(
        ttft, latency, integers(inputs, len(rows)), integers(outputs, len(rows)), np.array([not e for e in errors], bool), errors,
        sent, gaps,
    )  # fmt: skip
    return records.check(
        lambda i, key, message: InputError(message, place=Place(file=file, key=f"[{i}].{key}".rstrip("."))),
        "time_to_first_token", "end_time",
    )  # fmt: skip


def _request(f: Fields) -> tuple[float, float, float, float, float, str, list[float]]:
    """(ttft, latency, input tokens, output tokens, sent, error, gaps) of a request."""
    start, end = (f.number(key, most=MOST_SECONDS, needed=True) for key in ("start_time", "end_time"))
    if end < start:
        raise f.error("end_time", f"is before start_time ({end:g} and {start:g})")
    error = f.get("error")
    text = "" if not error else str(error.get("error_type") or "error") if isinstance(error, dict) else str(error)
    computed, info = f.inner("computed_metrics"), f.inner("info")
    answer = info.inner("response_metrics")
    times = answer.numbers("output_token_times") or info.numbers("output_token_times") or []
    for i, (before, after) in enumerate(pairwise([start, *times])):
        if not after >= before:
            raise answer.error(f"output_token_times[{i}]", "must be a time that is not before the last one")
    gaps = computed.numbers("inter_token_latencies")
    if gaps is not None and not np.isfinite(gaps).all():
        raise computed.error("inter_token_latencies", "must not have null in it")
    first = computed.number("time_to_first_token", most=MOST_SECONDS, finite=True)
    if first is None and times:
        first = times[0] - start
    gaps = gaps if gaps is not None else np.diff(times).tolist()
    inputs = [
        computed.number("input_tokens", most=MOST_TOKENS, finite=True),
        info.number("input_tokens", most=MOST_TOKENS, finite=True),
    ]
    inputs.append(info.inner("request_metrics").inner("text").number("input_tokens", most=MOST_TOKENS, finite=True))
    outputs = [
        computed.number("output_tokens", most=MOST_TOKENS, finite=True),
        answer.number("output_tokens", most=MOST_TOKENS, finite=True),
        info.number("output_tokens", most=MOST_TOKENS, finite=True),
        float(len(times)),
    ]
    if first is None:  # not streamed: nothing is known before the end
        first = end - start
    last = first + sum(gaps) if gaps else end - start
    return first, last, _known(inputs), _known(outputs), start, text, gaps


def _known(values: list[float | None]) -> float:
    return next((v for v in values if v is not None), 0.0)
