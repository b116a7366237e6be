"""Result files as other tools write them, made here from known requests: field names of the tools, numbers of ours."""

from __future__ import annotations

import json

import numpy as np

START = 1_700_000_000.0


class Known:
    """Twelve requests whose every time is known: sent, first token, gaps (all equal in a request), and lengths."""

    def __init__(self, size: int = 12, tokens_a_chunk: int = 1) -> None:
        rng = np.random.default_rng(5)
        self.sent = np.cumsum(rng.exponential(0.5, size))
        self.ttft = rng.uniform(0.05, 0.4, size)
        self.outputs = rng.integers(2, 20, size) * tokens_a_chunk
        self.inputs = rng.integers(50, 500, size)
        self.gap = rng.uniform(0.01, 0.03, size)
        self.chunk = tokens_a_chunk
        self.gaps = [[float(g)] * (int(n) // tokens_a_chunk - 1) for g, n in zip(self.gap, self.outputs, strict=True)]
        self.latency = self.ttft + np.array([sum(g) for g in self.gaps])
        self.tpot = (self.latency - self.ttft) / (self.outputs - 1)
        self.duration = float((self.sent + self.latency).max() - self.sent.min())

    def stats(self, values: np.ndarray, factor: float = 1e3) -> dict[str, float]:
        """Mean, median, std and percentiles."""
        v = np.asarray(values) * factor
        found = {"mean": v.mean(), "median": np.median(v), "std": v.std()}
        return {k: float(x) for k, x in (found | {f"p{p}": np.percentile(v, p) for p in (50, 90, 95, 99)}).items()}

    def series(self) -> dict[str, np.ndarray]:
        """Latencies in seconds."""
        itl = np.array([g for gaps in self.gaps for g in gaps])
        return {"ttft": self.ttft, "tpot": self.tpot, "itl": itl, "e2el": self.latency}


def vllm(known: Known, *, detailed: bool = True, times: bool = True, **changes) -> dict:
    """An object of `vllm bench serve --save-result`."""
    outputs = int(known.outputs.sum())
    result = {
        "date": "20260101-120000", "endpoint_type": "openai-chat", "backend": "openai-chat", "label": None,
        "model_id": "meta-llama/Meta-Llama-3-8B", "tokenizer_id": "meta-llama/Meta-Llama-3-8B",
        "num_prompts": len(known.sent), "request_rate": 2.0, "burstiness": 1.0, "max_concurrency": None,
        "duration": known.duration, "completed": len(known.sent), "failed": 0,
        "total_input_tokens": int(known.inputs.sum()), "total_output_tokens": outputs,
        "request_throughput": len(known.sent) / known.duration, "request_goodput": None,
        "output_throughput": outputs / known.duration,
        "total_token_throughput": (outputs + int(known.inputs.sum())) / known.duration,
        "max_output_tokens_per_s": 50.0, "max_concurrent_requests": 3, "rtfx": 0.0,
    }  # fmt: skip
    for name, values in known.series().items():
        result |= {
            f"{stat}_{name}_ms": v
            for stat, v in known.stats(values).items()
            if stat in ("mean", "median", "std", "p99")
        }
    if detailed:
        result |= {
            "input_lens": known.inputs.tolist(), "output_lens": known.outputs.tolist(), "ttfts": known.ttft.tolist(),
            "itls": known.gaps, "generated_texts": ["x"] * len(known.sent), "errors": [""] * len(known.sent),
        }  # fmt: skip
        if times:
            result |= {"latencies": known.latency.tolist(), "start_times": (known.sent + 5000).tolist()}
    return result | changes


def sglang(known: Known, *, detailed: bool = True, **changes) -> str:
    """A line of `bench_serving`."""
    outputs = int(known.outputs.sum())
    result = {
        "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "max_concurrency": 4,
        "random_input_len": 1024, "random_output_len": 128, "random_range_ratio": 0.0, "sharegpt_output_len": None,
        "duration": known.duration, "completed": len(known.sent), "total_input_tokens": int(known.inputs.sum()),
        "total_output_tokens": outputs, "total_output_tokens_retokenized": outputs - 1,
        "request_throughput": len(known.sent) / known.duration,
        "input_throughput": int(known.inputs.sum()) / known.duration, "output_throughput": outputs / known.duration,
        "total_throughput": (outputs + int(known.inputs.sum())) / known.duration, "concurrency": 2.0, "accept_length": None,
    }  # fmt: skip
    for name, values in known.series().items():
        theirs = name.replace("e2el", "e2e_latency")
        result |= {f"{stat}_{theirs}_ms": v for stat, v in known.stats(values).items() if stat != "p50"}
    if detailed:
        result |= {
            "input_lens": known.inputs.tolist(), "output_lens": known.outputs.tolist(), "ttfts": known.ttft.tolist(),
            "itls": known.gaps, "generated_texts": ["x"] * len(known.sent), "errors": [""] * len(known.sent),
        }  # fmt: skip
    return json.dumps(result | changes)  # with Infinity, as the tool writes it


def guidellm(known: Known, *, requests: bool = True, benchmarks: int = 1, **metadata) -> dict:
    """A report."""

    def summary(values: np.ndarray, factor: float = 1.0) -> dict:
        stats = known.stats(values, factor)
        points = {"p001": 0.0, "p50": stats["p50"], "p90": stats["p90"], "p95": stats["p95"], "p99": stats["p99"]}
        good = {
            "mean": stats["mean"], "median": stats["median"], "mode": 0.0, "variance": stats["std"] ** 2,
            "std_dev": stats["std"], "min": 0.0, "max": 0.0, "count": len(values),
            "total_sum": float(np.sum(values) * factor), "percentiles": points,
        }  # fmt: skip
        return {"successful": good, "incomplete": None, "errored": None, "total": good}

    def rate(value: float) -> dict:
        return {"successful": {"mean": value, "median": value, "count": 1}}

    size, outputs = len(known.sent), int(known.outputs.sum())
    rows = [
        {
            "type_": "generative_request_stats", "request_id": str(i), "request_start_time": START + known.sent[i],
            "request_end_time": START + known.sent[i] + known.latency[i] + 0.2, "request_latency": known.latency[i] + 0.2,
            "prompt_tokens": int(known.inputs[i]), "output_tokens": int(known.outputs[i]),
            "time_to_first_token_ms": known.ttft[i] * 1e3, "inter_token_latency_ms": known.tpot[i] * 1e3,
        }
        for i in range(size)
    ]  # fmt: skip
    item = {
        "type_": "generative_benchmark", "config": {"strategy": {"type_": "concurrent", "streams": 4}, "model": "llama"},
        "scheduler_metrics": {}, "start_time": START, "end_time": START + known.duration, "duration": known.duration,
        "metrics": {
            "request_totals": {"successful": size, "incomplete": 0, "errored": 0, "total": size},
            "requests_per_second": rate(size / known.duration), "output_tokens_per_second": rate(outputs / known.duration),
            "tokens_per_second": rate((outputs + int(known.inputs.sum())) / known.duration),
            "request_concurrency": rate(2.0), "request_latency": summary(known.latency + 0.2),
            "prompt_token_count": summary(known.inputs), "output_token_count": summary(known.outputs),
            "time_to_first_token_ms": summary(known.ttft, 1e3), "inter_token_latency_ms": summary(known.tpot, 1e3),
            "time_per_output_token_ms": summary(known.latency / known.outputs, 1e3),
        },
        "requests": {"successful": rows if requests else rows[:3], "incomplete": [], "errored": []},
    }  # fmt: skip
    return {"metadata": {"version": 1, "guidellm_version": "0.5.0"} | metadata, "benchmarks": [item] * benchmarks}


def aiperf(known: Known, **changes) -> dict:
    """`profile_export_aiperf.json`."""

    def summary(values: np.ndarray, unit: str = "ms", factor: float = 1e3) -> dict:
        stats = known.stats(values, factor)
        points = {key: stats[key] for key in ("p50", "p90", "p95", "p99")}
        return {"unit": unit, "avg": stats["mean"], "std": stats["std"], "min": 0.0, "max": 1.0} | points

    outputs = int(known.outputs.sum())
    return {
        "schema_version": "1.3", "aiperf_version": "0.4.0",
        "input_config": {"endpoint": {"model_names": ["llama"]}, "loadgen": {"concurrency": 4}},
        "request_throughput": {"unit": "requests/sec", "avg": len(known.sent) / known.duration},
        "output_token_throughput": {"unit": "tokens/sec", "avg": outputs / known.duration},
        "request_count": {"unit": "requests", "avg": float(len(known.sent))},
        "benchmark_duration": {"unit": "sec", "avg": known.duration},
        "request_latency": summary(known.latency), "time_to_first_token": summary(known.ttft, "sec", 1.0),
        "inter_token_latency": summary(known.tpot),
        "input_sequence_length": summary(known.inputs, "tokens", 1.0),
        "output_sequence_length": summary(known.outputs, "tokens", 1.0),
        "was_cancelled": False, "error_summary": [],
    } | changes  # fmt: skip


def aiperf_records(known: Known) -> str:
    """`profile_export.jsonl`, with a request of the warm-up in front."""
    lines = []
    for i in (0, *range(len(known.sent))):
        begun = round((START + known.sent[i]) * 1e9)
        lines.append(
            {
                "metadata": {
                    "session_num": i, "request_start_ns": begun, "request_end_ns": begun + round(known.latency[i] * 1e9),
                    "benchmark_phase": "profiling" if lines else "warmup", "was_cancelled": False,
                },
                "metrics": {
                    "time_to_first_token": {"value": known.ttft[i] * 1e3, "unit": "ms"},
                    "request_latency": {"value": known.latency[i] * 1e3, "unit": "ms"},
                    "inter_token_latency": {"value": known.tpot[i] * 1e3, "unit": "ms"},
                    "input_sequence_length": {"value": int(known.inputs[i]), "unit": "tokens"},
                    "output_sequence_length": {"value": int(known.outputs[i]), "unit": "tokens"},
                },
                "error": None,
            }
        )  # fmt: skip
    return "".join(json.dumps(line) + "\n" for line in lines)


def aiperf_table(known: Known) -> str:
    """`profile_export_aiperf.csv`."""
    rows = ["Metric,avg,min,max,p50,p90,p95,p99,std"]
    for name, values in (
        ("Inter Token Latency (ms)", known.tpot), ("Request Latency (ms)", known.latency),
        ("Time to First Token (ms)", known.ttft),
    ):  # fmt: skip
        s = known.stats(values)
        rows.append(
            f"{name},{s['mean']:.4f},0,1,{s['p50']:.4f},{s['p90']:.4f},{s['p95']:.4f},{s['p99']:.4f},{s['std']:.4f}"
        )
    rate = int(known.outputs.sum()) / known.duration
    rows += ["", "Metric,Value", f"Output Token Throughput (tokens/sec),{rate:.4f}", f"Request Count,{len(known.sent)}"]
    return "\n".join(rows) + "\n"


def inference_perf(known: Known, **load) -> dict:
    """`summary_lifecycle_metrics.json`, or a stage with a rate or concurrency."""

    def summary(values: np.ndarray) -> dict:
        stats = known.stats(values, 1.0)
        return {k: v for k, v in stats.items() if k not in ("p50", "std")} | {"min": 0.0, "max": 1.0}

    outputs, inputs = float(known.outputs.sum()), float(known.inputs.sum())
    names = {
        "time_to_first_token": known.ttft, "time_per_output_token": known.tpot, "request_latency": known.latency,
        "inter_token_latency": known.series()["itl"], "normalized_time_per_output_token": known.tpot,
    }  # fmt: skip
    return {
        "benchmark_time_seconds": known.duration,
        "load_summary": {"count": len(known.sent), "schedule_delay": {"mean": 0.0}} | load,
        "successes": {
            "count": len(known.sent), "latency": {name: summary(values) for name, values in names.items()},
            "throughput": {
                "input_tokens_per_sec": inputs / known.duration, "output_tokens_per_sec": outputs / known.duration,
                "total_tokens_per_sec": (inputs + outputs) / known.duration,
                "requests_per_sec": len(known.sent) / known.duration,
            },
            "prompt_tokens": {"total": inputs}, "output_tokens": {"total": outputs},
        },
        "failures": {"count": 0, "request_latency": None, "by_label": {}},
    }  # fmt: skip


def inference_perf_requests(known: Known) -> list[dict]:
    """`per_request_lifecycle_metrics.json`."""
    rows = []
    for i in range(len(known.sent)):
        begun = float(known.sent[i]) + 100
        times = np.repeat(begun + known.ttft[i] + np.concatenate([[0.0], np.cumsum(known.gaps[i])]), known.chunk)
        rows.append(
            {
                "start_time": begun, "end_time": begun + float(known.latency[i]) + 0.3, "error": None,
                "info": {
                    "request_metrics": {"text": {"input_tokens": int(known.inputs[i])}},
                    "response_metrics": {"output_tokens": int(known.outputs[i]), "output_token_times": times.tolist()},
                },
            }
        )  # fmt: skip
    return rows
