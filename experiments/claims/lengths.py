"""What synthetic lengths do to a benchmark.

The chat trace (lengths as in Azure's conversations of 2023) against made-up requests with the same means: all equal,
and uniform between nothing and twice the mean; and against the same lengths at even times. What each says of the same
engine at the same rate.
"""

from __future__ import annotations

from typing import Any

from experiments.claims.base import Chart, Check, Result, Table, Verdict, more
from experiments.claims.simulate import Run, simulate

NAME, TITLE = "lengths", "Synthetic lengths against real ones"
REAL = """
name: lengths
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
engine: {preset: vllm}
traffic:
  max_tokens: exact
  trace: {format: twinserve, path: chat.jsonl.gz, duration: 10min, rate_scale: 3.0}
load: {mode: open}
slo: {ttft_ms: 500, tpot_ms: 50}
"""
WORKLOAD = REAL
FIGURES = (("p50 TTFT", "median_ttft_ms"), ("p95 TTFT", "p95_ttft_ms"), ("p99 TTFT", "p99_ttft_ms"),
           ("p99 ITL", "p99_itl_ms"), ("p95 E2E", "p95_e2el_ms"))  # fmt: skip


def synthetic(real: Run, lengths: str) -> dict[str, Any]:
    """Made-up requests as many, at as high a rate, with the same mean lengths."""
    asked = real.data.requests
    count, span = len(asked), float(asked.sent.max() - asked.sent.min())
    means = {"input_tokens": float(asked.input_tokens.mean()), "output_tokens": float(asked.output_tokens.mean())}
    laws = {
        "equal": lambda mean: round(mean),
        "uniform": lambda mean: {"distribution": "uniform", "low": 1, "high": round(2 * mean) - 1},
    }
    arrivals = {"process": "poisson", "rate": (count - 1) / span}
    made = {name: laws[lengths](mean) for name, mean in means.items()}
    return {"traffic.trace": None, "traffic.synthetic": {"requests": count, "arrivals": arrivals, **made}}


def run(small: bool = False) -> Result:
    """The experiment; `small` takes two minutes of the trace."""
    part = {"traffic.trace.duration": "2min" if small else "10min"}
    real = simulate(REAL, part)
    rate = len(real.data.requests) / float(real.data.requests.sent.max())
    runs = {
        "trace": real,
        "equal lengths": simulate(REAL, {**part, **synthetic(real, "equal")}),
        "uniform lengths": simulate(REAL, {**part, **synthetic(real, "uniform")}),
        "even arrivals": simulate(REAL, {**part, "traffic.trace.arrivals": {"process": "constant", "rate": rate}}),
    }
    rows = tuple(
        (name, *(one[key] for _, key in FIGURES), one["output_throughput"], one["max_concurrent_requests"])
        for name, one in runs.items()
    )
    table = Table(
        f"Chat on one H100 at {rate:.1f} requests a second",
        ("traffic", *(f"{name} ms" for name, _ in FIGURES), "output tokens/s", "most in flight"), rows,
    )  # fmt: skip
    off = {name: [one[key] / real[key] for _, key in FIGURES] for name, one in runs.items() if name != "trace"}
    chart = Chart(
        "What made-up traffic says, over what the trace says", "bars", tuple(name for name, _ in FIGURES), off,
        "", "times the trace's figure", level=(1.0, "trace"),
    )  # fmt: skip
    return Result(NAME, TITLE, (table,), (chart,), (_verdict(runs, off),), small)


def _verdict(runs: dict, off: dict) -> Verdict:
    equal = dict(zip((name for name, _ in FIGURES), off["equal lengths"], strict=True))
    uniform = dict(zip((name for name, _ in FIGURES), off["uniform lengths"], strict=True))
    rate = runs["equal lengths"]["output_throughput"] / runs["trace"]["output_throughput"]
    even = dict(zip((name for name, _ in FIGURES), off["even arrivals"], strict=True))
    tails = ("p95 TTFT", "p99 TTFT", "p99 ITL", "p95 E2E")
    return Verdict(
        "synthetic loads mislead where their lengths are not distributed as real ones: measure with your own",
        "an overview of serving engines",
        (
            Check("equal lengths: tails off by more than a fifth", "yes", ", ".join(f"{n} {more(equal[n])}" for n in tails),
                  any(abs(equal[n] - 1) > 0.2 for n in tails)),
            Check("uniform lengths: tails off by more than a fifth", "yes", ", ".join(f"{n} {more(uniform[n])}" for n in tails),
                  any(abs(uniform[n] - 1) > 0.2 for n in tails)),
            Check("equal lengths: output tokens a second within 5 %", "the mean is kept", more(rate), abs(rate - 1) <= 0.05),
        ),
        f"Throughput of a stable engine is what arrives, so that it says nothing ({more(rate)}). Equal lengths tell "
        f"a p99 TTFT that is {more(equal['p99 TTFT'])} and a p95 latency that is {more(equal['p95 E2E'])}; uniform "
        f"ones {more(uniform['p99 TTFT'])} and {more(uniform['p95 E2E'])}. Times matter too: the trace's own "
        f"lengths at even times give {more(even['p99 TTFT'])} in p99 TTFT.",
    )  # fmt: skip
