"""From a timing to the operator that prices it: which constants answer for which measured kernel.

The same operator classes price steps (`sim.cost.assemble`), are fitted and are held against measurements, so that what
is validated is what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.cost.constants import Constants, ElementwiseConstants, QuantizeConstants
from sim.cost.experts import GroupedGemm
from sim.cost.operators import (
    AllReduce,
    DecodeAttention,
    Elementwise,
    Gemm,
    LatentAttention,
    PrefillAttention,
)
from sim.cost.routing import drawn
from sim.cost.timings import Timing
from sim.hardware.gpu import GPUSpec

WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8-block": 1.0, "int8": 1.0, "fp4": 0.5625, "w8a16": 1.0, "w4a16": 0.53125}
ACTIVATION_BYTES = WEIGHT_BYTES | {"w8a16": 2.0, "w4a16": 2.0}
STAND_INS: dict[str, dict[str, tuple[str, ...]]] = {
    "gemm": {"fp8-block": ("fp8",), "int8": ("fp8",), "fp4": ("fp8",), "fp8": ("fp8-block",)},
    "decode": {"mha-fp8": ("fp8", "mha", "bf16"), "mha": ("bf16",), "fp8": ("bf16",)},
    "prefill": {"bf16-kv8": ("bf16",), "fp8": ("bf16-kv8", "bf16")},
    "moe": {
        "fp8-block": ("fp8", "bf16"),
        "fp8": ("fp8-block", "bf16"),
        "int8": ("fp8", "bf16"),
        "fp4": ("fp8", "fp8-block", "bf16"),
        "mxfp4": ("fp8", "fp8-block", "bf16"),
        "weight-only": ("bf16",),
    },
    "all_reduce": {},
}
"""Kinds whose constants answer where a kind was not measured, the nearest first."""
COMPUTE = {"fp8-block": "fp8", "w8a16": "bf16", "w4a16": "bf16"}
KV_BYTES = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0}


def kind_of(timing: Timing) -> tuple[str, str]:
    """(section, kind) of the constants that describe this kernel."""
    if timing.op == "gemm":
        return "gemm", {"w8a16": "weight-only", "w4a16": "weight-only"}.get(timing.dtype, timing.dtype)
    if timing.op == "attn_decode":
        narrow = KV_BYTES.get(timing.kv_dtype, 2.0) == 1.0
        mha = timing.shape["heads"] == timing.shape["kv_heads"]
        return "decode", ("mha-fp8" if narrow else "mha") if mha else ("fp8" if narrow else "bf16")
    if timing.op == "attn_prefill":
        narrow = KV_BYTES.get(timing.kv_dtype, 2.0) == 1.0 and timing.dtype == "bf16"
        return "prefill", "bf16-kv8" if narrow else timing.dtype
    if timing.op == "all_reduce":
        return "all_reduce", f"{timing.shape['ways']:.0f}"
    if timing.op == "mla_decode":
        return "mla", ""
    return "moe", timing.dtype


def section_of(constants: Constants, section: str, kind: str) -> Any | None:
    """The constants of that kind, or of the kind that stands in for it; None where there are none."""
    found = getattr(constants, section)
    if not isinstance(found, Mapping):
        return found
    return next((found[name] for name in (kind, *STAND_INS[section].get(kind, ())) if name in found), None)


def supports(timing: Timing, gpu: GPUSpec) -> bool:
    """Whether the device has the tensor cores for it, as far as the data sheet says."""
    compute = COMPUTE.get(timing.dtype, timing.dtype)
    return compute in ("bf16", "fp8", "int8", "fp4") and gpu.flops(compute) > 0


def predict(timing: Timing, section: Any, gpu: GPUSpec, quantize: QuantizeConstants | None = None) -> float:
    """Microseconds that the operator with these constants takes for the timing's shape.

    A timing of an FP8 matrix product includes quantising the activations with computed scales, so `quantize` is added.
    """
    return _PRICES[timing.op](timing, section, gpu, quantize) * 1e6


def _gemm(timing: Timing, section: Any, gpu: GPUSpec, quantize: QuantizeConstants | None) -> float:
    m, n, k = timing.size
    dtype = timing.dtype
    weights = WEIGHT_BYTES[dtype] * n * k
    operator = Gemm(section, gpu, COMPUTE.get(dtype, dtype), int(n), int(k), weights, ACTIVATION_BYTES[dtype])
    seconds = operator.seconds(m)
    if quantize is not None and ACTIVATION_BYTES[dtype] < 2:
        seconds += quantise_seconds(quantize, gpu, m, k)
    return seconds


def quantise_seconds(
    quantize: QuantizeConstants, gpu: GPUSpec, tokens: float, width: float, dynamic: bool = True
) -> float:
    """Seconds of preparing `tokens` × `width` activations."""
    return quantise(quantize, gpu, width, dynamic).seconds(tokens)


def quantise(
    quantize: QuantizeConstants, gpu: GPUSpec, width: float, dynamic: bool, grouped: bool = False
) -> Elementwise:
    """The kernel that prepares rows of `width` activations, with computed (`dynamic`) or with static scales.

    Computed scales are of whole tensors or rows, or `grouped`: of groups inside a row.
    """
    launch, each, kind = (
        (quantize.dynamic_us, quantize.dynamic_bytes, "computed scale")
        if dynamic
        else (quantize.static_us, quantize.static_bytes, "static scale")
    )
    if dynamic and grouped and quantize.group_us:
        launch, each, kind = quantize.group_us, quantize.group_bytes, "computed scales of groups"
    row = quantize.dynamic_row_us * 1e-6 * quantize.bandwidth * gpu.bandwidth if dynamic else 0.0
    constants = ElementwiseConstants(launch, quantize.bandwidth, f"{quantize.source} ({kind})")
    return Elementwise(constants, gpu, max(each * width, row))


def _decode(timing: Timing, section: Any, gpu: GPUSpec, _: Any) -> float:
    batch, seq, heads, kv_heads, dim = timing.size
    vector = KV_BYTES.get(timing.kv_dtype, 2.0) * dim
    return DecodeAttention(section, gpu, heads, kv_heads, vector, dim).seconds(batch, batch * seq)


def _prefill(timing: Timing, section: Any, gpu: GPUSpec, _: Any) -> float:
    batch, seq, heads, kv_heads, dim = timing.size
    tokens, key = batch * seq, 2.0 * kv_heads * dim * KV_BYTES.get(timing.kv_dtype, 2.0)
    operator = PrefillAttention(section, gpu, COMPUTE.get(timing.dtype, timing.dtype), heads, dim, key, kv_heads)
    return operator.seconds(tokens, tokens * seq, tokens, batch * max(seq, operator.least) / 128.0)


def _latent(timing: Timing, section: Any, gpu: GPUSpec, _: Any) -> float:
    batch, seq, heads = timing.size
    size = 576.0 * KV_BYTES.get(timing.kv_dtype, 2.0)  # DeepSeek's latent of 512 and rotary key of 64
    return LatentAttention(section, gpu, heads, 576, 512, size).seconds(batch, batch * seq)


def _all_reduce(timing: Timing, section: Any, gpu: GPUSpec, _: Any) -> float:
    ways, size = timing.size
    return AllReduce(section, gpu.ring_link(int(ways)), int(ways), 1.0).seconds(size)


def skew_of(distribution: str) -> float:
    """The exponent in a routing's name, such as `power_law_1.2`; 0 for balanced and unknown ones."""
    head, _, tail = distribution.rpartition("_")
    try:
        return float(tail) if head.startswith("power_law") else 0.0
    except ValueError:
        return 0.0


def _moe(timing: Timing, section: Any, gpu: GPUSpec, _: Any) -> float:
    tokens, hidden, ffn, topk, experts, tp, ep = timing.size
    width, dtype = ffn / tp, timing.dtype
    operator = GroupedGemm(
        section, gpu, COMPUTE.get(dtype, dtype), experts=experts, local=experts / ep, chosen=topk, hidden=hidden,
        up=2 * width, down=width, expert_bytes=WEIGHT_BYTES[dtype] * 3 * hidden * width,
        activation_bytes=ACTIVATION_BYTES[dtype], skew=skew_of(timing.distribution),
    )  # fmt: skip
    if not timing.distribution:
        return operator.seconds(tokens)
    load = drawn(int(tokens), int(experts), int(topk), int(ep), skew_of(timing.distribution))
    return operator.seconds_of(load.touched, load.rows, tokens)


_PRICES = {
    "gemm": _gemm, "attn_decode": _decode, "attn_prefill": _prefill, "mla_decode": _latent,
    "all_reduce": _all_reduce, "moe": _moe,
}  # fmt: skip
