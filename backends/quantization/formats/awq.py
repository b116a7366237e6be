"""AWQ's `gemm` layout (AutoAWQ): codes and zeros both packed along N, nibble i holding column (0, 2, 4, 6, 1, 3, 5, 7)[i].

qweight int32 [K, N / 8]; qzeros int32 [groups, N / 8]; scales float16 [groups, N]. A weight is (code − zero) × scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backends.quantization.base import QuantizedWeight
from backends.quantization.formats.gptq import grouped
from backends.quantization.formats.raw import FLOATS, Raw, check_scales, groups_of, own
from backends.quantization.unpack import pack, unpack

COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of a word's eight columns each of its nibbles holds, from the lowest bits on."""
_NIBBLES = tuple(COLUMNS.index(column) for column in range(8))


@dataclass(frozen=True, slots=True)
class Awq:
    """AWQ with 4 bits and `group` columns a scale (−1: all of a row); without `zero_point` the zero is 8."""

    group: int = 128
    zero_point: bool = True
    mode: str = "awq-int4"
    packed: str = "qweight"

    def load(self, raw: Raw, outputs: int, inputs: int) -> QuantizedWeight:
        """See `LayerFormat.load`."""
        groups = groups_of(inputs, self.group)
        if outputs % 8:
            raise raw.error("qweight", f"packs eight columns a word, which {outputs} outputs do not fill")
        codes = reordered(raw.take("qweight", torch.int32, shape=(inputs, outputs // 8)), outputs)
        scales = check_scales(raw, "scales", raw.take("scales", *FLOATS, shape=(groups, outputs)))
        shape = (groups, outputs // 8)
        zeros = raw.take("qzeros", torch.int32, shape=shape) if self.zero_point else raw.maybe("qzeros", shape=shape)
        zeros = reordered(zeros, outputs).t().to(torch.int16) if zeros is not None and self.zero_point else None
        return grouped(pack(codes.t(), 4), 4, outputs, inputs, own(scales.t()), zeros, self.group)

    def save(self, codes: Tensor, scales: Tensor, zeros: Tensor, index: Tensor | None = None) -> dict[str, Tensor]:
        """The tensors of a layer from codes [N, K], and scales and zeros [N, groups]."""
        return {
            "qweight": _interleaved(codes.t()), "qzeros": _interleaved(zeros.t()),
            "scales": scales.t().contiguous().half(),
        }  # fmt: skip


def reordered(words: Tensor, outputs: int) -> Tensor:
    """Codes [rows, outputs] uint8 of AWQ's words [rows, outputs / 8]."""
    return unpack(words, 4, outputs).unflatten(-1, (-1, 8))[..., list(_NIBBLES)].flatten(-2)


def _interleaved(codes: Tensor) -> Tensor:
    return pack(codes.to(torch.uint8).unflatten(-1, (-1, 8))[..., list(COLUMNS)].flatten(-2), 4)
