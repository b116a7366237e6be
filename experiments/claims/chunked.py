"""Chunked prefill: what a token budget does to the first token and to the gaps between tokens.

Chat traffic as in Azure's trace of 2023 on Llama-3-8B and one H100, faster than recorded. Without chunks a prompt is
computed whole, in a step of its own, and everybody who decodes waits (vLLM v0's rule). With chunks a step takes what
its budget leaves beside the decodes: the smaller the budget, the shorter the stall of the others, and the more steps
a prompt takes.
"""

from __future__ import annotations

import itertools

from experiments.claims.base import Chart, Check, Result, Table, Verdict, more
from experiments.claims.simulate import simulate

NAME, TITLE = "chunked-prefill", "Chunked prefill: first token against gaps between tokens"
WORKLOAD = """
name: chunked prefill
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
engine: {preset: vllm}
traffic:
  trace: {format: twinserve, path: chat.jsonl.gz, duration: 10min, rate_scale: 2.0}
load: {mode: open}
slo: {ttft_ms: 500, tpot_ms: 50}
"""
SLIP = 1.10  # a step the wrong way that counts as chance
BUDGETS = (256, 512, 1024, 2048, 4096, 8192)


def run(small: bool = False) -> Result:
    """The experiment; `small` takes two minutes of the trace."""
    part = {"traffic.trace.duration": "2min" if small else "10min"}
    whole = simulate(WORKLOAD, {**part, "engine.preset": "vllm-v0", "engine.scheduler.max_num_batched_tokens": 8192})
    runs = {
        budget: simulate(WORKLOAD, {**part, "engine.scheduler.max_num_batched_tokens": budget}) for budget in BUDGETS
    }
    full = {"load": {"mode": "closed", "concurrency": 256}, "traffic.trace.limit": 1000 if small else 3000}
    crowded = {
        name: simulate(WORKLOAD, {**full, **change})["output_throughput"]
        for name, change in {
            "prefill first": {"engine.preset": "vllm-v0", "engine.scheduler.max_num_batched_tokens": 8192},
            **{f"{b:,}": {"engine.scheduler.max_num_batched_tokens": b} for b in (512, 2048)},
        }.items()
    }
    rows = (("prefill first", *_figures(whole)), *((f"{budget:,}", *_figures(one)) for budget, one in runs.items()))
    table = Table(
        "Chat on one H100 at twice its rate",
        ("budget", "p50 TTFT ms", "p95 TTFT ms", "p50 ITL ms", "p99 ITL ms", "output tokens/s"), rows,
    )  # fmt: skip
    charts = (
        Chart(
            "Smaller chunks: shorter stalls, later first tokens", "lines", BUDGETS,
            {
                "p99 ITL": [one["p99_itl_ms"] for one in runs.values()],
                "p95 TTFT": [one["p95_ttft_ms"] for one in runs.values()],
                "p50 TTFT": [one["median_ttft_ms"] for one in runs.values()],
            },
            "tokens of a step (budget)", "ms", log_x=True, log_y=True, level=(whole["p99_itl_ms"], "p99 ITL, prefill first"),
        ),
    )  # fmt: skip
    return Result(NAME, TITLE, (table,), charts, (_trade(runs), _against(whole, runs, crowded)), small)


def _figures(one: object) -> tuple[float, ...]:
    keys = ("median_ttft_ms", "p95_ttft_ms", "median_itl_ms", "p99_itl_ms", "output_throughput")
    return tuple(one[key] for key in keys)


def _trade(runs: dict) -> Verdict:
    gaps = [one["p99_itl_ms"] for one in runs.values()]
    firsts = [one["p95_ttft_ms"] for one in runs.values()]
    best = BUDGETS[firsts.index(min(firsts))]
    falling = all(a <= b * SLIP for a, b in itertools.pairwise(gaps)) and gaps[-1] >= 2 * gaps[0]
    rising = all(a * SLIP >= b for a, b in itertools.pairwise(firsts)) and firsts[0] >= 2 * firsts[-1]
    return Verdict(
        "a smaller token budget gives better gaps between tokens, a larger one a better time to first token",
        "vLLM documentation, Optimization and Tuning, Chunked Prefill",
        (
            Check("p99 ITL at least halves as the budget falls, with no step up by 10 %", "yes",
                  f"{gaps[-1]:.0f} to {gaps[0]:.0f} ms", falling),
            Check("p95 TTFT at least doubles, with no step down by 10 %", "yes",
                  f"{firsts[-1]:.0f} to {firsts[0]:.0f} ms", rising),
        ),
        f"From {BUDGETS[-1]:,} to {BUDGETS[0]:,} tokens p99 ITL falls by {(1 - gaps[0] / gaps[-1]) * 100:.0f} %, "
        f"and p95 TTFT is {firsts[0] / firsts[-1]:.3g} times as long. The best p95 TTFT is at {best:,}: a budget "
        "beyond most prompts changes little.",
    )  # fmt: skip


def _against(whole: object, runs: dict, crowded: dict) -> Verdict:
    usual = runs[2048]
    gap, first = usual["p99_itl_ms"] / whole["p99_itl_ms"], usual["p95_ttft_ms"] / whole["p95_ttft_ms"]
    rate, tiny = (crowded[name] / crowded["prefill first"] for name in ("2,048", "512"))
    prompt = whole["total_input_tokens"] / whole["completed"]
    return Verdict(
        "chunked prefill removes the stalls of decodes without losing throughput",
        "Agrawal et al., Sarathi-Serve (OSDI 2024)",
        (
            Check("p99 ITL with a budget of 2,048, against prefill first", "lower", more(gap), gap < 0.98),
            Check("output tokens a second with 256 in flight", "no loss (> −5 %)", more(rate), rate > 0.95),
            Check("the same with a budget of 512", "no loss (> −5 %)", more(tiny), tiny > 0.95),
            Check("p95 TTFT at most a fifth longer", "yes", more(first), first < 1.2),
        ),
        f"Prefill first packs whole prompts, {prompt:,.0f} tokens on average, into steps of up to 8,192 in which "
        f"nobody decodes: p99 ITL is {whole['p99_itl_ms']:.0f} ms. Chunks bound that at {usual['p99_itl_ms']:.0f} "
        f"ms for {more(first)} in p95 TTFT. With the engine full, budgets of 2,048 and 512 change throughput by "
        f"{more(rate)} and {more(tiny)}: decodes ride along with prompts; the smaller the chunks, the more often "
        "weights are read for the same prompts.",
    )  # fmt: skip
