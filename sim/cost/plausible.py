"""Figures that cannot be: faster than the device's memory, arithmetic or links allow.

Published tables contain such rows (mislabelled types, runs that stopped early, benchmark loops that leave the weights in
the cache). They are recognised from data sheets alone, never from how well a model predicts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.cost.forms import ACTIVATION_BYTES, COMPUTE, KV_BYTES, WEIGHT_BYTES
from sim.cost.timings import Timing
from sim.hardware.gpu import GPUSpec

if TYPE_CHECKING:
    from sim.models.spec import ModelSpec

SLACK = 1.05
"""How much faster than the data sheet a measurement may be: boost clocks, rounding."""
CACHE_BYTES = 160 << 20
"""Operators smaller than this may find their weights in the last-level cache of a benchmark loop (B200: 126 MB)."""


def fastest_us(timing: Timing, gpu: GPUSpec) -> float:
    """Microseconds below which a timing cannot be: all operations at the peak, or all compulsory bytes at full bandwidth.

    Bytes count only where they exceed any cache; a collective's bytes never do.
    """
    flops, moved = _work(timing)
    compute = COMPUTE.get(timing.dtype, timing.dtype)
    peak = gpu.flops(compute) if compute in ("bf16", "fp8", "int8", "fp4") else 0.0
    seconds = flops / peak if peak else 0.0
    if timing.op == "all_reduce":
        ways = timing.shape["ways"]
        if gpu.link_bandwidth and timing.launch != "across nodes":
            # A switch may add up on the way (NVLink SHARP), so only what one GPU must receive counts.
            seconds = timing.shape["bytes"] * (ways - 1) / ways / gpu.link_bandwidth
    elif moved > CACHE_BYTES:
        seconds = max(seconds, moved / gpu.bandwidth)
    return seconds * 1e6


def _work(timing: Timing) -> tuple[float, float]:
    """(operations, compulsory bytes) of one call."""
    shape, dtype = timing.shape, timing.dtype
    if timing.op == "gemm":
        m, n, k = timing.size
        return 2 * m * n * k, WEIGHT_BYTES.get(dtype, 1.0) * n * k + m * (ACTIVATION_BYTES.get(dtype, 1.0) * k + 2 * n)
    if timing.op == "moe":
        tokens, hidden, ffn, topk, _, tp, ep = timing.size
        rows = tokens * topk / ep if timing.distribution in ("", "balanced") else 0.0
        return 6 * rows * hidden * ffn / tp, 0.0
    if timing.op in ("attn_decode", "attn_prefill"):
        batch, seq, heads, kv_heads, dim = timing.size
        cache = 2 * batch * seq * kv_heads * dim * KV_BYTES.get(timing.kv_dtype, 1.0)
        if timing.op == "attn_decode":
            return 4 * batch * seq * heads * dim, cache
        return 2 * batch * seq * seq * heads * dim, cache
    if timing.op == "mla_decode":
        return 0.0, shape["batch"] * shape["seq"] * 576 * KV_BYTES.get(timing.kv_dtype, 1.0)
    return 0.0, 0.0


def impossible(timing: Timing, gpu: GPUSpec) -> str:
    """Why a timing cannot be right, or ""."""
    least = fastest_us(timing, gpu)
    if timing.us * SLACK >= least:
        return ""
    return f"{timing.us:g} us is faster than {gpu.name} allows ({least:.4g} us)"


def impossible_decode(
    model: ModelSpec, gpu: GPUSpec, *, gpus: int, weights: str, tpot_ms: float, tokens_per_step: float = 1.0
) -> str:
    """Why a time per output token cannot be right, or "".

    Every step reads each dense weight of the model at least once; of routed experts only those that a single token
    visits are counted, so that the bound holds for any batch.

    Args:
        gpus: that share the weights (tensor × pipeline; with pipeline stages a token passes them one after another, so
            give the tensor degree).
        weights: weight mode by name. tokens_per_step: accepted tokens a step, above 1 with speculative decoding.
    """
    from sim.quantization.weights import weight_mode_for

    mode = weight_mode_for(weights, model)
    read = 0.0
    for linear in model.linears():
        share = model.experts_per_token / model.experts if linear.kind == "expert" else 1.0
        read += share * linear.layers * linear.copies * mode.linear_bytes(linear, model.dtype)
    least = read / (gpus * gpu.bandwidth) / tokens_per_step * 1e3
    if tpot_ms * SLACK >= least:
        return ""
    return (
        f"{tpot_ms:g} ms a token is faster than {gpus} × {gpu.name} can read the {mode.name} weights of {model.name} "
        f"({least:.3g} ms)"
    )


def impossible_throughput(
    model: ModelSpec, gpu: GPUSpec, *, gpus: int, weights: str, tokens_per_s: float, batch: float = 0.0
) -> str:
    """Why a number of generated tokens per second cannot be right, or "".

    Args:
        tokens_per_s: of all GPUs together. batch: sequences at once, where known: each step reads the weights, so
            no more than `batch` tokens come of one reading.
    """
    from sim.quantization.weights import weight_mode_for

    mode = weight_mode_for(weights, model)
    compute = mode.compute if gpu.flops(mode.compute) else "bf16"
    fastest = gpus * gpu.flops(compute) / (2.0 * (model.params_active - model.embedding_params))
    if tokens_per_s > SLACK * fastest:
        return f"{tokens_per_s:g} tokens/s needs more than the {compute} peak of {gpus} × {gpu.name} ({fastest:.4g})"
    if batch:
        reason = impossible_decode(model, gpu, gpus=gpus, weights=weights, tpot_ms=1e3 * batch / tokens_per_s)
        if reason:
            return f"{tokens_per_s:g} tokens/s at batch {batch:g}: {reason}"
    return ""
