"""Products with packed weights as models launch them, for the ahead-of-time compiler: every form, for few tokens and for many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.ops.base import Dense
from backends.quantization.base import Activation, QuantizedBank, QuantizedLinear, QuantizedWeight, Sparse
from backends.triton.operators import TritonOperators

_OUTPUTS, _INPUTS = 14336, 4096
TOKENS = (1, 64, 512, 4096)
_FP8, _E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


@dataclass(frozen=True, slots=True)
class _Kind:
    """A form of weights. `scales`: their type. `group`: columns a scale, 0: all. `rows`: outputs a scale, 0: all."""

    form: str
    bits: int
    group: int = 0
    scales: torch.dtype | None = torch.float16
    rows: int = 1
    zeros: bool = False
    outer: bool = False
    sparse: bool = False
    activation: Activation | None = None


_KINDS = {
    "int8, W8A16": _Kind("int", 8),
    "int4, groups of 128": _Kind("int", 4, 128),
    "int4, groups of 128 with zeros": _Kind("int", 4, 128, zeros=True),
    "int4, groups of 32": _Kind("int", 4, 32),
    "int3, groups of 128": _Kind("int", 3, 128),
    "table of 16": _Kind("table", 4, scales=None),
    "table of 16, outliers": _Kind("table", 4, scales=None, sparse=True),
    "table of 8": _Kind("table", 3, scales=None),
    "nvfp4": _Kind("fp4", 4, 16, _FP8, outer=True),
    "nvfp4, W4A4": _Kind(
        "fp4", 4, 16, _FP8, outer=True, activation=Activation("fp4", 16, torch.empty(1, device="meta"))
    ),
    "mxfp4": _Kind("fp4", 4, 32, _E8M0),
    "int8, W8A8": _Kind("int", 8, activation=Activation("int8")),
    "fp8, a channel": _Kind("fp8", 8, scales=torch.float32, activation=Activation("fp8")),
    "fp8, blocks of 128": _Kind("fp8", 8, 128, torch.float32, 128, activation=Activation("fp8", 128)),
    "fp8, weight only": _Kind("fp8", 8, scales=torch.float32),
}


def packed_products(ops: TritonOperators) -> Iterator[tuple[str, Callable[[], object]]]:
    """Labels, and what launches the kernels of each."""
    for name, kind in _KINDS.items():
        layer = QuantizedLinear((_weight(kind),))
        for tokens in TOKENS:
            x = torch.empty(tokens, _INPUTS, dtype=torch.bfloat16, device="meta")
            yield f"bf16, {name}, {tokens} tokens", lambda x=x, layer=layer: ops.linear(x, layer)


_BANKS = (
    (
        "Mixtral 8x7B",
        4096,
        14336,
        8,
        2,
        ("int4, groups of 128", "fp8, a channel", "fp8, blocks of 128", "int8, W8A8", "mxfp4"),
    ),
    ("Qwen 3 30B-A3B", 2048, 768, 128, 8, ("int4, groups of 128 with zeros", "fp8, a channel", "nvfp4, W4A4")),
)
"""(name, width, expert width, experts, experts a token, forms)."""


def packed_experts(ops: TritonOperators) -> Iterator[tuple[str, Callable[[], object]]]:
    """The same of mixtures of experts."""
    for name, width, inner, experts, top_k, kinds in _BANKS:
        for kind in kinds:
            shapes = (experts * 2 * inner, width), (experts * width, inner)
            banks = [QuantizedBank(_weight(_KINDS[kind], *shape), experts) for shape in shapes]
            router = Dense(torch.empty(experts, width, dtype=torch.bfloat16, device="meta"))
            for tokens in (16, 256, 4096):
                x = torch.empty(tokens, width, dtype=torch.bfloat16, device="meta")
                yield (
                    f"bf16, {name}, {kind}, {tokens} tokens",
                    lambda x=x, router=router, banks=banks, top_k=top_k: ops.experts(x, router, *banks, top_k, True),
                )


def _weight(kind: _Kind, rows: int = _OUTPUTS, columns: int = _INPUTS) -> QuantizedWeight:
    def shape(*size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    wide = _FP8 if kind.form == "fp8" else torch.int8
    codes = (
        shape(rows, columns, dtype=wide)
        if kind.bits == 8
        else shape(rows, columns * kind.bits // 32, dtype=torch.int32)
    )
    groups = columns // kind.group if kind.group else 1
    return QuantizedWeight(
        kind.form, kind.bits, rows, columns, codes,
        scales=None if kind.scales is None else shape(-(-rows // kind.rows), groups, dtype=kind.scales),
        rows=kind.rows, group=kind.group or columns, zero=8 if kind.bits == 4 else 0,
        zeros=shape(rows, groups, dtype=torch.int16) if kind.zeros else None,
        outer=shape(rows, dtype=torch.float32) if kind.outer else None,
        table=shape(rows, 1 << kind.bits, dtype=torch.float16) if kind.form == "table" else None,
        sparse=Sparse(
            shape(rows + 1, dtype=torch.int32), shape(9999, dtype=torch.int32), shape(9999, dtype=torch.float16)
        ) if kind.sparse else None,
        activation=kind.activation,
    )  # fmt: skip
