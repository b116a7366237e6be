"""The descriptions of compressed-tensors (llm-compressor) and of ModelOpt: what each says of one kind of layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.quantization.formats.compressed import Bytes, PackedInts
from backends.quantization.formats.fp4 import MxFp4, NvFp4
from backends.quantization.formats.fp8 import Fp8
from backends.quantization.formats.raw import LayerFormat
from sim.quantization.checkpoint import Section

Found = tuple[LayerFormat, tuple[str, ...]]
_FORMATS = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
)  # fmt: skip


def compressed_tensors(section: Section) -> Found:
    """The format of all quantized layers, and which layers are left out.

    Raises:
        InputError: groups of several formats (mixed precision), or one that cannot be run.
    """
    values = section.values
    groups = values.get("config_groups")
    if not isinstance(groups, Mapping) or not groups or not all(isinstance(each, Mapping) for each in groups.values()):
        raise section.error("config_groups", "expected an object of groups, each with weights")
    if values.get("quantization_status", "compressed") not in ("compressed", "frozen"):
        raise section.error("quantization_status", f"{values['quantization_status']!r} weights are not packed yet")
    sparsity = values.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format") not in (None, "dense"):
        raise section.error("sparsity_config.format", f"sparse weights ({sparsity['format']}) cannot be run")
    found = [
        _group(_Group(section, f"config_groups.{name}", each), values.get("format")) for name, each in groups.items()
    ]
    if any(each != found[0] for each in found):
        raise section.error(
            "config_groups", f"its {len(found)} groups have different formats (mixed), which cannot be run"
        )
    ignored = values.get("ignore") or []
    if not isinstance(ignored, list) or not all(isinstance(each, str) for each in ignored):
        raise section.error("ignore", f"expected a list of names, found {ignored!r}")
    return found[0], tuple(ignored)


class _Group:
    """One group, with errors that name its keys."""

    def __init__(self, section: Section, key: str, values: Mapping[str, Any]) -> None:
        self._section, self._key, self.values = section, key, values

    def error(self, key: str, message: str, hint: str | None = None) -> Exception:
        return self._section.error(f"{self._key}.{key}", message, hint)

    def part(self, key: str) -> Mapping[str, Any] | None:
        """`weights` or `input_activations`."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(key, f"expected an object, found {value!r}")
        return value


def _group(group: _Group, overall: Any) -> LayerFormat:
    weights, inputs = group.part("weights"), group.part("input_activations")
    if weights is None:
        raise group.error(
            "weights", "is missing: only keys, values or activations are quantized", "keep weights quantized"
        )
    form = group.values.get("format") or overall
    if form not in _FORMATS:
        raise group.error("format", f"{form!r} cannot be run", f"these can: {', '.join(_FORMATS)}")
    if group.part("output_activations") is not None:
        raise group.error("output_activations", "quantized outputs cannot be run")
    kind = (weights.get("type", "int"), weights.get("num_bits"))
    if kind == ("float", 4):
        return _fp4(group, weights, inputs, form)
    if kind == ("float", 8):
        return _bytes(group, weights, inputs, "fp8")
    if kind == ("int", 8) and form != "pack-quantized":
        return _bytes(group, weights, inputs, "int")
    if kind[0] == "int" and kind[1] in (3, 4, 8) and form == "pack-quantized":
        return _packed(group, weights, inputs)
    raise group.error("weights", f"{kind[1]}-bit {kind[0]} weights in {form} cannot be run")


def _packed(group: _Group, weights: Mapping, inputs: Mapping | None) -> LayerFormat:
    if inputs is not None:
        raise group.error("input_activations", "quantized activations beside packed integers (W4A8) cannot be run")
    bits, strategy = weights["num_bits"], weights.get("strategy", "channel")
    if strategy == "group":
        size = weights.get("group_size")
        if type(size) is not int or size < 1:
            raise group.error("weights.group_size", f"expected a whole number above 0, found {size!r}")
    elif strategy == "channel":
        size = -1
    else:
        raise group.error(
            "weights.strategy", f"{strategy!r} of packed integers cannot be run", "these can: group, channel"
        )
    symmetric = weights.get("symmetric", True)
    return PackedInts(bits, size, bool(symmetric), "int8-w8a16" if bits == 8 else f"gptq-int{bits}")


