"""Static against continuous batching.

The source served OPT-13B on one A100 with 40 GB: 1,000 prompts of 512 tokens, all at once, whose answers have an
exponential length of 128 tokens on average, drawn again where they pass a limit of 32 to 1,536 (the higher, the more
lengths differ). Its static batches had 16, 12, 8 and 4 requests, what fits at each limit; its vLLM had a token budget
for each (anyscale/llm-continuous-batching-benchmarks has the scripts). The same here, and Orca between them: it
refills at every step, into slabs as long as static batching has. All are priced with the same kernels, so that only
batching and memory differ. The 23 is against Hugging Face's pipelines, whose slow kernels and host are no part of
batching: the source's own figure for well-made static batching, FasterTransformer, is 4 times that.
"""

from __future__ import annotations

import math
from typing import Any

from experiments.claims.base import Chart, Check, Result, Table, Verdict, times
from experiments.claims.simulate import simulate

NAME, TITLE = "batching", "Static against continuous batching"
WORKLOAD = """
name: static against continuous batching
model: facebook/opt-13b
backend: {name: sim, gpu: a100-40gb}
engine: {preset: vllm-v0}
traffic:
  max_tokens: {fixed: 1536}             # every client declares the limit; most answers end before
  synthetic:
    requests: 1000
    arrivals: {process: at-once}
    input_tokens: 512
    output_tokens: 128
load: {mode: open}
"""
LIMITS = {32: (16, 8700), 128: (12, 7500), 512: (8, 8100), 1536: (4, 8100)}  # → static batch, vLLM's token budget
MEAN, STEPS = 128, 64
SEEDS = (0, 1, 2)  # other lengths of answers, of the same law
ENGINES = ("static", "orca", "vllm-v0", "vllm")
CLAIMED, NAIVE_TO_GOOD = 23.0, 4.0  # over naive static batching; well-made static batching over naive, same source


def answers(limit: int) -> dict[str, Any]:
    """The law of answers: exponential, drawn again above the limit, by its quantiles."""
    below = 1 - math.exp(-limit / MEAN)
    values = {step / STEPS: -MEAN * math.log(1 - step / STEPS * below) for step in range(STEPS + 1)}
    return {"distribution": "quantiles", "values": {share: max(round(value), 1) for share, value in values.items()}}


def _changes(engine: str, limit: int, requests: int, seed: int) -> dict[str, Any]:
    batch, budget = LIMITS[limit]
    changes = {
        "seed": seed,
        "engine.preset": engine,
        "traffic.max_tokens": {"fixed": limit},
        "traffic.synthetic.output_tokens": answers(limit),
        "traffic.synthetic.requests": requests,
    }
    if engine in ("static", "orca"):  # FasterTransformer's buffer: prompt plus the longest answer that may be asked for
        changes |= {"engine.max_model_len": 512 + limit}
    if engine == "static":
        changes |= {"engine.scheduler.max_num_seqs": batch}
    if engine == "vllm-v0":
        changes |= {"engine.scheduler.max_num_batched_tokens": budget}
    return changes


def throughputs(requests: int, seed: int = 0) -> dict[str, list[float]]:
    """Output tokens a second of each engine, one for each limit of `LIMITS`."""
    return {
        engine: [simulate(WORKLOAD, _changes(engine, limit, requests, seed))["output_throughput"] for limit in LIMITS]
        for engine in ENGINES
    }


def run(small: bool = False) -> Result:
    """The experiment; `small` takes a tenth of the requests."""
    requests = 100 if small else 1000
    found = throughputs(requests)
    gains = [vllm / static for static, vllm in zip(found["static"], found["vllm-v0"], strict=True)]
    refill = [orca / static for static, orca in zip(found["static"], found["orca"], strict=True)]
    fair = CLAIMED / NAIVE_TO_GOOD
    others = [found] + [throughputs(requests, seed) for seed in SEEDS[1:]]
    spread = [max(a / b for a, b in zip(each["vllm-v0"], each["static"], strict=True)) for each in others]
    best = max(gains)
    at = list(LIMITS)[gains.index(best)]
    verdict = Verdict(
        "continuous batching gives up to 23 times the throughput of static batching",
        "Anyscale, How continuous batching enables 23x throughput in LLM inference (2023): OPT-13B, A100 40 GB, vLLM",
        (
            Check("continuous batching with paging is faster at every limit", "> 1x", times(min(gains)), min(gains) > 1),
            Check(
                "gain over static batching with the same kernels (23x over naive ÷ 4x by kernels, within a third)",
                times(fair), times(best), fair / 1.33 <= best <= fair * 1.33,
            ),
            Check("23x by batching and memory alone", ">= 18.4x", times(best), best >= 0.8 * CLAIMED),
        ),
        f"With equal kernels batching and paging give at most {times(best)} (limit {at}); refilling alone, with the "
        f"old slabs, {times(max(refill))}. What is missing to 23, a factor of {CLAIMED / best:.2g}, is Hugging "
        f"Face's slow pipeline (the source itself puts it at {NAIVE_TO_GOOD:.0f}), not static batching. And it "
        f"takes variable lengths: with answers of {min(LIMITS)} tokens at most the gain is {times(gains[0])}. Other "
        f"draws of lengths give {times(min(spread))} to {times(max(spread))} at most.",
    )  # fmt: skip
    rows = tuple((engine, *values) for engine, values in found.items())
    rows += (("vllm-v0 over static", *(times(gain) for gain in gains)),)
    table = Table(
        f"Output tokens a second, {requests:,} requests", ("engine", *(f"limit {limit:,}" for limit in LIMITS)), rows
    )
    chart = Chart(
        "Gain over static batching, equal kernels", "bars", tuple(f"limit {limit}" for limit in LIMITS),
        {"orca: refill at every step": refill, "vLLM: refill and pages": gains},
        "longest answer (tokens): the higher, the more lengths differ", "throughput over static", level=(1.0, "static"),
    )  # fmt: skip
    return Result(NAME, TITLE, (table,), (chart,), (verdict,), small)
