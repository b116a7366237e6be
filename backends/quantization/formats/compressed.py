"""Layouts of compressed-tensors for integers and 8-bit floats; its 4-bit floats are in `fp4`.

pack-quantized   weight_packed int32 [N, ceil(K × bits / 32)] along K, plain order, stored + 2^(bits−1); weight_scale
                 [N, groups]; weight_shape int64 [2]; weight_g_idx [K] with act-order; without symmetry weight_zero_point,
                 packed along N, [ceil(N × bits / 32), groups]
int-quantized    weight int8 [N, K]; weight_scale [N, 1] or one value; input_scale where activations are static
float-quantized  weight float8_e4m3fn [N, K]; weight_scale one value, [N, 1] or blocks; input_scale where static
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backends.quantization.base import Activation, QuantizedWeight
from backends.quantization.formats.fp8 import KV_SCALES
from backends.quantization.formats.gptq import Gptq, grouped
from backends.quantization.formats.raw import FLOATS, Raw, check_scales, groups_of, own
from backends.quantization.unpack import pack, packed_words, unpack


@dataclass(frozen=True, slots=True)
class PackedInts:
    """Weight-only integers of `bits`, `group` columns a scale (−1: a row)."""

    bits: int
    group: int
    symmetric: bool = True
    mode: str = "gptq-int4"
    packed: str = "weight_packed"

    def load(self, raw: Raw, outputs: int, inputs: int) -> QuantizedWeight:
        """See `LayerFormat.load`."""
        bits, groups = self.bits, groups_of(inputs, self.group)
        words = raw.take("weight_packed", torch.int32, shape=(outputs, packed_words(inputs, bits)))
        shape = raw.maybe("weight_shape", torch.int64, torch.int32)
        if shape is not None and shape.tolist() != [outputs, inputs]:
            raise raw.error("weight_shape", f"is {shape.tolist()}, the architecture needs [{outputs}, {inputs}]")
        scales = check_scales(raw, "weight_scale", raw.take("weight_scale", *FLOATS, shape=(outputs, groups)))
        zeros = None
        if not self.symmetric:
            stored = raw.take("weight_zero_point", torch.int32, shape=(packed_words(outputs, bits), groups))
            zeros = unpack(stored.t(), bits, outputs).t().to(torch.int16)
        index = raw.maybe("weight_g_idx", torch.int32, torch.int64, shape=(inputs,))
        order = None
        if index is not None and bool((index >= 0).all()):  # −1 throughout: written before it was known
            inner = Raw(raw.name, raw.file, {"g_idx": index})
            order = Gptq(bits, self.group)._order(inner, inputs)
        words = own(words) if order is None else pack(unpack(words, bits, inputs)[:, order.long()], bits)
        return grouped(words, bits, outputs, inputs, own(scales), zeros, self.group, order)

    def save(self, codes: Tensor, scales: Tensor, zeros: Tensor, index: Tensor | None = None) -> dict[str, Tensor]:
        """The tensors of a layer from codes [N, K], and scales and zeros [N, groups]."""
        found = {
            "weight_packed": pack(codes, self.bits), "weight_scale": scales.contiguous(),
            "weight_shape": torch.tensor(codes.shape),
        }  # fmt: skip
        if not self.symmetric:
            found["weight_zero_point"] = pack(zeros.t().to(torch.uint8), self.bits).t().contiguous()
        if index is not None:
            found["weight_g_idx"] = index.to(torch.int32)
        return found


@dataclass(frozen=True, slots=True)
class Bytes:
    """Weights of one byte, int8 or E4M3.

    Attributes:
        form: `int` or `fp8`. block: rows and columns of a scale's block, or None. group: columns a scale; 0 where it is a row or
            the tensor.
        activation: form of activations, `int8` or `fp8`; None: they are not quantized.
        static: `input_scale` is in the checkpoint. share: see `Activation.group`, for dynamic ones.
    """

    form: str
    mode: str
    block: tuple[int, int] | None = None
    group: int = 0
    activation: str | None = None
    static: bool = False
    share: int = 0
    packed: str = "weight"

    def load(self, raw: Raw, outputs: int, inputs: int) -> QuantizedWeight:
        """See `LayerFormat.load`."""
        dtype = torch.int8 if self.form == "int" else torch.float8_e4m3fn
        codes = raw.take("weight", dtype, shape=(outputs, inputs))
        raw.ignore(*KV_SCALES)
        zero = raw.maybe("weight_zero_point")
        if zero is not None and bool((zero.float() != 0).any()):
            raise raw.error("weight_zero_point", "is not 0, and 8-bit weights with zero points cannot be run")
        scales, rows, group = self._scales(raw, outputs, inputs)
        return QuantizedWeight(
            self.form, 8, outputs, inputs, own(codes), scales=scales, rows=rows, group=group,  # type: ignore[arg-type]
            activation=self._activation(raw),
        )  # fmt: skip

    def _scales(self, raw: Raw, outputs: int, inputs: int) -> tuple[Tensor, int, int]:
        scales = check_scales(raw, "weight_scale", raw.take("weight_scale", *FLOATS))
        if self.block is not None:
            rows, columns = self.block
            shape = (-(-outputs // rows), -(-inputs // columns))
            return own(raw.take("weight_scale", *FLOATS, shape=shape)), rows, columns
        if self.group:
            shape = (outputs, groups_of(inputs, self.group))
            return own(raw.take("weight_scale", *FLOATS, shape=shape)), 1, self.group
        if scales.numel() == 1:
            return own(scales.reshape(1, 1)), outputs, inputs
        if scales.numel() != outputs:
            raise raw.error(
                "weight_scale", f"has shape {list(scales.shape)}, expected one value or one for each of {outputs} rows"
            )
        return own(scales.reshape(outputs, 1)), 1, inputs

    def _activation(self, raw: Raw) -> Activation | None:
        if self.activation is None:
            return None
        if not self.static:
            return Activation(self.activation, self.share)  # type: ignore[arg-type]
        zero = raw.maybe("input_zero_point")
        if zero is not None and bool((zero.float() != 0).any()):
            raise raw.error("input_zero_point", "is not 0, and activations with zero points cannot be run")
        return Activation(self.activation, -1, raw.scale("input_scale"))  # type: ignore[arg-type]
