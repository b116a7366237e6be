"""How many requests a second the simulator's loop takes, and that neither their number nor a queue makes it slow.

Ratios are asserted, never seconds: a figure belongs to its machine.
"""

from __future__ import annotations

import gc
import time

import pytest
from simulate import workload

from experiments import runner
from reports.metrics import summarize
from reports.run_data import RunData

SCHEDULERS = ("static", "continuous", "chunked-prefill")
ALLOCATORS = ("contiguous", "paged", "radix")
PRESETS = ("vllm", "sglang", "tensorrt-llm", "lightllm")


def poisson(requests: int, rate: float = 60, **engine: object) -> runner.Resolved:
    """512 tokens in, 128 out, Llama-3-8B on one H100, traffic made beforehand."""
    synthetic = {
        "requests": requests, "arrivals": {"process": "poisson", "rate": rate}, "input_tokens": 512, "output_tokens": 128,
    }  # fmt: skip
    resolved = runner.resolve(
        workload({"traffic": {"max_tokens": "exact", "synthetic": synthetic}, "engine": dict(engine)})
    )
    assert len(resolved.traffic) == requests
    return resolved


def measure(benchmark, resolved: runner.Resolved, rounds: int) -> RunData:
    """Time the run alone and note what it was like."""
    found: list[RunData] = []
    benchmark.pedantic(lambda: found.append(runner.run(resolved)), rounds=rounds, warmup_rounds=1 if rounds > 1 else 0)
    quickest = min(found, key=lambda data: data.host["wall_seconds"])
    summary = summarize(quickest, with_intervals=False)
    assert summary["completed"] == len(resolved.traffic)
    benchmark.extra_info |= {
        "requests_per_second": round(quickest.host["requests_per_second"]),
        "steps_per_second": round(quickest.host["steps_per_second"]),
        "output_tokens_per_second": round(summary["total_output_tokens"] / quickest.host["wall_seconds"]),
        "arrival_rate": round(summary["arrival_rate"], 1),
        "engine_steps": summary["engine_steps"],
        "mean_batch": round(summary["mean_batch"], 1),
        "times_real_time": round(quickest.info["end"] / quickest.host["wall_seconds"]),
    }
    return quickest


def cpu_seconds(resolved: runner.Resolved, rounds: int = 2) -> float:
    """Processor time of the quickest of several runs."""
    times = []
    for _ in range(rounds):
        gc.collect()
        began = time.process_time()
        runner.run(resolved)
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_ten_thousand_requests(benchmark, scheduler: str, allocator: str) -> None:
    measure(benchmark, poisson(10_000, scheduler={"name": scheduler}, kv={"allocator": allocator}), rounds=3)


@pytest.mark.parametrize("preset", PRESETS)
def test_ten_thousand_requests_on_a_preset(benchmark, preset: str) -> None:
    measure(benchmark, poisson(10_000, preset=preset), rounds=3)


@pytest.mark.parametrize("allocator", ["paged", "radix"])
def test_shared_prefixes(benchmark, allocator: str) -> None:
    resolved = runner.resolve(
        workload(
            {
                "traffic.synthetic.requests": 5000,
                "traffic.synthetic.prefix": {"kind": "system-prompts", "count": 8, "tokens": 1500},
                "engine.kv": {"allocator": allocator},
            }
        )
    )
    measure(benchmark, resolved, rounds=3)


def test_ten_times_the_requests_cost_about_ten_times_as_much(benchmark) -> None:
    """Nothing in the loop may look at all that has been: quadratic checks are the usual fault."""
    few = cpu_seconds(poisson(10_000))
    many: list[float] = []
    benchmark.pedantic(lambda: many.append(cpu_seconds(poisson(100_000), rounds=1)), rounds=1)
    benchmark.extra_info["ratio"] = round(many[0] / few, 2)
    assert many[0] / few <= 12


def test_a_queue_does_not_make_requests_dearer(benchmark) -> None:
    """Past capacity thousands wait; a request must not cost more processor time than in calm, where batches are smaller."""
    calm = cpu_seconds(poisson(10_000, rate=40))
    crowded: list[float] = []
    benchmark.pedantic(lambda: crowded.append(cpu_seconds(poisson(10_000, rate=120))), rounds=1)
    benchmark.extra_info["ratio"] = round(crowded[0] / calm, 2)
    assert crowded[0] / calm <= 1.2


def test_too_little_memory_does_not_make_requests_much_dearer(benchmark) -> None:
    """With preemptions all the time a run takes under five times the processor time of one with room."""
    pressed = poisson(2000, kv={"capacity_tokens": 40_000}, preset="vllm@0.8")
    roomy = cpu_seconds(poisson(2000, preset="vllm@0.8"))
    tight: list[float] = []
    benchmark.pedantic(lambda: tight.append(cpu_seconds(pressed)), rounds=1)
    benchmark.extra_info |= {
        "ratio": round(tight[0] / roomy, 2), "preemptions": int(runner.run(pressed).requests.preemptions.sum()),
    }  # fmt: skip
    assert benchmark.extra_info["preemptions"] > 100
    assert tight[0] / roomy < 5


def test_smoke(benchmark) -> None:
    """The measurement itself, small enough for every test run."""
    data = measure(benchmark, poisson(500), rounds=1)
    assert benchmark.extra_info["requests_per_second"] > 0 and data.host["steps_per_second"] > 0
