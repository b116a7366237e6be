"""Quantized weights and KV: what they gain in speed at which batch, and in requests at once.

NVIDIA's figures are for Llama-2-7B on one H100 with TensorRT-LLM: 1,024 tokens in, 128 out, whole batches of 1 and 8,
FP8 weights, activations and KV cache against FP16. The rest asks which mode is fastest at which batch (decode steps
of Llama-3.1-8B with 1,024 tokens of context, and whole static batches), and whether the gains of FP8 weights and FP8
KV add up under load. What each mode costs in quality is not simulated: `bench quality` measured it on a small real
model, and its figures stand beside.
"""

from __future__ import annotations

from functools import cache

from experiments.claims.base import Chart, Check, Result, Table, Verdict, more, per_cent, times
from experiments.claims.simulate import resolved, simulate
from sim.models import load_model
from sim.quantization import load_weight_mode
from sim.quantization.quality import measured_quality

NAME, TITLE = "quantization", "Quantized weights and KV: which pays when"
STATIC = """
name: whole batches
model: meta-llama/Llama-2-7b-hf
backend: {name: sim, gpu: h100-sxm}
engine: {preset: tensorrt-llm, quantization: fp16, kv: {dtype: fp16}}
traffic:
  max_tokens: exact
  synthetic: {requests: 8, arrivals: {process: at-once}, input_tokens: 1024, output_tokens: 128}
load: {mode: open}
"""
SERVED = """
name: FP8 weights and FP8 KV under load
model: meta-llama/Llama-3.1-8B
backend: {name: sim, gpu: h100-sxm}
engine: {preset: vllm, quantization: bf16, kv: {dtype: bf16}}
traffic:
  max_tokens: exact
  synthetic:
    requests: 600
    arrivals: {process: at-once}
    input_tokens: {distribution: lognormal, mean: 4000, std: 3000, high: 30000}
    output_tokens: {distribution: lognormal, mean: 400, std: 300, high: 2000}
load: {mode: open}
"""
WORKLOAD = SERVED
CLAIMED = {1: 1.51, 8: 1.40}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MODES = {"bf16": "bf16", "W8A16": "int8-w8a16", "W4A16": "awq-int4", "FP8 W8A8": "fp8"}
CONTEXT = 1024


def whole_batch(batch: int, weights: str, kv: str) -> float:
    """Output tokens a second of one batch of Llama-2-7B from start to end."""
    changes = {"traffic.synthetic.requests": batch, "engine.quantization": weights, "engine.kv.dtype": kv}
    return simulate(STATIC, changes)["output_throughput"]


@cache
def step(mode: str, batch: int) -> float:
    """Seconds of a decode step of Llama-3.1-8B."""
    cost = resolved(SERVED, {"engine.quantization": MODES[mode]}).cost
    line = cost.decode_line(batch, batch * CONTEXT)
    return line.intercept + line.slope * batch * CONTEXT


def whole_requests(requests: tuple[int, ...]) -> dict[str, list[float]]:
    """Gains over bf16 of whole batches of Llama-3.1-8B, prompts of 2,048 tokens and answers of 128, by mode."""
    found = {}
    for label, mode in MODES.items():
        changes = {
            "model": "meta-llama/Llama-3.1-8B", "engine.quantization": mode, "engine.kv.dtype": "auto",
            "traffic.synthetic.input_tokens": 2048,
        }  # fmt: skip
        found[label] = [
            simulate(STATIC, {**changes, "traffic.synthetic.requests": batch})["output_throughput"]
            for batch in requests
        ]
    return {
        mode: [a / b for a, b in zip(rate, found["bf16"], strict=True)]
        for mode, rate in found.items()
        if mode != "bf16"
    }