def _bytes(group: _Group, weights: Mapping, inputs: Mapping | None, form: str) -> LayerFormat:
    if not weights.get("symmetric", True):
        raise group.error("weights.symmetric", "8-bit weights with zero points cannot be run")
    strategy, block, size = weights.get("strategy", "tensor"), None, 0
    if strategy == "block":
        sides = weights.get("block_structure")
        if not (isinstance(sides, list) and len(sides) == 2 and all(type(side) is int and side > 0 for side in sides)):
            raise group.error("weights.block_structure", f"expected two whole numbers above 0, found {sides!r}")
        block = (sides[0], sides[1])
    elif strategy == "group":
        size = weights.get("group_size")
        if type(size) is not int or size < 1:
            raise group.error("weights.group_size", f"expected a whole number above 0, found {size!r}")
    elif strategy not in ("tensor", "channel"):
        raise group.error("weights.strategy", f"{strategy!r} cannot be run")
    how, static, share = _inputs(group, inputs, form)
    return Bytes(form, _byte_mode(form, strategy, how, static), block, size, how, static, share)


def _byte_mode(form: str, strategy: str, activation: str | None, static: bool) -> str:
    if form == "int":
        return "int8-w8a16" if activation is None else "int8-w8a8"
    if strategy == "block":
        return "fp8-block"
    return "fp8" if static else "fp8-channel" if strategy == "channel" else "fp8-dynamic"


def _inputs(group: _Group, inputs: Mapping | None, form: str) -> tuple[str | None, bool, int]:
    """Form of activations, whether their scale is in the checkpoint, and the columns that share one."""
    if inputs is None:
        return None, False, 0
    kind, wanted = (inputs.get("type", "int"), inputs.get("num_bits")), ("float" if form == "fp8" else "int", 8)
    if kind != wanted:
        raise group.error(
            "input_activations", f"{kind[1]}-bit {kind[0]} activations beside {form} weights cannot be run"
        )
    if not inputs.get("symmetric", True):
        raise group.error("input_activations.symmetric", "activations with zero points cannot be run")
    strategy, dynamic = inputs.get("strategy", "tensor"), bool(inputs.get("dynamic"))
    if not dynamic and strategy != "tensor":
        raise group.error(
            "input_activations.strategy", f"static scales per {strategy} cannot be run", "this can: tensor"
        )
    share = {"token": 0, "tensor": -1, "group": inputs.get("group_size")}.get(strategy)
    if type(share) is not int:
        raise group.error(
            "input_activations.strategy", f"{strategy!r} cannot be run", "these can: token, tensor, group"
        )
    return "int8" if form == "int" else "fp8", not dynamic, share


def _fp4(group: _Group, weights: Mapping, inputs: Mapping | None, form: str) -> LayerFormat:
    size = weights.get("group_size")
    if form == "mxfp4-pack-quantized" and size == 32:
        if inputs is not None:
            raise group.error("input_activations", "MXFP4 activations cannot be run", "weight-only MXFP4 can")
        return MxFp4()
    if form == "nvfp4-pack-quantized" and size == 16:
        if inputs is not None and (inputs.get("type"), inputs.get("num_bits"), inputs.get("group_size")) != (
            "float",
            4,
            16,
        ):
            raise group.error("input_activations", "beside NVFP4 weights only NVFP4 activations can be run")
        return NvFp4(modelopt=False, inputs=inputs is not None)
    raise group.error("weights.group_size", f"{size!r} of 4-bit floats in {form} cannot be run",
                      "NVFP4 has 16, MXFP4 has 32")  # fmt: skip


def modelopt(section: Section) -> Found:
    """The format of a ModelOpt checkpoint, and which layers are left out.

    Raises:
        InputError: an algorithm that cannot be run.
    """
    values = section.values
    algorithm = str(values.get("quant_algo", "")).upper()
    key = "exclude_modules" if "exclude_modules" in values else "ignore"
    ignored = values.get(key) or []
    if not isinstance(ignored, list) or not all(isinstance(each, str) for each in ignored):
        raise section.error(key, f"expected a list of names, found {ignored!r}")
    if algorithm == "FP8":
        return Fp8("fp8", static=True), tuple(ignored)
    if algorithm == "NVFP4":
        if values.get("group_size", 16) != 16:
            raise section.error("group_size", f"{values['group_size']!r} of NVFP4 cannot be run, expected 16")
        return NvFp4(modelopt=True), tuple(ignored)
    raise section.error("quant_algo", f"{algorithm or 'missing'!r} of ModelOpt cannot be run", "these can: FP8, NVFP4")
