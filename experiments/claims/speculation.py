"""Speculative decoding: what a step of verification costs as the batch grows.

The claim is about the price of a step, which the cost model has; whole runs are in docs/howto/speculation.md:
verifying k drafts computes k + 1 tokens for every sequence, at little more than the price of one while a step is
bound by reading weights, and at k + 1 times the price once it is bound by compute. With a rate of acceptance a, (1 −
a^(k+1)) / (1 − a) tokens come of a step (Leviathan et al. 2023). The drafts are those of a model whose decode step is
priced too. Batches stand for load.
"""

from __future__ import annotations

from functools import cache

from experiments.claims.base import Chart, Check, Result, Table, Verdict, times
from experiments.claims.simulate import resolved
from sim.cost.base import StepShape

NAME, TITLE = "speculation", "Speculative decoding at low and high load, by the price of a step"
WORKLOAD = """
name: speculation
model: meta-llama/Llama-3.1-70B
backend: {name: sim, gpu: h100-sxm}
engine: {preset: vllm, parallel: {tensor: 4}, max_model_len: 8192}
traffic:
  synthetic: {requests: 1, input_tokens: 512, output_tokens: 128}
"""
DRAFT = {"model": "meta-llama/Llama-3.2-1B"}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DRAFTS, CONTEXT = 4, 1024
ACCEPTANCES = (0.6, 0.7, 0.8)  # of text with a draft model a tenth of the size or less; published: 0.5 to 0.9


@cache
def _cost(draft: bool) -> object:
    return resolved(WORKLOAD, DRAFT if draft else {}).cost


def _decode(draft: bool, batch: int) -> float:
    line = _cost(draft).decode_line(batch, batch * CONTEXT)
    return line.intercept + line.slope * batch * CONTEXT


def _verify(batch: int) -> float:
    """A step in which every sequence computes its drafts and one token more, and all of them are looked at."""
    chunks = ((DRAFTS + 1, CONTEXT - 1),) * batch
    return _cost(False).step_seconds(StepShape(chunks=chunks, sampled=batch * (DRAFTS + 1)))


def speedup(batch: int, acceptance: float) -> float:
    """Tokens a second with speculation over without, at a batch."""
    tokens = (1 - acceptance ** (DRAFTS + 1)) / (1 - acceptance)
    return tokens * _decode(False, batch) / (DRAFTS * _decode(True, batch) + _verify(batch))


def run(small: bool = False) -> Result:
    """The experiment; it is as quick in full."""
    gains = {f"{a:.0%} accepted": [speedup(batch, a) for batch in BATCHES] for a in ACCEPTANCES}
    dear = [_verify(batch) / _decode(False, batch) for batch in BATCHES]
    rows = tuple(
        (batch, _decode(False, batch) * 1e3, _verify(batch) * 1e3, dear[place], DRAFTS * _decode(True, batch) * 1e3,
         *(gain[place] for gain in gains.values()))
        for place, batch in enumerate(BATCHES)
    )  # fmt: skip
    table = Table(
        f"Llama-3.1-70B on four H100, {DRAFTS} drafts of Llama-3.2-1B, {CONTEXT:,} tokens of context",
        ("batch", "decode ms", "verify ms", "verify over decode", "drafts ms", *(f"speed, {name}" for name in gains)), rows,
    )  # fmt: skip
    chart = Chart(
        "Tokens a second with speculation over without", "lines", BATCHES, gains, "batch", "times as fast", log_x=True,
        level=(1.0, "without"),
    )  # fmt: skip
    middle = gains[f"{0.7:.0%} accepted"]
    low, high = middle[0], middle[-1]
    even = next((batch for batch, gain in zip(BATCHES, middle, strict=True) if gain < 1), None)
    poor = gains[f"{ACCEPTANCES[0]:.0%} accepted"]
    verdict = Verdict(
        "speculative decoding helps at low and medium load and hurts at high load",
        "an analysis of vLLM and TensorRT-LLM",
        (
            Check("batch 1, 70 % accepted", "> 1.2x", times(low), low > 1.2),
            Check("batch 16, 70 % accepted", "> 1x", times(middle[4]), middle[4] > 1),
            Check(f"batch {BATCHES[-1]}, 70 % accepted", "< 1x", times(high), high < 1),
        ),
        f"A verification costs {times(dear[0])} a plain step at batch 1 and {times(dear[-1])} at {BATCHES[-1]}. "
        f"With 70 % accepted the gain goes from {times(low)} to {times(high)}, and is gone "
        f"{f'from batch {even} on' if even else 'nowhere in this range'}; with {ACCEPTANCES[0]:.0%} it ends at "
        f"{times(poor[-1])}. Step prices only; whole runs, with queues, memory for drafts and varying acceptance, "
        "are in workloads/examples/speculation-sweep.yaml.",
        "the price of a step",
    )  # fmt: skip
    return Result(NAME, TITLE, (table,), (chart,), (verdict,), small)
