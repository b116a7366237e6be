"""What fits: the arithmetic of KV cache and weights, and where it was published wrong.

KV cache bytes = 2 (K and V) × layers × KV heads × head size × tokens × bytes of a value. Everything here is worked
out from the models' own shapes, and held against the memory planner that sizes the simulator's pool.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.claims.base import Chart, Check, Result, Table, Verdict, per_cent, show, times
from experiments.claims.simulate import resolved, simulate
from sim.memory import concurrent_requests
from sim.models import ModelSpec, load_model
from sim.quantization import load_weight_mode

NAME, TITLE = "sizing", "What fits: KV cache, weights, and requests at once"
WORKLOAD = """
name: sizing
model: meta-llama/Llama-3.1-8B
backend: {name: sim, gpu: a100-sxm}
engine: {preset: vllm}
traffic:
  synthetic: {requests: 1, input_tokens: 512, output_tokens: 128}
"""
GIB, GB = 1 << 30, 1e9
CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
WEIGHTS = ("bf16", "int8-w8a16", "awq-int4")


def kv_bytes(model: ModelSpec, tokens: int, size: int = 2, kv_heads: int = 0) -> int:
    """The formula: bytes of KV of one request."""
    return 2 * model.layers * (kv_heads or model.kv_heads) * model.head_dim * tokens * size


def run(small: bool = False) -> Result:
    """The experiment; it is as quick in full."""
    return Result(
        NAME, TITLE,
        (_formula_table(), _weights_table(), _requests_table()),
        (_requests_chart(),),
        (_formula(), _seventy(), _weights(), _concurrency()),
        small,
    )  # fmt: skip


def _formula_table() -> Table:
    rows = []
    for name in ("llama-2-7b", "opt-13b", "llama-3.1-8b", "llama-2-70b", "llama-3.1-405b"):
        model = load_model(name)
        each = kv_bytes(model, 2048)
        rows.append(
            (model.name, model.layers, model.heads, model.kv_heads, model.head_dim, each // 2048, each / GB, each / GIB)
        )
    columns = ("model", "layers", "heads", "KV heads", "head size", "bytes a token", "2,048 tokens, GB", "GiB")
    return Table("KV cache of one request in 16 bit", columns, tuple(rows))


def _weights_table() -> Table:
    rows = []
    for name in ("llama-3.1-8b", "llama-2-70b"):
        model = load_model(name)
        for mode in WEIGHTS:
            size = model.weight_bytes(load_weight_mode(mode))
            rows.append((model.name, mode, model.params_total / 1e9, size / GB, size / GIB))
    return Table("Weights", ("model", "weights", "parameters 1e9", "GB", "GiB"), tuple(rows))


def _requests_table() -> Table:
    each = load_model("llama-3.1-8b").kv_bytes_per_token()
    pools = {name: resolved(WORKLOAD, {"engine.quantization": name}).budget.kv_bytes for name in WEIGHTS}
    rows = [
        (f"{context:,}", concurrent_requests(40 * GB, context, each), concurrent_requests(40 * GIB, context, each),
         *(concurrent_requests(pool, context, each) for pool in pools.values()))
        for context in CONTEXTS
    ]  # fmt: skip
    columns = ("tokens a request", "in 40 GB", "in 40 GiB", *(f"A100 80 GB, {name}" for name in WEIGHTS))
    return Table("Requests of Llama-3.1-8B that fit at once", columns, tuple(rows))


def _requests_chart() -> Chart:
    each = load_model("llama-3.1-8b").kv_bytes_per_token()
    series = {}
    for label, size in (("16-bit KV", each), ("8-bit KV", each // 2)):
        series[label] = [40 * GB / (context * size) for context in CONTEXTS]
    return Chart(
        "Requests of Llama-3.1-8B in 40 GB of KV", "lines", CONTEXTS, series, "tokens a request", "requests at once",
        log_x=True, log_y=True,
    )  # fmt: skip


def _formula() -> Verdict:
    """The formula against the planner's own count, for every kind of attention."""
    names = ("llama-2-7b", "opt-13b", "llama-3.1-8b", "llama-2-70b", "qwen3-32b", "mixtral-8x7b")
    agree = [load_model(name) for name in names]
    same = sum(kv_bytes(model, 1) == model.kv_bytes_per_token() for model in agree)
    latent, windowed = load_model("deepseek-v3"), load_model("gpt-oss-120b")
    ratio = kv_bytes(latent, 1, kv_heads=latent.heads) / latent.kv_bytes_per_token()
    at = resolved(WORKLOAD, {"model": "openai/gpt-oss-120b", "backend.gpu": "h200-sxm"}).budget.bytes_per_token
    share = at / kv_bytes(windowed, 1)
    return Verdict(
        "KV cache bytes = 2 × layers × KV heads × head size × length × batch × bytes of a value",
        "an analysis of vLLM and TensorRT-LLM",
        (
            Check("models whose every layer keeps K and V of every token", f"{len(agree)} of {len(agree)}",
                  f"{same} of {len(agree)}", same == len(agree)),
            Check("latent attention (DeepSeek-V3)", "1x", f"{times(1 / ratio)} of the formula", abs(ratio - 1) < 0.01),
            Check("layers with a sliding window (gpt-oss-120b, requests of 2,048 tokens)", "1x",
                  f"{times(share)} of the formula", abs(share - 1) < 0.01),
        ),
        "It is exact where every layer keeps every token's K and V, if KV heads are counted and not heads. It is "
        f"too high by {ratio:.0f} times for latent attention, which keeps one compressed vector, and by "
        f"{1 / share:.3g} times where windows are freed.",
    )  # fmt: skip


