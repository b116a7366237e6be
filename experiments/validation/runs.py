"""Measured runs in other shapes than a tidy table: each becomes rows, one a metric.

    FOLDER/**/*.csv                       the tables in a folder: tidy ones, or load stages of online runs (`STAGES`)
    FOLDER/**/requests.csv, meta.json     whole vLLM runs, request by request
    FOLDER/**/run.json                    run folders of ours
    result.json, result.jsonl             `vllm bench serve --save-result` and SGLang's `bench_serving`
    result.json                           reports of guidellm, AIPerf and inference-perf (see `imported`)

Result files do not know the GPU; they must carry it, and the tensor-parallel degree where it is not
1, as `gpu` and `tensor_parallel_size` (vLLM's client writes them with `--metadata gpu=… tensor_parallel_size=…`).
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from experiments.validation.imported import as_results
from experiments.validation.table import COLUMNS, Row, number, read_table
from workloads.errors import InputError, Place
from workloads.readers.files import read_text

STAGES = ("rate_rps", "ttft_mean_ms", "e2e_mean_ms", "output_tokens")
"""Columns by which a table of load stages is known."""
_STATS = ("mean", "median", "p90", "p99")
_BENCH = {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms", "itl_ms": "itl_ms", "e2el_ms": "e2e_latency_ms",
          "e2e_latency_ms": "e2e_latency_ms"}  # fmt: skip
_BENCH_RATES = {
    "output_throughput": "output_tokens_per_s", "total_token_throughput": "total_tokens_per_s",
    "total_throughput": "total_tokens_per_s", "request_throughput": "request_per_s",
}  # fmt: skip


def read_path(path: Path) -> list[Row]:
    """The rows of a file, or of everything in a folder.

    Raises:
        InputError: nothing there, or nothing in it that can be read.
    """
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise InputError("there is no such file or folder", place=Place(str(path)))
    if path.suffix in (".json", ".jsonl"):
        return _run_folder(path.parent) if path.name == "run.json" else _results(path)
    return _stages(path) if set(STAGES) <= _header(path) else read_table(path)


def _folder(folder: Path) -> list[Row]:
    rows = _within(folder)
    if not rows:
        raise InputError(
            "holds no measured table or run", place=Place(str(folder)),
            hint="expected CSV files with the columns " + ", ".join(COLUMNS[:4]) + " …, run folders or result files",
        )  # fmt: skip
    return rows


def _within(folder: Path) -> list[Row]:
    """Everything measured in a folder and the folders in it; other files are left alone."""
    if (folder / "run.json").is_file():
        return _run_folder(folder)
    if (folder / "requests.csv").is_file() and (folder / "meta.json").is_file():
        return _requests(folder)
    rows: list[Row] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            rows += _within(path)
        elif path.suffix == ".csv" and ({"metric", "value"} <= _header(path) or set(STAGES) <= _header(path)):
            rows += read_path(path)
        elif path.suffix in (".json", ".jsonl") and _is_result(path):
            rows += _results(path)
    return rows


def _header(path: Path) -> set[str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return {name.strip() for name in next(csv.reader(file), [])}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read it: {error}", place=Place(str(path))) from None


def _stages(path: Path) -> list[Row]:
    """Load stages of online runs: an open loop at a fixed rate, prompts drawn from groups that share their beginning."""
    rows: list[Row] = []
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    for record in reader:
        rows += _stage(record, str(path), reader.line_num)
    return rows


def _stage(record: dict, file: str, line: int) -> list[Row]:
    def get(name: str) -> str:
        return (record.get(name) or "").strip()

    def figure(name: str) -> float:
        return number(get(name), Place(file, line, name))

    prompt = round(
        figure("prompt_tokens_measured_mean") if get("prompt_tokens_measured_mean") else figure("question_tokens")
    )
    extra: dict[str, Any] = {}
    for column, key, kind in (
        ("max_num_batched_tokens", "scheduler.max_num_batched_tokens", int), ("max_num_seqs", "scheduler.max_num_seqs", int),
        ("gpu_memory_utilization", "kv.memory_utilization", float), ("max_model_len", "max_model_len", int),
    ):  # fmt: skip
        if get(column):
            extra[key] = kind(figure(column))
    own = prompt
    if get("groups") and get("prompts_per_group"):
        system = int(float(get("system_prompt_tokens") or 0))
        levels = [
            {"branches": int(figure("groups")), "tokens": max(system, 1)},
            {"branches": int(figure("prompts_per_group")), "tokens": max(prompt - max(system, 1) - 1, 1)},
        ]
        extra |= {
            "traffic.prefix": {"kind": "tree", "levels": levels},
            "traffic.shared": prompt,
            "kv.prefix_caching": True,
        }
        own = 1
    base = _row(
        file, line, source=Path(file).parent.name, engine=get("engine"), engine_version=get("engine_version"),
        model=get("model"), weight_dtype=get("weight_dtype"), kv_dtype=get("kv_dtype"), gpu=get("gpu"),
        tp=int(figure("tp")) if get("tp") else 0, isl=str(own), osl=get("output_tokens"),
        load=f"rate={figure('rate_rps'):g}, {get('num_requests') or 600} requests", load_kind="open_loop_rate",
        notes=f"{get('arrival')} arrivals; prompts share a prefix; {get('experiment')} stage {get('stage')}",
        table_id=f"{Path(file).parent.name}-{get('experiment')}", extra=extra,
    )  # fmt: skip
    found = []
    for metric, stem in (("ttft_ms", "ttft"), ("e2e_latency_ms", "e2e")):
        for statistic in _STATS:
            column = f"{stem}_{statistic}_ms"
            if get(column):
                found.append(base.having(f"{metric}_{statistic.replace('median', 'p50')}", figure(column)))
    if get("tpot_mean_ms_derived"):
        found.append(base.having("tpot_ms_mean", figure("tpot_mean_ms_derived")))
    return found


def _row(file: str, line: int, **known: Any) -> Row:
    empty = dict.fromkeys(
        ("source", "source_date", "engine", "engine_version", "model", "weight_dtype", "kv_dtype", "gpu", "isl", "osl",
         "load", "metric", "notes", "load_kind", "table_id"), "",
    ) | {"n_gpu": 0, "tp": 0, "pp": 0, "value": 1.0}  # fmt: skip
    return Row(file=file, line=line, **(empty | known))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read it: {error}", place=Place(str(path))) from None


_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}


def _requests(folder: Path) -> list[Row]:
    """A vLLM run as requests: arrival, lengths, first and last token. The GPU is part of the folder's name."""
    from experiments.validation.names import find_gpu

    meta, path = _json(folder / "meta.json"), folder / "requests.csv"
    settings = meta.get("engine_kwargs", {})
    gpu = meta.get("gpu") or folder.name.split("_", 1)[0]
    if find_gpu(gpu) is None:
        raise InputError("does not tell the GPU", place=Place(str(folder / "meta.json")), hint="add a key gpu")
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        names = ("arrival_s", "input_tokens", "output_tokens", "first_token_s", "last_token_s")
        columns: dict[str, list[float]] = {name: [] for name in names}
        for record in reader:
            for name in names:
                try:
                    columns[name].append(float(record[name]))
                except (KeyError, TypeError, ValueError):
                    raise InputError("expected a number", place=Place(str(path), reader.line_num, name)) from None
    extra: dict[str, Any] = {
        "traffic.trace": {"path": str(path.resolve()), "format": "csv"}, "load.front_end": False,
        "traffic.longest": int(max(a + b for a, b in zip(columns["input_tokens"], columns["output_tokens"], strict=True))),
    }  # fmt: skip
    for name, key in (("max_num_seqs", "scheduler.max_num_seqs"), ("max_num_batched_tokens", "scheduler.max_num_batched_tokens"),
                      ("max_model_len", "max_model_len"), ("gpu_memory_utilization", "kv.memory_utilization")):  # fmt: skip
        if settings.get(name):
            extra[key] = settings[name]
    base = _row(
        str(path), 1, source=folder.parent.name, source_date=str(meta.get("started_at", ""))[:10], engine="vLLM",
        engine_version=str(meta.get("vllm_version", "")), model=meta.get("model", ""),
        weight_dtype=_DTYPES.get(settings.get("dtype", ""), settings.get("dtype", "")), gpu=gpu,
        tp=settings.get("tensor_parallel_size", 1), load_kind="open_loop_trace", load=f"{len(columns['arrival_s'])} requests",
        table_id=f"{folder.parent.name}-{folder.name}", extra=extra,
    )  # fmt: skip
    return [base.having(metric, value) for metric, value in _figures(columns).items()]


