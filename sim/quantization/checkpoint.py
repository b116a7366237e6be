"""How a checkpoint says that it is quantized: in `config.json`, or in a file of its tool beside it.

quantize_config.json     AutoGPTQ, before transformers read it
quant_config.json        AutoAWQ (`w_bit`, `q_group_size`), or SqueezeLLM (`wbits`)
hf_quant_config.json     NVIDIA's ModelOpt
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.errors import InputError, Place
from workloads.json_file import read_object

KEY = "quantization_config"


@dataclass(frozen=True, slots=True)
class Section:
    """What a checkpoint says of its quantization: `values` with at least `quant_method`, found in `file` under `key`."""

    values: Mapping[str, Any]
    file: str
    key: str = ""

    @property
    def method(self) -> str:
        """`gptq`, `awq`, `compressed-tensors`, …; lower case."""
        return str(self.values["quant_method"]).lower()

    def error(self, key: str, message: str, hint: str | None = None) -> InputError:
        """An error about one of its keys."""
        where = ".".join(part for part in (self.key, key) if part)
        return InputError(message, place=Place(self.file, key=where), hint=hint)


def find_section(config: Mapping[str, Any], file: Path) -> Section | None:
    """The section of a parsed `config.json`, or of another tool's file in its folder; None: it is not quantized.

    Raises:
        InputError: not an object, no method, or two files that tell of different methods.
    """
    found: list[Section] = []
    values = config.get(KEY) or config.get("compression_config")
    if values is not None:
        place = Section({"quant_method": ""}, str(file), KEY)
        if not isinstance(values, dict):
            raise place.error("", f"expected an object, found {values!r}")
        method = values.get("quant_method") or ("modelopt" if "quant_algo" in values else None)
        if not isinstance(method, str):
            raise place.error("quant_method", "is missing" if method is None else f"expected a name, found {method!r}")
        found.append(Section(values | {"quant_method": method}, str(file), KEY))
    for name, read in _SIDE.items():
        side = file.parent / name
        if side.is_file():
            found.append(_read(side, read))
    methods = {section.method for section in found}
    if len(methods) > 1:
        files = " and ".join(f"{Path(section.file).name} says {section.method}" for section in found)
        raise InputError(
            f"is quantized in two ways: {files}", place=Place(str(file.parent)),
            hint="a checkpoint has one format; remove the file that is not its own",
        )  # fmt: skip
    return found[0] if found else None


def _read(file: Path, read: Callable[[dict], tuple[dict, str]]) -> Section:
    values = read_object(file)
    section, key = read(values)
    if not isinstance(section.get("quant_method"), str):
        raise InputError(
            "does not say by which method the weights are quantized", place=Place(str(file)),
            hint="AWQ has w_bit and q_group_size, SqueezeLLM has wbits, ModelOpt has quantization.quant_algo",
        )  # fmt: skip
    return Section(section, str(file), key)


def _autogptq(values: dict) -> tuple[dict, str]:
    return {"quant_method": "gptq"} | values, ""


def _awq_or_squeezellm(values: dict) -> tuple[dict, str]:
    if "wbits" in values:
        return {"quant_method": "squeezellm"} | values, ""
    if "w_bit" in values or "q_group_size" in values:
        return {"quant_method": "awq"} | values, ""
    return values, ""


def _modelopt(values: dict) -> tuple[dict, str]:
    inner = values.get("quantization")
    if not isinstance(inner, dict):
        return {}, ""
    return {"quant_method": "modelopt"} | inner, "quantization"


_SIDE: dict[str, Callable[[dict], tuple[dict, str]]] = {
    "quantize_config.json": _autogptq,
    "quant_config.json": _awq_or_squeezellm,
    "hf_quant_config.json": _modelopt,
}