def _seventy() -> Verdict:
    """The three figures of an analysis of vLLM and TensorRT-LLM that are wrong."""
    model = load_model("llama-2-70b")
    many = kv_bytes(model, 2048, kv_heads=64)
    real = kv_bytes(model, 2048)
    weights = model.weight_bytes(load_weight_mode("fp16"))
    newer = load_model("llama-3-70b").weight_bytes(load_weight_mode("fp16"))
    claimed = {"a": 5.24 * GB, "b": 35 * GB}
    return Verdict(
        "a 70B model needs 5.24 GB of KV at 2,048 tokens, and 35 GB for its weights in FP16",
        "an analysis of vLLM and TensorRT-LLM (64 KV heads, 80 layers, head size 128)",
        (
            Check("KV of 2,048 tokens with 64 KV heads", "5.24 GB", f"{many / GB:.2f} GB ({many / GIB:.2f} GiB)",
                  abs(many / claimed["a"] - 1) < 0.005),
            Check("KV of 2,048 tokens of Llama-2-70B, which has 8 KV heads", "5.24 GB", f"{real / GB:.2f} GB",
                  abs(real / claimed["a"] - 1) < 0.005),
            Check("weights in FP16", "35 GB", f"{weights / GB:.0f} GB", abs(weights / claimed["b"] - 1) < 0.05),
        ),
        f"Wrong three times. 2 × 80 × 64 × 128 × 2,048 × 2 bytes are {many / GB:.2f} GB or {many / GIB:.2f} GiB; "
        f"Llama-2-70B has {model.kv_heads} KV heads, not {model.heads}, and needs {real / GB:.2f} GB. "
        f"{model.params_total / 1e9:.0f}e9 parameters of two bytes are {weights / GB:.0f} GB (Llama-3-70B's are "
        f"{newer / GB:.0f} GB); in 35 GB each would have {35 * GB * 8 / model.params_total:.1f} bits.",
    )  # fmt: skip


