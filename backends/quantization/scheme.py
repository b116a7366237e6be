"""From a checkpoint's own description to how each of its linear layers is packed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backends.quantization.formats.awq import Awq
from backends.quantization.formats.fp8 import Fp8
from backends.quantization.formats.gptq import BITS, Gptq
from backends.quantization.formats.raw import LayerFormat
from backends.quantization.formats.squeezellm import SqueezeLLM
from backends.quantization.read_compressed import compressed_tensors, modelopt
from sim.quantization.checkpoint import Section


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a checkpoint is quantized.

    Attributes:
        section: what the checkpoint says. format: of its quantized layers.
        ignored: layers that it names as not quantized: names, ends of names, or `re:` and a regular expression.
    """

    section: Section
    format: LayerFormat
    ignored: tuple[str, ...] = ()

    @property
    def mode(self) -> str:
        """Name in the registry of weight modes."""
        return self.format.mode

    def leaves_out(self, name: str) -> bool:
        """Whether the checkpoint says that this layer is not quantized."""
        return any(names(rule, name) for rule in self.ignored)


def names(rule: str, name: str) -> bool:
    """Whether a rule of an ignore list is about a layer: its name, a part of it between dots, or `re:` and a pattern.

    `*` stands for anything, as ModelOpt writes it.
    """
    if rule.startswith("re:"):
        return re.match(rule[3:], name) is not None
    if "*" in rule:
        return re.fullmatch(".*".join(re.escape(part) for part in rule.split("*")), name) is not None
    return f".{rule}." in f".{name}."


def read_scheme(section: Section) -> Scheme:
    """How the layers are packed of a checkpoint that says `section` of itself.

    Raises:
        InputError: a method that cannot be run, by name, or a key that is missing or wrong.
    """
    readers: Mapping[str, Callable[[Section], tuple[LayerFormat, tuple[str, ...]]]] = {
        "gptq": _gptq, "awq": _awq, "squeezellm": _squeezellm, "fp8": _fp8, "fbgemm_fp8": _fbgemm,
        "compressed-tensors": compressed_tensors, "modelopt": modelopt,
    }  # fmt: skip
    reader = readers.get(section.method)
    if reader is None:
        raise section.error(
            "quant_method", f"weights in {section.method!r} cannot be run", f"these can: {', '.join(readers)}"
        )
    format_, ignored = reader(section)
    return Scheme(section, format_, ignored)


def _gptq(section: Section) -> tuple[LayerFormat, tuple[str, ...]]:
    values = section.values
    bits, group = choice(section, "bits", BITS, 4), size(section, "group_size", 128)
    if values.get("dynamic"):
        raise section.error("dynamic", "other settings for some layers (mixed precision) cannot be run")
    form = values.get("checkpoint_format") or "gptq"
    if form not in ("gptq", "gptq_v2"):
        raise section.error("checkpoint_format", f"{form!r} cannot be run", "these can: gptq, gptq_v2")
    return Gptq(bits, group, form == "gptq_v2", f"gptq-int{bits}"), _list(section, "modules_to_not_convert")


def _awq(section: Section) -> tuple[LayerFormat, tuple[str, ...]]:
    values = section.values
    choice(section, "bits" if "bits" in values else "w_bit", (4,), 4)
    version = str(values.get("version", "gemm")).lower()
    if version != "gemm":
        raise section.error("version", f"AWQ's layout {version!r} cannot be run", "this can: gemm")
    group = size(section, "group_size" if "group_size" in values else "q_group_size", 128)
    zero = values.get("zero_point", True)
    if not isinstance(zero, bool):
        raise section.error("zero_point", f"expected true or false, found {zero!r}")
    return Awq(group, zero), _list(section, "modules_to_not_convert")


def _squeezellm(section: Section) -> tuple[LayerFormat, tuple[str, ...]]:
    bits = choice(section, "wbits", (3, 4), 4)
    return SqueezeLLM(bits, f"squeezellm-{bits}bit"), ()


def _fp8(section: Section) -> tuple[LayerFormat, tuple[str, ...]]:
    values = section.values
    ignored = (*_list(section, "modules_to_not_convert"), *_list(section, "ignored_layers"))
    activations = values.get("activation_scheme", "dynamic")
    if activations not in ("static", "dynamic"):
        raise section.error("activation_scheme", f"{activations!r} cannot be run", "these can: static, dynamic")
    form = values.get("fmt", "e4m3")
    if form not in ("e4m3", "float8_e4m3fn"):
        raise section.error("fmt", f"weights in {form!r} cannot be run", "this can: e4m3")
    if (block := values.get("weight_block_size")) is not None:
        if not (isinstance(block, list) and len(block) == 2 and all(type(side) is int and side > 0 for side in block)):
            raise section.error("weight_block_size", f"expected two whole numbers above 0, found {block!r}")
        if activations == "static":
            raise section.error("activation_scheme", "static scales beside blocks cannot be run")
        return Fp8("fp8-block", (block[0], block[1]), activation=block[1], scale="weight_scale_inv"), ignored
    static = activations == "static"
    return Fp8("fp8" if static else "fp8-dynamic", static=static), ignored


def _fbgemm(section: Section) -> tuple[LayerFormat, tuple[str, ...]]:
    bound = section.values.get("activation_scale_ub", 1200.0)
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < float("inf"):
        raise section.error("activation_scale_ub", f"expected a number above 0, found {bound!r}")
    return Fp8("fp8-channel", bound=float(bound)), _list(section, "modules_to_not_convert")


def choice(section: Section, key: str, known: tuple[int, ...], default: int) -> int:
    """A whole number that is one of few.

    Raises:
        InputError: it is not.
    """
    value = section.values.get(key, default)
    if type(value) is not int or value not in known:
        raise section.error(key, f"{value!r} cannot be run, expected {' or '.join(map(str, known))}")
    return value


def size(section: Section, key: str, default: int) -> int:
    """A group size: −1, or a whole number above 0.

    Raises:
        InputError: it is neither.
    """
    value: Any = section.values.get(key, default)
    if type(value) is not int or (value < 1 and value != -1):
        raise section.error(key, f"expected −1 or a whole number above 0, found {value!r}")
    return value


def _list(section: Section, key: str) -> tuple[str, ...]:
    value = section.values.get(key) or ()
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise section.error(key, f"expected a list of names, found {value!r}")
    return tuple(value)
