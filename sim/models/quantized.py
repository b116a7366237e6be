"""Which weight mode a checkpoint's own description of its quantization means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.quantization.checkpoint import Section

UNQUANTIZED = ("none", "")
METHODS = ("gptq", "awq", "squeezellm", "compressed-tensors", "fp8", "fbgemm_fp8", "modelopt", "mxfp4")


def native_mode(section: Section | None) -> str:
    """The weight mode of a checkpoint; "" where it is not quantized.

    Raises:
        InputError: a method, or a number of bits, that no mode covers.
    """
    if section is None:
        return ""
    values, method = section.values, section.method
    if method in ("gptq", "awq"):
        return _bits(section, method, values.get("bits", values.get("w_bit", 4)))
    if method == "squeezellm":
        bits = values.get("wbits", 4)
        if bits not in (3, 4):
            raise section.error("wbits", f"{bits!r}-bit SqueezeLLM is not supported, expected 3 or 4")
        return f"squeezellm-{bits}bit"
    if method == "fp8":
        if values.get("weight_block_size"):
            return "fp8-block"
        return "fp8-dynamic" if values.get("activation_scheme", "dynamic") == "dynamic" else "fp8"
    if method == "fbgemm_fp8":
        return "fp8-channel"
    if method == "mxfp4":
        return "mxfp4"
    if method == "modelopt":
        return _modelopt(section)
    if method == "compressed-tensors":
        return _compressed_tensors(section)
    raise section.error(
        "quant_method", f"{method or 'missing'!r} is not a method we know", f"these are: {', '.join(METHODS)}"
    )


def _bits(section: Section, method: str, bits: Any) -> str:
    known = {"gptq": (3, 4, 8), "awq": (4,)}[method]
    if bits not in known:
        expected = " or ".join(map(str, known))
        raise section.error("bits", f"{bits!r}-bit {method.upper()} is not supported, expected {expected}")
    return f"{method}-int{bits}"


def _modelopt(section: Section) -> str:
    algorithm = str(section.values.get("quant_algo", "")).upper()
    modes = {"FP8": "fp8", "NVFP4": "nvfp4"}
    if algorithm not in modes:
        raise section.error(
            "quant_algo", f"{algorithm or 'missing'!r} of ModelOpt is not supported", f"these are: {', '.join(modes)}"
        )
    return modes[algorithm]


def _compressed_tensors(section: Section) -> str:
    groups = section.values.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    if not isinstance(first, Mapping):
        raise section.error("config_groups", "expected an object of groups, each with weights")
    weights = first.get("weights") or {}
    inputs = first.get("input_activations")
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "float" and bits == 8:
        if weights.get("strategy") == "block":
            return "fp8-block"
        if inputs and not inputs.get("dynamic"):
            return "fp8"
        return "fp8-channel" if weights.get("strategy") == "channel" else "fp8-dynamic"
    if kind == "float" and bits == 4:
        return "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
    if kind == "int" and bits == 8:
        return "int8-w8a8" if inputs else "int8-w8a16"
    if kind == "int" and bits in (3, 4):
        return f"gptq-int{bits}"
    raise section.error("config_groups", f"{bits}-bit {kind} weights are not supported")