def _weights() -> Verdict:
    model = load_model("llama-3.1-8b")
    sizes = {mode: model.weight_bytes(load_weight_mode(mode)) / GB for mode in WEIGHTS}
    steps = {}
    for mode in WEIGHTS:
        ready = resolved(WORKLOAD, {"engine.quantization": mode, "engine.host": "none"})
        line = ready.cost.decode_line(1, 512)
        steps[mode] = line.intercept + line.slope * 512
    faster = steps["bf16"] / steps["int8-w8a16"]
    published = {"bf16": 16.0, "int8-w8a16": 8.0, "awq-int4": 4.0}
    return Verdict(
        "8B weights take 16 GB in FP16, 8 GB in INT8, 4 GB in INT4; halving the bytes halves the decode bottleneck",
        "an overview of serving engines",
        (
            *(
                Check(f"weights as {mode}", f"{published[mode]:.0f} GB (± 10 %)", f"{sizes[mode]:.1f} GB",
                      abs(sizes[mode] / published[mode] - 1) <= 0.10)
                for mode in WEIGHTS
            ),
            Check("a decode step of one sequence, INT8 over 16 bit, without host time", "2x (± 10 %)", times(faster),
                  1.8 <= faster <= 2.2),
        ),
        f"Embedding and output layer stay in 16 bit ({2 * model.vocab * model.hidden * 2 / GB:.1f} GB here) and "
        f"group scales are stored too, so that INT4 takes {sizes['awq-int4']:.1f} GB. A decode step gets "
        f"{times(faster)} as fast, not 2x: the output layer is read in 16 bit at every step, and small kernels do "
        "not depend on the weights' size.",
    )  # fmt: skip


def running(tokens: int, pool: int) -> float:
    """Most requests that run at once in a pool of so many tokens, where more wait: each grows to `tokens` in all."""
    answer = tokens // 16
    one = simulate(WORKLOAD, {
        "engine.kv.capacity_tokens": pool, "engine.kv.prefix_caching": False, "engine.max_model_len": tokens,
        "traffic.max_tokens": "exact",
        "traffic.synthetic": {"requests": 3 * pool // tokens, "input_tokens": tokens - answer, "output_tokens": answer},
    })  # fmt: skip
    return float(one.data.timeline.running.max())


def _concurrency() -> Verdict:
    model = load_model("llama-3.1-8b")
    each = model.kv_bytes_per_token()
    short, long = (int(40 * GIB // (context * each)) for context in (4096, 32768))
    engine = replace(resolved(WORKLOAD).engine)
    budget = resolved(WORKLOAD, {"engine.kv.capacity_tokens": int(40 * GIB // each)}).budget
    planned = budget.kv_tokens // 4096
    pool = budget.kv_tokens
    ran = {tokens: running(tokens, pool) for tokens in (4096, 32768)}
    return Verdict(
        "requests at once = KV memory / KV of a request: 40 GB / 0.5 GB at 4K = 80; at 32K about 10",
        "an overview of serving engines (Llama-3-8B)",
        (
            Check("at 4,096 tokens", "80", show(short), short == 80),
            Check("at 32,768 tokens", "10", show(long), long == 10),
            Check(f"the planner's pool, in blocks of {engine.kv.block_size}", "80", show(planned), planned == 80),
            Check("most that run at once in simulation: 4,096 tokens (± 10 %)", "80", f"{ran[4096]:.0f}",
                  abs(ran[4096] / 80 - 1) <= 0.10),
            Check("32,768 tokens (± 10 %)", "10", f"{ran[32768]:.0f}", abs(ran[32768] / 10 - 1) <= 0.10),
        ),
        f"Right if GB are GiB: 4,096 tokens of {each:,} bytes are {per_cent(4096 * each / GIB / 0.5, 0)} of half a "
        f"GiB. In decimal 40 GB it is {concurrent_requests(40 * GB, 4096, each)} and "
        f"{concurrent_requests(40 * GB, 32768, each)}. It is a bound for requests at their full length; requests "
        "that still grow take less, and then an engine that admits more must preempt.",
    )  # fmt: skip
