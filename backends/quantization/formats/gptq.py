"""GPTQ's layout (AutoGPTQ, GPTQModel): codes packed along K, zeros along N, both in plain order.

qweight int32 [K × bits / 32, N]; qzeros int32 [groups, N × bits / 32]; scales [groups, N]; g_idx int32 [K], the group of every
column, sorted or not (act-order). A weight is (code − zero) × scale. In version 1 (`checkpoint_format: gptq`) the zero that is
stored is one less, so that a zero of 0 is stored as all ones; it is read as 0 again, as the tools' own `(zero + 1) & mask` does.
In `gptq_v2` it is stored as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backends.quantization.base import QuantizedWeight
from backends.quantization.formats.raw import FLOATS, Raw, check_scales, groups_of, own
from backends.quantization.unpack import pack, unpack

BITS = (3, 4, 8)


@dataclass(frozen=True, slots=True)
class Gptq:
    """GPTQ with `bits` (3, 4 or 8) and `group` columns a scale (−1: all of a row); `v2`: zeros are stored as they are."""

    bits: int = 4
    group: int = 128
    v2: bool = False
    mode: str = "gptq-int4"
    packed: str = "qweight"

    def load(self, raw: Raw, outputs: int, inputs: int) -> QuantizedWeight:
        """See `LayerFormat.load`."""
        bits, groups = self.bits, groups_of(inputs, self.group)
        if inputs * bits % 32 or outputs * bits % 32:
            raise raw.error("qweight", f"packs {bits}-bit codes of [{outputs}, {inputs}], which fill no whole words")
        words = raw.take("qweight", torch.int32, shape=(inputs * bits // 32, outputs)).t()
        scales = check_scales(raw, "scales", raw.take("scales", *FLOATS, shape=(groups, outputs)))
        stored = unpack(raw.take("qzeros", torch.int32, shape=(groups, outputs * bits // 32)), bits, outputs)
        zeros = (stored.to(torch.int16) + (0 if self.v2 else 1)) & ((1 << bits) - 1)
        order = self._order(raw, inputs)
        if order is not None:
            words = pack(unpack(words, bits, inputs)[:, order.long()], bits)
        return grouped(words.contiguous(), bits, outputs, inputs, own(scales.t()), zeros.t(), self.group, order)

    def _order(self, raw: Raw, inputs: int) -> Tensor | None:
        """Columns sorted by group, or None where they are already."""
        index = raw.maybe("g_idx", torch.int32, torch.int64, shape=(inputs,))
        if index is None:
            return None
        size = self.group if self.group > 0 else inputs
        order = torch.argsort(index.long(), stable=True)
        if not torch.equal(index.long()[order], torch.arange(inputs) // size):
            raise raw.error("g_idx", f"does not share {inputs} columns out into groups of {size}")
        return None if torch.equal(order, torch.arange(inputs)) else order.to(torch.int32)

    def save(self, codes: Tensor, scales: Tensor, zeros: Tensor, index: Tensor | None = None) -> dict[str, Tensor]:
        """The tensors of a layer from codes [N, K], scales and zeros [N, groups], and the group of every column."""
        if index is None:
            index = torch.arange(codes.shape[1]) // (self.group if self.group > 0 else codes.shape[1])
        stored = (zeros.to(torch.int16) - (0 if self.v2 else 1)) & ((1 << self.bits) - 1)
        return {
            "qweight": pack(codes, self.bits).t().contiguous(),
            "qzeros": pack(stored.t().to(torch.uint8), self.bits),
            "scales": scales.t().contiguous().half(),
            "g_idx": index.to(torch.int32),
        }


def grouped(
    words: Tensor, bits: int, outputs: int, inputs: int, scales: Tensor, zeros: Tensor | None, group: int,
    order: Tensor | None = None, activation: object | None = None,
) -> QuantizedWeight:  # fmt: skip
    """Integers in groups, in the engine's layout.

    Args:
        words: codes, unsigned, as rows of bits. scales: [N, groups]. zeros: [N, groups], None: the middle of the range.
    """
    middle = 1 << (bits - 1)
    if zeros is not None and bool((zeros == middle).all()):
        zeros = None
    zero = middle
    if bits == 8:  # signed bytes
        words = (unpack(words, 8, inputs) ^ 0x80).view(torch.int8)
        zero, zeros = 0, None if zeros is None else zeros - 128
    return QuantizedWeight(
        "int", bits, outputs, inputs, words, scales=scales, group=group if group > 0 else inputs, zero=zero,
        zeros=None if zeros is None else zeros.to(torch.int16).contiguous(), order=order, activation=activation,
    )  # fmt: skip