def run(small: bool = False) -> Result:
    """The experiment; `small` takes a quarter of the requests under load."""
    speedups = {
        (batch, kv): whole_batch(batch, "fp8", kv) / whole_batch(batch, "fp16", "fp16")
        for batch in CLAIMED
        for kv in ("fp8-e4m3", "fp16")
    }
    requests = 150 if small else 600
    served = {
        (weights, kv): simulate(
            SERVED, {"engine.quantization": weights, "engine.kv.dtype": kv, "traffic.synthetic.requests": requests}
        )
        for weights in ("bf16", "fp8")
        for kv in ("bf16", "fp8-e4m3")
    }
    gains = {mode: [step("bf16", batch) / step(mode, batch) for batch in BATCHES] for mode in MODES if mode != "bf16"}
    whole = whole_requests(BATCHES)
    tables = (
        Table(
            "Llama-2-7B on one H100, 1,024 in and 128 out: FP8 over FP16",
            ("batch", "claimed", "FP8 weights and KV", "FP8 weights alone"),
            tuple((b, CLAIMED[b], speedups[b, "fp8-e4m3"], speedups[b, "fp16"]) for b in CLAIMED),
        ),
        Table(
            f"Llama-3.1-8B on one H100, decode steps with {CONTEXT:,} tokens of context: over bf16",
            ("weights", *(f"batch {batch}" for batch in BATCHES)), tuple((mode, *values) for mode, values in gains.items()),
        ),
        Table(
            "Llama-3.1-8B on one H100, whole batches of 2,048 in and 128 out: over bf16",
            ("weights", *(f"batch {batch}" for batch in BATCHES)), tuple((mode, *values) for mode, values in whole.items()),
        ),
        Table(
            f"Llama-3.1-8B on one H100, {requests} requests of 4,000 in and 400 out on average, all waiting",
            ("weights", "KV", "KV tokens", "output tokens/s", "p50 TPOT ms"),
            tuple(
                (weights, kv, one["kv_pool_tokens"], one["output_throughput"], one["median_tpot_ms"])
                for (weights, kv), one in served.items()
            ),
        ),
    )  # fmt: skip
    tables = (*tables, _quality_table())
    charts = (
        Chart(
            "Speed of a decode step over bf16 weights (Llama-3.1-8B, H100)", "lines", BATCHES, gains, "batch",
            "times as fast", log_x=True, level=(1.0, "bf16"),
        ),
        Chart(
            "Speed of whole batches over bf16 weights (2,048 in, 128 out)", "lines", BATCHES, whole, "batch",
            "times as fast", log_x=True, level=(1.0, "bf16"),
        ),
    )  # fmt: skip
    return Result(
        NAME, TITLE, tables, charts, (_nvidia(speedups), _which(gains, whole), _accuracy(), _add_up(served)), small
    )


def _nvidia(speedups: dict) -> Verdict:
    ours = {batch: speedups[batch, "fp8-e4m3"] for batch in CLAIMED}
    alone = {batch: speedups[batch, "fp16"] for batch in CLAIMED}
    return Verdict(
        "FP8 makes Llama-2-7B 1.51 times as fast as FP16 at batch 1, 1.40 times at batch 8",
        "NVIDIA, TensorRT-LLM, Speed up inference with SOTA quantization techniques (H100, 1,024 in, 128 out)",
        (
            *(
                Check(f"batch {batch} (± 10 %)", times(CLAIMED[batch]), times(ours[batch]),
                      abs(ours[batch] / CLAIMED[batch] - 1) <= 0.10)
                for batch in CLAIMED
            ),
            Check("the gain gets smaller from batch 1 to 8", f"{CLAIMED[8] - CLAIMED[1]:+.2f}",
                  f"{ours[8] - ours[1]:+.2f}", ours[8] < ours[1]),
        ),
        f"With an FP16 cache the gains are {times(alone[1])} and {times(alone[8])}: the cache's share of what a "
        "step reads grows with the batch, so that a cache in FP8 too makes up for it. Whether the gain falls with "
        "the batch depends on that, and on how close FP8 products come to their peak in the version that was "
        "timed, which the source does not tell apart.",
    )  # fmt: skip


