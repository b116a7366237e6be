"""Results of guidellm, AIPerf and inference-perf, put into the shape of a vLLM result file, which `runs` makes rows of.

None of them knows what served the requests: the file must carry it, as keys beside its own (`gpu`, `engine`, `model`,
`weight_dtype`, `tensor_parallel_size` …).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reports.subject import Subject

OWN = ("vLLM", "SGLang")
"""Tools whose files are read as they are."""
_DEPLOYMENT = (
    "gpu", "engine", "engine_version", "model", "model_id", "weight_dtype", "dtype", "kv_dtype", "tensor_parallel_size", "date",
)  # fmt: skip


def as_results(path: Path, raw: Any) -> list[dict[str, Any]] | None:
    """The runs of a file in vLLM's schema; None where it is of none of these tools.

    Args:
        raw: the parsed file, whose own keys tell the deployment.

    Raises:
        InputError: a field of it is missing or wrong.
    """
    from reports.imports import is_result, read_results

    if not is_result(path):
        return None
    subjects = read_results(path)
    if any(s.tool in OWN for s in subjects):
        return None
    given = {key: raw[key] for key in _DEPLOYMENT if isinstance(raw, dict) and raw.get(key) is not None}
    return [_result(subject, given) for subject in subjects]


def _result(subject: Subject, given: dict[str, Any]) -> dict[str, Any]:
    traffic, summary = subject.traffic, subject.summary
    count = traffic.requests or summary.get("completed") or 0
    figures = {k: v for k, v in summary.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    result = {
        "engine": "vllm", "num_prompts": count,
        "max_concurrency": traffic.concurrency if traffic.mode == "closed" else None,
        "request_rate": traffic.rate if traffic.rate is not None else "inf", **figures, **given,
    }  # fmt: skip
    result["model_id"] = given.get("model_id") or given.get("model") or subject.config.get("model")
    if subject.data is not None:
        result["input_lens"] = subject.data.requests.input_tokens.tolist()
        result["output_lens"] = subject.data.requests.target_tokens.tolist()
    return result
