"""Result files of vLLM's serving benchmark (`vllm bench serve --save-result`, before that `benchmark_serving.py`).

One flat object; with `--save-detailed` also lists with an entry a request, in seconds. Newer versions add `latencies`,
`start_times` and `queue_times`; without start times only latencies are true. `request_rate` is "inf" when all was sent at
once, or when `max_concurrency` alone held requests back, which is a closed loop. `--metadata` adds keys of any name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reports.imports.build import integers, subject_of, title
from reports.imports.fields import MOST_TOKENS, MOST_TOLD, Fields, read_json, statistics, told_unknown
from reports.imports.records import Records
from reports.subject import Subject
from reports.wording import clean

TOOL = "vLLM"
_FIGURES = (
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
)
_QUIET = (
    "tokenizer_id", "best_of", "use_beam_search", "rtfx", "queue_times", "rps_change_events", "generated_texts", "errors",
    "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps",
)  # fmt: skip
MOST_SETTING = 2**63
"""A clock in nanoseconds is below it."""
_QUIET_STARTS = ("spec_decode_", "diffusion_", "probe_")


def is_result(raw: Any) -> bool:
    """Whether parsed JSON is such a file."""
    return isinstance(raw, dict) and "mean_ttft_ms" in raw and "total_token_throughput" in raw and "duration" in raw


def read(path: Path) -> list[Subject]:
    """The run of a file.

    Raises:
        InputError: naming the key that is missing or wrong.
    """
    return [from_raw(read_json(path), str(path))]


def from_raw(raw: Any, file: str) -> Subject:
    """The run of a parsed file."""
    f = Fields(raw, file)
    model, backend = f.text("model_id"), f.text("backend") or f.text("endpoint_type")
    label = f.text("label")
    reported: dict[str, float | None] = {key: f.number(key) for key in _FIGURES}
    if "request_goodput:" in f.raw:  # so spelt in files of 2025
        reported["request_goodput"] = f.number("request_goodput:")
    reported |= {
        "duration": f.number("duration", above=0, needed=True), "completed": f.count("completed", needed=True),
        "failed": f.count("failed"), "total_input_tokens": f.count("total_input_tokens"),
        "total_output_tokens": f.count("total_output_tokens"),
        "max_concurrent_requests": f.count("max_concurrent_requests"),
    }  # fmt: skip
    known = statistics(f)
    if reported["completed"]:
        reported |= known
    sent = f.count("num_prompts")
    load = load_of(f)
    config = {
        "model": model, "backend": backend, "label": label, "date": f.get("date"), "endpoint_type": f.get("endpoint_type"),
        "load": load, "burstiness": f.get("burstiness"),
    }  # fmt: skip
    records = lists_of(f, reported["completed"], known)
    notes = []
    for key in f.raw:
        if key in _QUIET or key.startswith(_QUIET_STARTS) or "client_queue" in key:
            f.get(key)
    if records is not None and records.sent is None:
        notes.append("no times of sending in the file: latencies are of its requests, rates are as reported")
    if records is not None and _chunked(records):
        notes.append(
            "some chunks brought several tokens: gaps between tokens are those of chunks, spread over their tokens"
        )
    unknown = f.unknown()
    own = {key: f.raw[key] for key in unknown if isinstance(f.raw[key], str | int | float | bool)}
    for key, value in own.items():
        if isinstance(value, int) and abs(value) > MOST_SETTING:
            raise f.error(key, f"must not be more than {MOST_SETTING:g}")
    if own:  # --metadata, or fields of a newer version: nothing tells them apart
        config["metadata"] = own
        shown = ", ".join(clean(key, 40) for key in list(own)[:MOST_TOLD])
        notes.append(f"fields not known here, kept as settings: {shown}{' …' if len(own) > MOST_TOLD else ''}")
    return subject_of(
        tool=TOOL, name=title(label or model or Path(file).stem), source=file, reported=reported, load=load,
        records=records, config={k: v for k, v in config.items() if v not in (None, {})},
        notes=[*notes, *told_unknown([key for key in unknown if key not in own])], requests=sent, model=model,
    )  # fmt: skip


def load_of(f: Fields) -> dict[str, Any]:
    """The load from `request_rate` and `max_concurrency`."""
    rate, cap = f.number("request_rate"), f.count("max_concurrency")
    if rate is None and cap:
        return {"mode": "closed", "concurrency": cap}
    return {"mode": "open", **({"rate": rate} if rate else {}), **({"concurrency": cap} if cap else {})}


def lists_of(f: Fields, completed: float | None, known: dict[str, float | None]) -> Records | None:
    """Every request, where the file has lists of them, in seconds.

    Args:
        completed, known: what the file says itself; lists that cannot belong to it are refused.
    """
    ttfts = f.numbers("ttfts")
    if ttfts is None:
        return None
    size = len(ttfts)
    if completed is not None and completed > size:
        raise f.error("completed", f"is {completed:g}, but the file has {size} requests (ttfts)")
    inputs, outputs = (f.numbers(key, size, most=MOST_TOKENS) for key in ("input_lens", "output_lens"))
    gaps = f.gaps("itls", size)
    ttft = np.array(ttfts)
    latencies, starts = f.numbers("latencies", size), f.numbers("start_times", size)
    if latencies is not None:
        latency = np.array(latencies)
    elif gaps is not None:
        latency = ttft + np.array([float(np.sum(g)) for g in gaps])
    else:
        latency = np.full(size, np.nan)
    errors = f.items("errors")
    texts = [str(e or "") for e in errors] if errors is not None and len(errors) == size else [""] * size
    ok = np.array([not text for text in texts], bool)
    answered = ok & (integers(outputs, size) > 0)
    _in_seconds(f, "ttfts", "mean_ttft_ms", ttft[answered], known)
    _in_seconds(f, "itls", "mean_itl_ms", np.array([g for row in gaps or [] for g in row]), known)
    records = Records(
        ttft, latency, integers(inputs, size), integers(outputs, size), ok, texts,
        np.array(starts) if starts is not None and None not in (f.get("start_times") or []) else None, gaps,
    )  # fmt: skip
    return records.check(lambda i, key, message: f.error(f"{key or 'output_lens'}[{i}]", message), "ttfts", "latencies")


def _in_seconds(f: Fields, key: str, mean: str, values: np.ndarray, known: dict[str, float | None]) -> None:
    """Refuse milliseconds, which the file's own mean gives away."""
    values, told = values[np.isfinite(values)], known.get(mean)
    if not told or not len(values):
        return
    times = float(values.mean()) * 1e3 / told
    if 500 < times < 2000:
        raise f.error(key, f"must be seconds, seems to be milliseconds: its mean is {times:.0f} times {mean}")


def _chunked(r: Records) -> bool:
    if r.gaps is None:
        return False
    return any(
        good and 0 < len(g) + 1 < n for good, g, n in zip(r.ok.tolist(), r.gaps, r.outputs.tolist(), strict=True)
    )