def _which(gains: dict, whole: dict) -> Verdict:
    decode, best = (
        {batch: max(found, key=lambda mode: found[mode][place]) for place, batch in enumerate(BATCHES)}
        for found in (gains, whole)
    )
    few = [best[batch] for batch in BATCHES if batch <= 4]
    many = [best[batch] for batch in BATCHES if batch >= 16]
    first = {label: next((b for b in BATCHES if found[b] == "FP8 W8A8"), None) for label, found in
             (("whole", best), ("decode", decode))}  # fmt: skip
    shrunk = {}
    for name in ("llama-3.1-8b", "llama-3-70b"):
        model = load_model(name)
        full, quarter = (model.weight_bytes(load_weight_mode(mode)) for mode in ("bf16", "awq-int4"))
        shrunk[name] = 1 - quarter / full
    small8, small70 = shrunk.values()
    w4, w8, fp8 = (whole[mode] for mode in ("W4A16", "W8A16", "FP8 W8A8"))
    return Verdict(
        "batch up to 4: weight-only (W4A16, W8A16) is fastest; from 16 on FP8 W8A8; INT4 makes a model 75 % smaller",
        "an analysis of vLLM and TensorRT-LLM, after NVIDIA's guide to quantization",
        (
            Check("fastest at batch 1, 2, 4 (whole requests)", "weight-only", ", ".join(few),
                  all(mode.endswith("A16") for mode in few)),
            Check("W8A16 is ahead of FP8 W8A8 at batch 1", "yes", f"{times(w8[0])} against {times(fp8[0])}", w8[0] > fp8[0]),
            Check("fastest at batch 16 to 256 (whole requests)", "FP8 W8A8", ", ".join(many), set(many) == {"FP8 W8A8"}),
            Check("8B weights in INT4", "75 % smaller (± 5)", f"{per_cent(small8)} smaller", 0.70 <= small8 <= 0.80),
            Check("70B weights in INT4", "75 % smaller (± 5)", f"{per_cent(small70)} smaller", 0.70 <= small70 <= 0.80),
        ),
        f"With prompts of 2,048 tokens FP8 W8A8 is fastest from batch {first['whole'] or 'none'} on, since prompts "
        "are bound by compute and weight-only kernels compute in 16 bit after unpacking; in decode steps alone "
        f"from batch {first['decode'] or 'none'} on: where the switch lies depends on how much of the work is "
        f"prompts. W4A16 goes from {times(w4[0])} to {times(w4[-1])}. An 8B model shrinks by {per_cent(small8)} "
        "only, since its embedding and output layer stay in 16 bit.",
    )  # fmt: skip


def _accuracy() -> Verdict:
    """What the modes cost in quality, as `bench quality` measured it on a real model; the figures come with the package."""
    quality = measured_quality()
    cost = {name: one.divergence for name, one in quality.items()}
    best = min(cost, key=lambda name: cost[name])
    fours = {name: value for name, value in cost.items() if name.endswith("int4")}
    about = quality["fp8"]
    return Verdict(
        "FP8 keeps accuracy best",
        "an analysis of vLLM and TensorRT-LLM, after NVIDIA's guide to quantization",
        (
            Check("mean KL divergence from 16 bit: FP8 against the best of INT4", "smaller",
                  f"{cost['fp8']:.3f} against {min(fours.values()):.3f}", cost["fp8"] < min(fours.values())),
            Check("FP8 is the closest of all that were measured", "fp8", best, best.startswith("fp8")),
        ),
        "Mean KL divergence of the next token, in nats: "
        f"{', '.join(f'{name} {value:.3f}' for name, value in cost.items())}. FP8 also rounds activations; weights "
        "in INT8 with activations in 16 bit stay closer to the original, at a smaller gain in speed. "
        f"{about.model}'s own weights come from a 4-bit file, so that what is said of INT4 is a hint at most.",
        f"{about.model} on the real engine, {about.text}",
    )  # fmt: skip


def _quality_table() -> Table:
    rows = tuple(
        (name, one.divergence, one.perplexity_ratio, per_cent(one.agreement, 1))
        for name, one in measured_quality().items()
    )
    return Table(
        "Quality against 16 bit, measured",
        ("weights", "mean KL (nats)", "perplexity over 16 bit's", "same top token"),
        rows,
    )


def _add_up(served: dict) -> Verdict:
    base = served["bf16", "bf16"]
    rate = {key: one["output_throughput"] / base["output_throughput"] for key, one in served.items()}
    pool = {key: one["kv_pool_tokens"] / base["kv_pool_tokens"] for key, one in served.items()}
    weights, cache, both = rate["fp8", "bf16"], rate["bf16", "fp8-e4m3"], rate["fp8", "fp8-e4m3"]
    product = weights * cache
    return Verdict(
        "FP8 weights and FP8 KV are separate settings and their gains add up",
        "an overview of serving engines",
        (
            Check("weights alone, KV alone: output tokens a second", "both above 1x", f"{times(weights)}, {times(cache)}",
                  weights > 1 and cache > 1),
            Check("both: the product of the two (± 10 %)", times(product), times(both), abs(both / product - 1) <= 0.10),
            Check("KV tokens with both", "more than either alone", times(pool["fp8", "fp8-e4m3"]),
                  pool["fp8", "fp8-e4m3"] > max(pool["fp8", "bf16"], pool["bf16", "fp8-e4m3"])),
        ),
        f"Weights in FP8 give {more(weights)} and a cache in FP8 {more(cache)}; both give {more(both)}, where "
        f"independent gains would multiply to {more(product)}. The pool holds {times(pool['fp8', 'bf16'])}, "
        f"{times(pool['bf16', 'fp8-e4m3'])} and {times(pool['fp8', 'fp8-e4m3'])} as many tokens.",
    )  # fmt: skip
