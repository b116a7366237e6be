"""Result files of SGLang's `bench_serving`: JSONL, one line a run appended to the last; `--output-details` adds lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reports.imports.build import subject_of, title
from reports.imports.fields import Fields, read_lines, statistics, told_unknown
from reports.imports.vllm import lists_of, load_of
from reports.subject import Subject

TOOL = "SGLang"
_FIGURES = ("request_throughput", "input_throughput", "output_throughput")
_QUIET = (
    "tag", "sharegpt_output_len", "random_input_len", "random_output_len", "random_range_ratio", "input_throughput",
    "total_output_tokens_retokenized", "total_input_text_tokens", "total_input_vision_tokens", "accept_length", "server_info",
    "generated_texts", "errors", "output_throughput_retokenized", "total_throughput_retokenized", "max_itl_ms",
)  # fmt: skip


def is_result(raw: Any) -> bool:
    """Whether one parsed line is such a run."""
    return isinstance(raw, dict) and "mean_e2e_latency_ms" in raw and "duration" in raw


def read(path: Path) -> list[Subject]:
    """A run for each line.

    Raises:
        InputError: naming the line and the key that is missing or wrong.
    """
    lines = read_lines(path)
    several = len(lines) > 1
    return [from_raw(raw, str(path), f"line {number}" if several else "") for number, raw in lines]


def from_raw(raw: Any, file: str, where: str = "") -> Subject:
    """The run of a parsed object; `where` says which it is of several."""
    f = Fields(raw, file, where)
    reported: dict[str, float | None] = {key: f.number(key) for key in _FIGURES if key != "input_throughput"}
    reported |= {
        "duration": f.number("duration", above=0, needed=True), "completed": f.count("completed", needed=True),
        "total_input_tokens": f.count("total_input_tokens"), "total_output_tokens": f.count("total_output_tokens"),
        "total_token_throughput": f.number("total_throughput"), "mean_concurrency": f.number("concurrency"),
        "max_concurrent_requests": f.count("max_concurrent_requests"),
        "max_output_tokens_per_s": f.number("max_output_tokens_per_s"),
    }  # fmt: skip
    known = statistics(f)
    if reported["completed"]:
        reported |= known
    load = load_of(f)
    if f.raw.get("ttfts") is not None and f.raw.get("itls") is None:
        raise f.error("itls", "must be a list for each request")
    # E2E is TTFT and all gaps: the file has no latencies
    records = lists_of(f, reported["completed"], known)
    config = {
        "backend": f.text("backend"), "dataset": f.text("dataset_name"), "load": load,
        **{key: f.raw.get(key) for key in _QUIET[:5]},
    }  # fmt: skip
    for key in _QUIET:
        f.get(key)
    notes = ["E2E latency of SGLang ends with the stream, not with the last token"]
    if records is not None:
        notes.append("no times of sending in the file: latencies are of its requests, rates are as reported")
    return subject_of(
        tool=TOOL, name=title(f.raw.get("tag") or config["backend"] or Path(file).stem, where), source=file, reported=reported,
        load=load, records=records, config={k: v for k, v in config.items() if v is not None},
        notes=[*notes, *told_unknown(f.unknown())], requests=reported["completed"],
    )  # fmt: skip
