"""Which weight mode a checkpoint's `quantization_config` means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workloads.errors import InputError

Fail = Callable[[str, str], InputError]


def native_mode(section: Any, fail: Fail) -> str:
    """The weight mode of a `quantization_config` section of an HF config; "" where there is none.

    Args:
        section: the value of the key, already parsed.
        fail: makes the error for (key, message).

    Raises:
        InputError: a method or a number of bits that no mode covers.
    """
    if section is None:
        return ""
    if not isinstance(section, dict):
        raise fail("quantization_config", "expected an object")
    method = str(section.get("quant_method", "")).lower()
    if method in ("gptq", "awq"):
        bits = section.get("bits", section.get("w_bit", 4))
        if bits != 4:
            raise fail("quantization_config.bits", f"{bits}-bit {method.upper()} is not supported, expected 4")
        return f"{method}-int4"
    if method == "fp8":
        if section.get("weight_block_size"):
            return "fp8-block"
        return "fp8-dynamic" if section.get("activation_scheme", "dynamic") == "dynamic" else "fp8"
    if method == "fbgemm_fp8":
        return "fp8-channel"
    if method == "mxfp4":
        return "mxfp4"
    if method == "compressed-tensors":
        return _compressed_tensors(section, fail)
    raise fail("quantization_config.quant_method", f"{method or 'missing'!r} is not a method we know")


def _compressed_tensors(section: dict, fail: Fail) -> str:
    groups = section.get("config_groups")
    first = next(iter(groups.values()), {}) if isinstance(groups, dict) else {}
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
        return "nvfp4"
    if kind == "int" and bits == 8:
        return "int8-w8a8" if inputs else "int8-w8a16"
    if kind == "int" and bits == 4:
        return "gptq-int4"
    raise fail("quantization_config.config_groups", f"{bits}-bit {kind} weights are not supported")
