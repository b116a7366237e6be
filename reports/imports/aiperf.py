"""Result files of AIPerf, and of GenAI-Perf before it.

`profile_export_aiperf.json` (GenAI-Perf: `profile_export_genai_perf.json`) has an object of statistics with its unit for every
metric; the CSV beside it has the same as a table; `profile_export.jsonl` has every request. A folder with these is read whole.
`inter_token_latency` is a mean per request, our TPOT; gaps between single tokens are in none of them.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from reports.imports.build import integers, subject_of, title
from reports.imports.fields import (
    MOST_SECONDS,
    MOST_TOKENS,
    Fields,
    read_json,
    read_lines,
    read_text,
    spread,
    told_unknown,
)
from reports.imports.records import Records
from reports.subject import Subject
from workloads.errors import InputError, Place

TOOL = "AIPerf"
SUMMARIES = ("profile_export_aiperf.json", "profile_export_genai_perf.json")
RECORDS = "profile_export.jsonl"
_MS = {
    "ms": 1.0,
    "milliseconds": 1.0,
    "s": 1e3,
    "sec": 1e3,
    "seconds": 1e3,
    "us": 1e-3,
    "microseconds": 1e-3,
    "ns": 1e-6,
}
_LATENCIES = {"time_to_first_token": "ttft_ms", "inter_token_latency": "tpot_ms", "request_latency": "e2el_ms"}
_RATES = {
    "request_throughput": "request_throughput", "output_token_throughput": "output_throughput",
    "total_token_throughput": "total_token_throughput", "goodput": "request_goodput",
}  # fmt: skip
_KNOWN = (
    "aiperf_version", "benchmark_id", "run_info", "was_cancelled", "error_summary", "start_time", "end_time", "telemetry_data",
    "telemetry_stats", "input_config", "output_sequence_length", "input_sequence_length", "output_token_throughput_per_user",
    "time_to_second_token", "time_to_first_output_token", "min_request_timestamp", "max_response_timestamp",
    "output_token_count", "reasoning_token_count", "prefill_throughput_per_user", "prefill_throughput",
    "e2e_output_token_throughput",
    "good_request_count", "branch_stats", "effective_concurrency", "inter_chunk_latency", "stream_setup_latency",
    "stream_prefill_latency", "total_output_tokens", "total_reasoning_tokens", "thinking_efficiency",
)  # fmt: skip
_NOTE = "AIPerf's inter_token_latency is a mean per request, our TPOT; gaps between single tokens are not in the file"


def is_result(raw: Any) -> bool:
    """Whether parsed JSON is a summary of AIPerf or GenAI-Perf."""
    return isinstance(raw, dict) and any(
        isinstance(raw.get(key), dict) and "avg" in raw[key] for key in ("request_latency", "request_throughput")
    )


def is_record(raw: Any) -> bool:
    """Whether a parsed line is a request of `profile_export.jsonl`."""
    return (
        isinstance(raw, dict)
        and isinstance(raw.get("metrics"), dict)
        and isinstance(raw.get("metadata"), dict)
        and "request_start_ns" in raw["metadata"]
    )


def is_table(text: str) -> bool:
    """Whether a CSV file is such a table."""
    return text.lstrip("\ufeff").startswith("Metric,")


def read_folder(folder: Path) -> list[Subject]:
    """The run of an artifact folder: its summary and, where it is there, every request.

    Raises:
        InputError: naming the file and key at fault.
    """
    summary = next((folder / name for name in SUMMARIES if (folder / name).is_file()), None)
    lines = folder / RECORDS
    records = _records(read_lines(lines), str(lines)) if lines.is_file() else None
    if summary is None:
        return [_subject({}, str(lines), records)]
    return [_subject(read_json(summary), str(summary), records)]


def from_raw(raw: Any, file: str) -> Subject:
    """The run of a parsed summary."""
    return _subject(raw, file, None)


def from_lines(lines: list[tuple[int, Any]], file: str) -> Subject:
    """The run of a file of requests."""
    return _subject({}, file, _records(lines, file))


def from_table(path: Path) -> Subject:
    """The run of a CSV file: names with units in parentheses, then values in the columns of the heading above."""
    raw: dict[str, Any] = {}
    heads: list[str] = []
    for line, row in enumerate(_rows(path), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            heads = []
        elif cells[0] == "Metric" or not heads:
            heads = cells
        elif heads[0] == "Metric":
            match = re.fullmatch(r"(.*?)(?: \(([^()]*)\))?", cells[0])
            key = re.sub(r"\W+", "_", match[1].strip().lower())
            values: dict[str, Any] = {"unit": match[2] or ""}
            for head, cell in zip(heads[1:], cells[1:], strict=False):
                try:
                    values[{"Value": "avg"}.get(head, head)] = float(cell.replace(",", "")) if cell else None
                except ValueError:
                    place = Place(file=str(path), line=line, column=head)
                    raise InputError(f"expected a number, found {cell[:40]!r}", place=place) from None
            raw[key] = values
    return _subject(raw, str(path), None)


def _rows(path: Path) -> list[list[str]]:
    reader = csv.reader(io.StringIO(read_text(path)))
    try:
        return list(reader)
    except csv.Error as error:  # a field of more than 131072 characters, among others
        raise InputError(f"is not CSV ({error})", place=Place(file=str(path), line=reader.line_num)) from None


def _subject(raw: Any, file: str, records: Records | None) -> Subject:
    f = Fields(raw, file)
    reported: dict[str, float | None] = {}
    for key, name in _LATENCIES.items():
        if isinstance(f.get(key), dict):
            inner = f.inner(key)
            reported |= spread(inner, name, _factor(inner), mean="avg")
    for key, name in _RATES.items():
        reported[name] = _average(f, key)
    seconds = _average(f, "benchmark_duration")
    reported |= {
        "duration": seconds, "completed": _whole(_average(f, "request_count")),
        "failed": _whole(_average(f, "error_request_count")),
        "total_input_tokens": _total(f, ("total_isl", "total_input_sequence_length"), "input_sequence_length"),
        "total_output_tokens": _total(f, ("total_osl", "total_output_sequence_length"), "output_sequence_length"),
    }  # fmt: skip
    if not any(v is not None for v in reported.values()) and records is None:
        raise InputError("has none of the metrics of AIPerf", place=Place(file=file))
    version = f.text("schema_version")
    notes = [_NOTE]
    if version and not version.startswith("1."):
        notes.append(f"schema_version {version} is newer than those known here (1.x)")
    if f.get("was_cancelled"):
        notes.append("the run was cancelled before its end")
    load, model = _load(f), _model(f)
    for key in _KNOWN:
        f.get(key)
    unknown = [k for k in f.unknown() if not k.startswith(("http_req_", "osl_", "usage_", "gpu_", "server_"))]
    done = reported["completed"]
    if records is not None and done is not None and done > len(records.ok):
        raise f.error("request_count.avg", f"is {done:g}, but {RECORDS} has {len(records.ok)} requests")
    sent = None if done is None else int(done + (reported["failed"] or 0))
    written = f"AIPerf {f.raw['aiperf_version']}" if isinstance(f.raw.get("aiperf_version"), str) else ""
    return subject_of(
        tool=TOOL, name=title(model or Path(file).stem), source=file, reported=reported, load=load, records=records,
        config={k: v for k, v in {"model": model, "load": load}.items() if v}, requests=sent, model=model,
        notes=[*notes, *told_unknown(unknown, written)],
    )  # fmt: skip


def _factor(inner: Fields) -> float:
    unit = (inner.text("unit") or "ms").lower()
    if unit not in _MS:
        raise inner.error("unit", f"unknown unit {unit!r}; known: {', '.join(_MS)}")
    return _MS[unit]


def _average(f: Fields, key: str) -> float | None:
    return f.inner(key).number("avg") if isinstance(f.get(key), dict) else None


def _total(f: Fields, keys: tuple[str, ...], lengths: str) -> float | None:
    """A sum of tokens, or mean length times requests."""
    for key in keys:
        if (value := _average(f, key)) is not None:
            return value
    mean, count = _average(f, lengths), _average(f, "request_count")
    return mean * count if mean is not None and count is not None else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _load(f: Fields) -> dict[str, Any]:
    config = f.raw.get("input_config")
    places = {"input_config": config} if isinstance(config, dict) else {}
    places |= {f"input_config.{k}": p for k, p in config.items() if isinstance(p, dict)} if places else {}
    for where, place in places.items():
        inner = Fields(place, f.file, where)
        rate, streams = place.get("request_rate"), place.get("concurrency")
        if isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0:
            return {"mode": "open", "rate": inner.number("request_rate", finite=True)}
        if isinstance(streams, int) and not isinstance(streams, bool) and streams > 0:
            return {"mode": "closed", "concurrency": inner.count("concurrency")}
    return {}


def _model(f: Fields) -> str | None:
    config = f.raw.get("input_config")
    places = [config, (config or {}).get("endpoint")] if isinstance(config, dict) else []
    for place in places:
        for key in ("model_names", "model_name", "model", "models"):
            value = place.get(key) if isinstance(place, dict) else None
            value = value[0] if isinstance(value, list) and value else value
            if isinstance(value, str):
                return value
    return None


def _records(lines: list[tuple[int, Any]], file: str) -> Records:
    """Requests of the measured phase; those of the warm-up are left out."""
    rows = []
    for line, raw in lines:
        if not is_record(raw):
            message = "is no request of AIPerf (metadata and metrics are missing)"
            raise InputError(message, place=Place(file=file, line=line))
        if (raw["metadata"].get("benchmark_phase") or "profiling") == "profiling":
            meta, metrics = (Fields(raw[key], file, f"line {line}.{key}") for key in ("metadata", "metrics"))
            rows.append((meta, metrics, raw))
    if not rows:
        raise InputError("has no request of the measured phase", place=Place(file=file))

    def column(key: str, time: bool = False) -> np.ndarray:
        values = []
        for _, metrics, _raw in rows:
            inner = metrics.inner(key) if isinstance(metrics.get(key), dict) else None
            if inner is None:
                values.append(np.nan)
                continue
            factor = _factor(inner) / 1e3 if time else 1.0
            value = inner.number("value", most=MOST_SECONDS / factor if time else MOST_TOKENS, finite=True)
            values.append(np.nan if value is None else value * factor)
        return np.array(values)

    errors = [_error(raw, meta) for meta, _, raw in rows]
    begun = np.array(
        [meta.number("request_start_ns", most=MOST_SECONDS * 1e9, needed=True) * 1e-9 for meta, _, _ in rows]
    )
    size = len(rows)
    records = Records(
        column("time_to_first_token", True), column("request_latency", True), integers(column("input_sequence_length"), size),
        integers(column("output_sequence_length"), size), np.array([not e for e in errors], bool), errors, begun, None,
    )  # fmt: skip
    return records.check(
        lambda i, key, message: rows[i][1].error(key, message), "time_to_first_token", "request_latency"
    )


def _error(raw: dict, meta: Fields) -> str:
    if meta.get("was_cancelled"):
        return "cancelled"
    error = raw.get("error")
    if not error:
        return ""
    return str(error.get("type") or error.get("message") or "error") if isinstance(error, dict) else str(error)
