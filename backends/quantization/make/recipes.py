"""What `bench quantize` can make: by mode, what it needs to know of inputs, how layers are packed, and what config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.errors import InputError, Place, unknown_name

MODES: dict[str, str] = {
    "int8": "INT8 weights per channel, INT8 activations per token (compressed-tensors)",
    "int8-w8a16": "INT8 weights per channel (compressed-tensors)",
    "rtn-int4": "INT4 rounded to nearest, to compare with (compressed-tensors)",
    "gptq-int4": "GPTQ, 4 bits",
    "gptq-int8": "GPTQ, 8 bits",
    "gptq-int3": "GPTQ, 3 bits",
    "awq-int4": "AWQ, 4 bits, gemm layout",
    "squeezellm-4bit": "SqueezeLLM, 16 values a row",
    "squeezellm-3bit": "SqueezeLLM, 8 values a row",
    "fp8": "FP8 E4M3, static scales of tensors and activations (compressed-tensors)",
    "fp8-dynamic": "FP8 E4M3, weights per tensor, activations per token (compressed-tensors)",
    "fp8-channel": "FP8 E4M3, weights per channel, activations per token (compressed-tensors)",
    "fp8-block": "FP8 E4M3 in 128×128 blocks (as DeepSeek-V3 and Qwen 3)",
    "nvfp4": "NVFP4, weights and activations (compressed-tensors)",
    "nvfp4-a16": "NVFP4, weights only (compressed-tensors)",
    "mxfp4": "MXFP4, weights only (compressed-tensors)",
}
ALIASES = {
    "int8-w8a8": "int8", "w8a8": "int8", "w8a16": "int8-w8a16", "gptq": "gptq-int4", "awq": "awq-int4", "rtn": "rtn-int4",
    "squeezellm": "squeezellm-4bit",
}  # fmt: skip
HESSIAN = ("gptq-int3", "gptq-int4", "gptq-int8", "awq-int4")
CALIBRATED = (*HESSIAN, "squeezellm-3bit", "squeezellm-4bit", "fp8", "nvfp4")
"""Modes that need text."""
_GROUPED = ("rtn-int4", "gptq-int3", "gptq-int4", "gptq-int8", "awq-int4")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make one quantized checkpoint.

    Attributes:
        mode: a key of `MODES`. group: columns a scale, for those that have groups; −1: all.
        symmetric: GPTQ's and round-to-nearest's zeros lie in the middle. act_order: GPTQ takes columns of large inputs first.
        sparse: share of weights that SqueezeLLM keeps apart.
    """

    mode: str
    group: int = 0
    symmetric: bool = True
    act_order: bool = False
    sparse: float = 0.0

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return {"gptq-int3": 3, "gptq-int8": 8, "squeezellm-3bit": 3}.get(
            self.mode, 8 if self.mode.startswith(("int8", "fp8")) else 4
        )

    @property
    def grouped(self) -> bool:
        """Whether it has a choice of groups."""
        return self.mode in _GROUPED


def find_mode(name: str) -> str:
    """A mode by name or alias.

    Raises:
        InputError: none of that name, with the nearest.
    """
    mode = ALIASES.get(name.lower(), name.lower())
    if mode not in MODES:
        raise unknown_name("mode to quantize to", name, MODES, place=Place(key="--mode"))
    return mode


def choose_group(widths: set[int], wanted: int) -> int:
    """The group size for layers of these input widths: as wanted, or the largest of 128, 64 and 32 that divides all of them.

    Raises:
        InputError: it does not divide them.
    """
    place = Place(key="--group")
    if wanted == 0:
        fitting = [size for size in (128, 64, 32) if all(width % size == 0 for width in widths)]
        if not fitting:
            raise InputError(
                f"no group of 128, 64 or 32 divides layers of {_list(widths)} inputs", place=place, hint="-1: one a row"
            )
        return fitting[0]
    if wanted < -1 or (wanted > 0 and any(width % wanted for width in widths)):
        raise InputError(
            f"{wanted} does not divide layers of {_list(widths)} inputs", place=place, hint="0 chooses one"
        )
    return wanted


def _list(widths: set[int]) -> str:
    return ", ".join(map(str, sorted(widths)))


def config_section(recipe: Recipe, ignored: list[str]) -> dict[str, Any] | None:
    """`quantization_config` of the result; None: SqueezeLLM, which has `quant_config.json` beside it."""
    mode, group = recipe.mode, recipe.group
    if mode.startswith("gptq"):
        return {
            "quant_method": "gptq", "bits": recipe.bits, "group_size": group, "desc_act": recipe.act_order,
            "sym": recipe.symmetric, "checkpoint_format": "gptq", "lm_head": False, "true_sequential": True,
            "damp_percent": 0.01,
        }  # fmt: skip
    if mode == "awq-int4":
        return {
            "quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm",
            "modules_to_not_convert": None,
        }  # fmt: skip
    if mode == "fp8-block":
        return {
            "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128],
            "modules_to_not_convert": ignored,
        }  # fmt: skip
    if mode.startswith("squeezellm"):
        return None
    return _compressed(recipe, ignored)


def _compressed(recipe: Recipe, ignored: list[str]) -> dict[str, Any]:
    mode, group = recipe.mode, recipe.group
    dynamic = {"dynamic": True, "strategy": "token"}
    table: Mapping[str, tuple[str, dict, dict | None]] = {
        "int8": ("int-quantized", _args(8, "int", "channel"), _args(8, "int", **dynamic)),
        "int8-w8a16": ("pack-quantized", _args(8, "int", "channel"), None),
        "rtn-int4": (
            "pack-quantized",
            _args(4, "int", "group" if group > 0 else "channel", group=group if group > 0 else None,
                  symmetric=recipe.symmetric),
            None,
        ),
        "fp8": ("float-quantized", _args(8, "float", "tensor"), _args(8, "float", "tensor")),
        "fp8-dynamic": ("float-quantized", _args(8, "float", "tensor"), _args(8, "float", **dynamic)),
        "fp8-channel": ("float-quantized", _args(8, "float", "channel"), _args(8, "float", **dynamic)),
        "nvfp4": (
            "nvfp4-pack-quantized", _args(4, "float", "tensor_group", group=16),
            _args(4, "float", "tensor_group", group=16, dynamic="local"),
        ),
        "nvfp4-a16": ("nvfp4-pack-quantized", _args(4, "float", "tensor_group", group=16), None),
        "mxfp4": ("mxfp4-pack-quantized", _args(4, "float", "group", group=32), None),
    }  # fmt: skip
    form, weights, inputs = table[mode]
    if mode.startswith("nvfp4"):
        weights |= {"scale_dtype": "torch.float8_e4m3fn"}
    if mode == "mxfp4":
        weights |= {"scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
    section = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
        "config_groups": {"group_0": section | {"format": form}}, "ignore": ignored, "kv_cache_scheme": None,
    }  # fmt: skip


def _args(
    bits: int, kind: str, strategy: str, group: int | None = None, symmetric: bool = True, dynamic: bool | str = False
) -> dict[str, Any]:
    return {
        "num_bits": bits, "type": kind, "strategy": strategy, "group_size": group, "symmetric": symmetric,
        "dynamic": dynamic, "observer": None if dynamic is True else "minmax", "block_structure": None, "actorder": None,
    }  # fmt: skip
