"""The tensors of one linear layer as a checkpoint has them, with errors that name what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from backends.quantization.base import QuantizedWeight
from workloads.errors import InputError, Place

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(slots=True)
class Raw:
    """Tensors of the layer `name` by suffix (`qweight`, `scales`, …), from `file`; which were asked for is remembered."""

    name: str
    file: str
    tensors: Mapping[str, Tensor]
    _asked: set[str] = field(default_factory=set)

    def error(self, suffix: str, message: str, hint: str | None = None) -> InputError:
        """An error about one of the tensors."""
        return InputError(f"{self.name}.{suffix} {message}", place=Place(self.file), hint=hint)

    def maybe(self, suffix: str, *dtypes: torch.dtype, shape: tuple[int, ...] | None = None) -> Tensor | None:
        """A tensor that may be missing, of one of the `dtypes` and of the shape.

        Raises:
            InputError: it is there, with another dtype or shape.
        """
        tensor = self.tensors.get(suffix)
        if tensor is None:
            return None
        self._asked.add(suffix)
        if dtypes and tensor.dtype not in dtypes:
            wanted = " or ".join(str(dtype)[6:] for dtype in dtypes)
            raise self.error(suffix, f"is {str(tensor.dtype)[6:]}, its format has {wanted}")
        if shape is not None and tuple(tensor.shape) != shape:
            if tensor.numel() == torch.Size(shape).numel() and tensor.numel() == 1:
                return tensor.reshape(shape)
            raise self.error(
                suffix, f"has shape {list(tensor.shape)}, its format and the model's shape make it {list(shape)}",
                "config.json and the weights must come from the same checkpoint",
            )  # fmt: skip
        return tensor

    def take(self, suffix: str, *dtypes: torch.dtype, shape: tuple[int, ...] | None = None) -> Tensor:
        """A tensor that must be there; see `maybe`.

        Raises:
            InputError: it is missing or wrong.
        """
        tensor = self.maybe(suffix, *dtypes, shape=shape)
        if tensor is None:
            raise self.error(suffix, "is missing", f"this layer has {', '.join(sorted(self.tensors)) or 'no tensors'}")
        return tensor

    def scale(self, suffix: str) -> Tensor:
        """A scalar that scales, as float32 [1].

        Raises:
            InputError: missing, not one value, or not a number above 0.
        """
        value = self.take(suffix, *FLOATS).float().reshape(-1)
        if value.numel() != 1:
            raise self.error(suffix, f"has {value.numel()} values, its format has one")
        if not bool(torch.isfinite(value).all()) or float(value) <= 0:
            raise self.error(suffix, f"is {float(value)}, a scale is a number above 0")
        return value.clone()

    def ignore(self, *suffixes: str) -> None:
        """These may be there and are of no use to us."""
        self._asked.update(suffixes)

    def unknown(self) -> list[str]:
        """Suffixes that nobody has asked for."""
        return sorted(set(self.tensors) - self._asked)


class LayerFormat(Protocol):
    """How a quantized linear layer lies in a checkpoint.

    Attributes:
        mode: name in the registry of weight modes.
        packed: suffix that a quantized layer has and a plain one has not (`weight` where only the dtype tells).
    """

    mode: str
    packed: str

    def load(self, raw: Raw, outputs: int, inputs: int) -> QuantizedWeight:
        """The layer in the engine's layout; new tensors, which hold on to no file.

        Raises:
            InputError: a tensor that is missing, or whose dtype, shape or values cannot be.
        """


def own(tensor: Tensor) -> Tensor:
    """A contiguous copy: what comes from a file is a view of it."""
    return tensor.clone(memory_format=torch.contiguous_format)


def check_scales(raw: Raw, suffix: str, scales: Tensor) -> Tensor:
    """Scales, seen to be finite.

    Raises:
        InputError: NaN or infinity among them.
    """
    if not bool(torch.isfinite(scales.float()).all()):
        raise raw.error(suffix, "has values that are not finite numbers")
    return scales


def groups_of(inputs: int, group: int) -> int:
    """Groups along K; a group size of −1 is one group."""
    return 1 if group <= 0 else -(-inputs // group)
