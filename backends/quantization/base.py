"""Quantized linear layers as the engine keeps them: one value class for every format that checkpoints come in.

Formats differ in how they pack; loaders bring all of them into one layout, which kernels read and `dequantise` defines. With N
output and K input features, the weight [N, K] of a `QuantizedWeight` is

    value[n, k] = decode(code[n, k]) × scale(n, k)  (+ the sparse part),   and   W[:, order] = value

where `decode` is, by `form`,

    int     code − zero(n, k); sub-byte codes are unsigned, 8-bit ones are signed
    table   table[n, code]; there are no scales
    fp4     E2M1 of OCP's Microscaling formats: the top bit is the sign, the others pick 0, 0.5, 1, 1.5, 2, 3, 4, 6
    fp8     the code itself, a float8 of torch

and `scale(n, k) = scales[n // rows, k // group]`, times (or over) `outer[n]` where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from backends.ops.base import Dense

Form = Literal["int", "table", "fp4", "fp8"]
FORMS: tuple[Form, ...] = ("int", "table", "fp4", "fp8")


@dataclass(frozen=True, slots=True)
class Activation:
    """How what enters a quantized layer is itself quantized before the product.

    Attributes:
        form: `int8` (symmetric, ±127), `fp8` (E4M3, ±448), or `fp4` (E2M1 with an E4M3 scale for every 16, under `scale`).
        group: columns along K that share a scale: 0 = a whole token; −1 = the whole tensor; 128 for block-scaled fp8; 16 for fp4.
        scale: float32, one value, from the checkpoint (static); None: found anew for every token or group (dynamic). For fp4 the
            second-level scale, by which E4M3 scales are multiplied.
        bound: largest magnitude that is looked at when a scale is found (fbgemm's `activation_scale_ub`); 0: no bound.
    """

    form: Literal["int8", "fp8", "fp4"]
    group: int = 0
    scale: Tensor | None = None
    bound: float = 0.0


@dataclass(frozen=True, slots=True)
class Sparse:
    """Outliers kept apart, to be added: CSR over outputs. `starts` [N + 1] int32, `columns` [Z] int32, `values` [Z] float."""

    starts: Tensor
    columns: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """One packed weight [outputs, inputs]; see the top of this file for what its parts mean.

    Attributes:
        form, bits: how codes decode, and bits of one (3, 4 or 8).
        outputs, inputs: N and K.
        codes: below 8 bits int32 [N, ceil(K × bits / 32)], each row a little-endian string of bits: code k lies in bits
            [k × bits, (k + 1) × bits) of it (4 bits: nibble k % 8 of word k // 8; a 3-bit code may cross two words). At 8 bits
            int8, or for `fp8` a float8, [N, K].
        scales: [ceil(N / rows), ceil(K / group)], float16, bfloat16, float32, float8_e4m3fn (NVFP4) or float8_e8m0fnu (MXFP4);
            None for `table`.
        rows, group: rows and columns that share a scale. `group == inputs`: one a row; `rows == 128 == group`: blocks.
        zero: of all groups, where `zeros` is None (8 for symmetric 4-bit codes, 0 for signed 8-bit ones).
        zeros: [N, ceil(K / group)] int16, or None. Only for `int`, with `rows == 1`.
        order: [K] int32: packed column j multiplies input `order[j]` (GPTQ's act-order, sorted so that groups are contiguous);
            None: plain.
        outer: [N] float32, second-level scales; `outer_divides`: scales are divided by them, not multiplied.
        table: [N, 2^bits] float16 or float32.
        sparse: added to the decoded weight; None: nothing.
        activation: how inputs are quantized; None: they are not (weight-only).
    """

    form: Form
    bits: int
    outputs: int
    inputs: int
    codes: Tensor
    scales: Tensor | None = None
    rows: int = 1
    group: int = 0
    zero: int = 0
    zeros: Tensor | None = None
    order: Tensor | None = None
    outer: Tensor | None = None
    outer_divides: bool = False
    table: Tensor | None = None
    sparse: Sparse | None = None
    activation: Activation | None = None

    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that it keeps in memory."""
        sparse = self.sparse
        found = [self.codes, self.scales, self.zeros, self.order, self.outer, self.table]
        found += [sparse.starts, sparse.columns, sparse.values] if sparse is not None else []
        found += [self.activation.scale] if self.activation is not None else []
        return tuple(tensor for tensor in found if tensor is not None)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(tensor.nbytes for tensor in self.tensors())


@dataclass(frozen=True, slots=True)
class QuantizedLinear:
    """A linear layer whose weight is quantized, or a stack of such layers that read the same input.

    Query, key and value (gate and up) of a checkpoint have scales of their own. Where their layouts agree they are one part with
    all scales kept; where not (other input scales, another order of columns, one of them not quantized), they stay parts, whose
    outputs follow one another.

    Attributes:
        parts: from the first output on. bias: [outputs] or None.
        mode: name in the registry of weight modes, for reports.
    """

    parts: tuple[QuantizedWeight | Dense, ...]
    bias: Tensor | None = None
    mode: str = ""

    @property
    def outputs(self) -> int:
        """Output features of all parts."""
        return sum(shape_of(part)[0] for part in self.parts)

    @property
    def inputs(self) -> int:
        """Input features."""
        return shape_of(self.parts[0])[1]

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        first = self.parts[0]
        return first.codes.device if isinstance(first, QuantizedWeight) else first.weight.device

    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that it keeps in memory."""
        found = [self.bias] if self.bias is not None else []
        for part in self.parts:
            found += part.tensors() if isinstance(part, QuantizedWeight) else [part.weight]
        return tuple(found)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(tensor.nbytes for tensor in self.tensors())


@dataclass(frozen=True, slots=True)
class QuantizedBank:
    """Matrices of one shape and layout, as experts have them, one below the other: `weight` [experts × outputs, inputs].

    Their inputs are quantized alike, none has outliers, and blocks of scales end with each. `bank[e]` is expert e's, a view.
    """

    weight: QuantizedWeight
    experts: int
    mode: str = ""

    @property
    def outputs(self) -> int:
        """Output features of one."""
        return self.weight.outputs // self.experts

    @property
    def inputs(self) -> int:
        """Input features."""
        return self.weight.inputs

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.weight.nbytes

    def __len__(self) -> int:
        return self.experts

    def __getitem__(self, number: int) -> QuantizedLinear:
        weight, count = self.weight, self.outputs
        if not 0 <= number < self.experts:
            raise IndexError(number)  # which ends a loop over all

        def mine(each: Tensor | None, rows: int = 1) -> Tensor | None:
            return (
                each if each is None or len(each) == 1 else each[number * count // rows : (number + 1) * count // rows]
            )

        part = replace(
            weight, outputs=count, codes=mine(weight.codes), scales=mine(weight.scales, weight.rows), zeros=mine(weight.zeros),
            outer=mine(weight.outer), table=mine(weight.table), rows=min(weight.rows, count),
        )  # fmt: skip
        return QuantizedLinear((part,), None, self.mode)


def shape_of(part: QuantizedWeight | Dense) -> tuple[int, int]:
    """(outputs, inputs) of a part."""
    if isinstance(part, QuantizedWeight):
        return part.outputs, part.inputs
    return tuple(part.weight.shape)  # type: ignore[return-value]
