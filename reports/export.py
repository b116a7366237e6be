"""Results in the files of others: so far, that of vLLM's serving benchmark (`vllm bench serve --save-result`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from reports import strict_json
from reports.fingerprint import settings
from reports.metrics import summarize
from reports.run_data import FINISHED, RunData
from workloads.errors import OutputError

_SAME = (
    "duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
    "output_throughput", "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests",
)  # fmt: skip


def vllm_result(data: RunData, summary: dict | None = None, *, detailed: bool = False) -> dict:
    """A run as one flat object in vLLM's schema.

    Args:
        detailed: add the per-request lists (seconds); `itls` then holds every gap of every request.

    `failed` counts everything that did not finish, as vLLM's does. Where a thing is not known the value is None.
    """
    summary = summary if summary is not None else summarize(data, with_intervals=False)
    load, info = data.info["load"], data.info
    rate = load.get("rate", summary["arrival_rate"]) if load.get("mode") == "open" else "inf"
    model = settings(data.config).get("model") or info.get("model")  # as it was asked for: fine-tunes share a shape
    result = {
        "date": data.host.get("date"),
        "endpoint_type": "openai",
        "backend": info.get("backend"),
        "label": info.get("name"),
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": summary["requests"],
        "request_rate": rate,
        "burstiness": load.get("burstiness", 1.0),
        "max_concurrency": load.get("concurrency"),
        **{key: summary[key] for key in _SAME},
        "failed": summary["requests"] - summary["completed"],
    }
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms"):
        for stat in ("mean", "median", "std", "p50", "p90", "p95", "p99"):
            result[f"{stat}_{name}"] = summary[f"{stat}_{name}"]
    return result | _details(data) if detailed else result


def write_vllm_result(data: RunData, path: Path, summary: dict | None = None, *, detailed: bool = False) -> None:
    """Write `vllm_result` as JSON.

    Raises:
        OutputError: the file cannot be written.
    """
    text = strict_json.dumps(vllm_result(data, summary, detailed=detailed)) + "\n"
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def _details(data: RunData) -> dict:
    r = data.requests
    done = r.status == FINISHED
    gaps = _gaps_by_request(data)
    return {
        "input_lens": r.input_tokens,
        "output_lens": np.where(done, r.output_tokens, 0),
        "ttfts": np.where(done, r.first_token - r.sent, 0.0),
        "itls": [gaps.get(int(row), []) if ok else [] for row, ok in zip(r.request, done, strict=True)],
        "latencies": np.where(done, r.finish - r.sent, 0.0),
        **({"start_times": r.sent} if data.info.get("sent_seen", True) else {}),
        "generated_texts": [""] * len(r),
        "errors": [
            "" if ok else f"{s}: {why}".rstrip(": ") for ok, s, why in zip(done, r.status, r.reason, strict=True)
        ],
    }


def _gaps_by_request(data: RunData) -> dict[int, list[float]]:
    """Gaps between successive tokens of every request, in order of time (samples merged)."""
    t = data.tokens
    times: dict[int, list[np.ndarray]] = {}
    for row, start, first, steps in zip(t.request, t.start, t.first_step, t.steps, strict=True):
        times.setdefault(int(row), []).append(np.append(start, t.step_ends[first : first + steps]))
    return {row: np.diff(np.sort(np.concatenate(parts))).tolist() for row, parts in times.items()}
