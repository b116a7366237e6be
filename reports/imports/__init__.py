"""What others measured, read as runs: result files of vLLM, SGLang, guidellm, AIPerf (GenAI-Perf) and inference-perf.

Figures are put under our names; where a file holds every request they are computed anew under our definitions, so that they
stand beside simulated ones. What differs or is not known is in the subject's notes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reports.imports import aiperf, guidellm, inference_perf, sglang, vllm
from reports.imports.fields import read_json, read_lines, read_text
from reports.subject import Subject
from reports.wording import clean
from workloads.errors import InputError, Place

__all__ = ["TOOLS", "fault_of", "is_result", "read_results"]

TOOLS = (vllm.TOOL, sglang.TOOL, guidellm.TOOL, aiperf.TOOL, inference_perf.TOOL)
_YAML = (".yaml", ".yml")


def is_result(path: Path) -> bool:
    """Whether a file or folder holds results of another tool; False for whatever cannot be read."""
    try:
        return _reader(Path(path)) is not None
    except (InputError, OSError):
        return False


def fault_of(path: Path) -> InputError | None:
    """Why a file or folder cannot be read as results of another tool; None where it is of one."""
    try:
        _found(Path(path))
    except InputError as error:
        return error
    return None


def read_results(path: Path) -> list[Subject]:
    """Every run that a file or folder of another tool holds.

    Raises:
        InputError: it is of no tool known here, or a field of it is missing or wrong; naming file and key.
    """
    path = Path(path)
    reader = _found(path)
    try:
        return reader()
    except MemoryError:
        raise InputError("needs more memory than there is", place=Place(file=str(path))) from None
    except RecursionError:
        raise InputError("is nested too deeply", place=Place(file=str(path))) from None


def _found(path: Path) -> Any:
    """What reads this path, or an error that says why nothing does."""
    if not path.exists():
        raise InputError("there is no such file or folder", place=Place(file=str(path)))
    try:
        reader = _reader(path)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", place=Place(file=str(path))) from None
    if reader is None:
        raise InputError(
            "is neither a run folder nor a result file known here", place=Place(file=str(path)),
            hint=f"known: run folders, sweeps, and results of {', '.join(TOOLS)}",
        )  # fmt: skip
    return reader


def _reader(path: Path) -> Any:
    """What reads this path; None where nothing does."""
    if path.is_dir():
        if any((path / name).is_file() for name in (*aiperf.SUMMARIES, aiperf.RECORDS)):
            return lambda: aiperf.read_folder(path)
        return (lambda: inference_perf.read_folder(path)) if inference_perf.is_folder(path) else None
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return (lambda: [aiperf.from_table(path)]) if aiperf.is_table(read_text(path)) else None
    if suffix in _YAML:
        return _yaml(path)
    if suffix in (".jsonl", ".ndjson"):
        return _lines(path)
    if suffix == ".json":
        return _object(path)
    return None


def _object(path: Path) -> Any:
    text = read_text(path)
    if not text.strip():
        raise InputError("is empty", place=Place(file=str(path)))
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        # several objects, one a line, under the name of one
        if text.count("\n") and _is_json(text.split("\n", 1)[0]):
            return _lines(path)
        raw = read_json(path)  # tells what is wrong
    file = str(path)
    for module in (sglang, vllm, aiperf, inference_perf):
        if module.is_result(raw):
            return lambda: [module.from_raw(raw, file)]
    if inference_perf.is_requests(raw):
        return lambda: [inference_perf.from_raw(raw, file)]
    if guidellm.is_result(raw):
        return lambda: guidellm.from_raw(raw, file)
    return None


def _lines(path: Path) -> Any:
    lines = read_lines(path)
    first = lines[0][1]
    if aiperf.is_record(first):
        return lambda: [aiperf.from_lines(lines, str(path))]
    if sglang.is_result(first):
        return lambda: sglang.read(path)
    if vllm.is_result(first):
        return lambda: [vllm.from_raw(raw, str(path)) for _, raw in lines]
    return None


def _yaml(path: Path) -> Any:
    if "benchmarks:" not in read_text(path):
        return None
    from ruamel.yaml import YAML, YAMLError

    try:
        raw = YAML(typ="safe", pure=True).load(read_text(path))
    except (YAMLError, ValueError, RecursionError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise InputError(f"is not YAML ({clean(str(error), 300)})", place=Place(file=str(path))) from None
    return (lambda: guidellm.from_raw(raw, str(path))) if guidellm.is_result(raw) else None


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