def _figures(columns: dict[str, list[float]]) -> dict[str, float]:
    import numpy as np

    c = {name: np.array(values) for name, values in columns.items()}
    many = c["output_tokens"] > 1
    series = {
        "ttft_ms": c["first_token_s"] - c["arrival_s"], "e2e_latency_ms": c["last_token_s"] - c["arrival_s"],
        "tpot_ms": (c["last_token_s"] - c["first_token_s"])[many] / (c["output_tokens"][many] - 1),
    }  # fmt: skip
    found = {}
    for metric, seconds in series.items():
        found[f"{metric}_mean"] = float(seconds.mean() * 1e3)
        for p in (50, 90, 99):
            found[f"{metric}_p{p}"] = float(np.percentile(seconds, p) * 1e3)
    span = float(c["last_token_s"].max() - c["arrival_s"].min())
    return {**found, "makespan_s": span, "output_tokens_per_s": float(c["output_tokens"].sum() / span)}


def _is_result(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.read(4000)
    return "request_throughput" in head or "output_throughput" in head


def _results(path: Path) -> list[Row]:
    """Result files of serving benchmarks: one JSON object, or one a line."""
    text = read_text(path)
    rows: list[Row] = []
    lines = [text] if path.suffix == ".json" else text.splitlines()
    for line, part in enumerate(lines, start=1):
        if not part.strip():
            continue
        try:
            result = json.loads(part)
        except ValueError as error:
            raise InputError(f"is not JSON: {error}", place=Place(str(path), line)) from None
        for one in as_results(path, result) or [result] if path.suffix == ".json" else [result]:
            rows += _result(one, str(path), line)
    return rows


def _result(result: Any, file: str, line: int) -> list[Row]:
    if not isinstance(result, dict) or not any(key in result for key in _BENCH_RATES):
        raise InputError(
            "is no result of a serving benchmark",
            place=Place(file, line),
            hint="expected request_throughput and the like",
        )
    if not result.get("gpu"):
        raise InputError("does not tell the GPU", place=Place(file, line, "gpu"), hint='add "gpu": "h100-sxm"')
    count = result.get("num_prompts") or result.get("completed") or 0
    closed = result.get("max_concurrency")
    rate = result.get("request_rate", "inf")
    inputs = result.get("input_lens") or [result.get("total_input_tokens", 0) / max(count, 1)]
    outputs = result.get("output_lens") or [result.get("total_output_tokens", 0) / max(count, 1)]
    base = _row(
        file, line, source=Path(file).stem, source_date=str(result.get("date", "")), table_id=Path(file).stem,
        engine=str(result.get("engine") or result.get("backend") or "vllm"), engine_version=str(result.get("engine_version", "")),
        model=str(result.get("model_id") or result.get("model") or ""), gpu=str(result["gpu"]),
        weight_dtype=str(result.get("weight_dtype") or result.get("dtype") or ""), kv_dtype=str(result.get("kv_dtype", "")),
        tp=int(result.get("tensor_parallel_size") or 1), isl=_lengths(inputs), osl=_lengths(outputs),
        load=f"concurrency={closed}" if closed else f"rate={rate}, {count} requests",
        load_kind="closed_loop_concurrency" if closed else "open_loop_rate",
    )  # fmt: skip
    found = []
    for key, value in result.items():
        head, _, rest = key.partition("_")
        if rest in _BENCH and head in ("mean", "median", "p90", "p95", "p99") and value:
            found.append(
                base.having(
                    f"{_BENCH[rest]}_{head.replace('median', 'p50')}", number(str(value), Place(file, line, key))
                )
            )
        elif key in _BENCH_RATES and value:
            found.append(base.having(_BENCH_RATES[key], number(str(value), Place(file, line, key))))
    return found


def _lengths(tokens: list) -> str:
    low, high, mean = min(tokens), max(tokens), sum(tokens) / len(tokens)
    return (
        f"{mean:.0f}"
        if high - low <= 0.02 * mean
        else f"uniform {low:.0f}-{high:.0f}"
        if len(tokens) > 1
        else f"{mean:.0f}"
    )


def _run_folder(folder: Path) -> list[Row]:
    """A run folder of ours: its own workload, simulated, against its own summary."""
    run = _json(folder / "run.json")
    try:
        config, summary = run["config"], run["summary"]
        workload = {
            key: _values(config[key]) for key in ("model", "backend", "traffic", "load", "seed") if key in config
        }
        workload |= {"name": "validate", "engine": _written(config.get("engine", {}))}
    except (KeyError, TypeError) as error:
        raise InputError(f"is no run of ours: {error}", place=Place(str(folder / "run.json"))) from None
    workload["backend"] = {"name": "sim", "gpu": workload["backend"].get("gpu")}
    if not workload["backend"]["gpu"]:
        raise InputError(
            "does not tell the GPU", place=Place(str(folder / "run.json")), hint="set backend.gpu in the workload"
        )
    said = {"preset": "vllm", "quantization": ""} | config.get("engine", {})  # a remote run says what its user wrote
    base = _row(
        str(folder / "run.json"), 1, source=folder.name, table_id=folder.name, engine=str(_values(said["preset"])),
        model=workload["model"], gpu=workload["backend"]["gpu"], load_kind="open_loop_trace", notes="run of ours",
        weight_dtype=str(_values(said["quantization"])), extra={"workload": workload},
    )  # fmt: skip
    found = []
    for key, metric in _BENCH_RATES.items():
        if summary.get(key):
            found.append(base.having(metric, summary[key]))
    for name, metric in (("ttft", "ttft_ms"), ("tpot", "tpot_ms"), ("itl", "itl_ms"), ("e2el", "e2e_latency_ms")):
        for head, suffix in (("mean", "mean"), ("median", "p50"), ("p90", "p90"), ("p99", "p99")):
            if summary.get(f"{head}_{name}_ms"):
                found.append(base.having(f"{metric}_{suffix}", summary[f"{head}_{name}_ms"]))
    return found


def _values(node: Any) -> Any:
    if isinstance(node, dict):
        return (
            node["value"] if set(node) == {"value", "source"} else {key: _values(inner) for key, inner in node.items()}
        )
    return node


def _written(node: dict) -> dict:
    """What the user wrote of the engine, and the preset: the rest follows from them."""
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if set(value) == {"value", "source"}:
            if value["source"] == "user" or key == "preset":
                kept[key] = value["value"]
        elif inner := _written(value):
            kept[key] = inner
    return kept
