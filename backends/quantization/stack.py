"""Layers that read the same input, put into one: each keeps its own scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from backends.ops.base import Dense
from backends.quantization.base import Activation, QuantizedLinear, QuantizedWeight, Sparse


def stacked(parts: Sequence[QuantizedWeight | Dense], bias: Tensor | None, mode: str) -> QuantizedLinear:
    """One layer of several, whose outputs follow one another; neighbours that can share a matrix are merged into one part.

    Biases of dense parts are expected in `bias`.
    """
    merged: list[QuantizedWeight | Dense] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(last, QuantizedWeight) and isinstance(part, QuantizedWeight) and _agree(last, part):
            merged[-1] = _merged(last, part)
        elif isinstance(last, Dense) and isinstance(part, Dense):
            merged[-1] = Dense(torch.cat((last.weight, part.weight)))
        else:
            merged.append(part)
    return QuantizedLinear(tuple(merged), bias, mode)


def moved(part: QuantizedWeight | Dense, device: torch.device | str) -> QuantizedWeight | Dense:
    """A part on a device, itself where it is there already."""
    if isinstance(part, Dense):
        return Dense(part.weight.to(device), None if part.bias is None else part.bias.to(device))
    changes: dict = {
        field.name: getattr(part, field.name).to(device)
        for field in fields(part)
        if isinstance(getattr(part, field.name), Tensor)
    }
    if part.sparse is not None:
        sparse = part.sparse
        changes["sparse"] = Sparse(sparse.starts.to(device), sparse.columns.to(device), sparse.values.to(device))
    if part.activation is not None and part.activation.scale is not None:
        changes["activation"] = replace(part.activation, scale=part.activation.scale.to(device))
    return replace(part, **changes)


def _agree(a: QuantizedWeight, b: QuantizedWeight) -> bool:
    """Whether rows of `b` can follow those of `a` in one matrix."""
    same = ("form", "bits", "inputs", "group", "zero", "outer_divides")
    if any(getattr(a, name) != getattr(b, name) for name in same):
        return False
    if (
        a.codes.dtype != b.codes.dtype
        or not _equal(a.order, b.order)
        or not _same_activation(a.activation, b.activation)
    ):
        return False
    for name in ("scales", "outer", "table"):
        x, y = getattr(a, name), getattr(b, name)
        if (x is None) != (y is None) or (x is not None and x.dtype != y.dtype):
            return False
    whole_rows = _rowwise(a) and _rowwise(b)
    return whole_rows or (a.rows == b.rows and a.outputs % a.rows == 0)


def _rowwise(weight: QuantizedWeight) -> bool:
    """Scales are of rows, or of the whole matrix, which is of every row."""
    return weight.rows == 1 or (weight.rows >= weight.outputs and weight.group >= weight.inputs)


def _same_activation(a: Activation | None, b: Activation | None) -> bool:
    if a is None or b is None:
        return a is b
    return (a.form, a.group, a.bound) == (b.form, b.group, b.bound) and _equal(a.scale, b.scale)


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def _merged(a: QuantizedWeight, b: QuantizedWeight) -> QuantizedWeight:
    if _rowwise(a) and _rowwise(b) and a.scales is not None:
        a, b = _by_row(a), _by_row(b)
    zeros = None
    if a.zeros is not None or b.zeros is not None:
        zeros = torch.cat((_zeros(a), _zeros(b)))
    return replace(
        a, outputs=a.outputs + b.outputs, codes=torch.cat((a.codes, b.codes)), scales=_cat(a.scales, b.scales), zeros=zeros,
        outer=_cat(a.outer, b.outer), table=_cat(a.table, b.table), sparse=_cat_sparse(a, b),
    )  # fmt: skip


def _by_row(weight: QuantizedWeight) -> QuantizedWeight:
    if weight.rows == 1:
        return weight
    return replace(weight, rows=1, scales=weight.scales.expand(weight.outputs, -1).contiguous())


def _zeros(weight: QuantizedWeight) -> Tensor:
    if weight.zeros is not None:
        return weight.zeros
    return torch.full(weight.scales.shape, weight.zero, dtype=torch.int16, device=weight.codes.device)


def _cat(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return None
    if a.dtype.itemsize == 1 and a.is_floating_point():  # torch joins no 8-bit floats on every device
        return torch.cat((a.view(torch.uint8), b.view(torch.uint8))).view(a.dtype)
    return torch.cat((a, b))


def _cat_sparse(a: QuantizedWeight, b: QuantizedWeight) -> Sparse | None:
    if a.sparse is None and b.sparse is None:
        return None
    first, second = _sparse(a), _sparse(b)
    starts = torch.cat((first.starts, second.starts[1:] + first.starts[-1]))
    values = torch.cat((first.values.float(), second.values.float()))
    return Sparse(starts, torch.cat((first.columns, second.columns)), values)


def _sparse(weight: QuantizedWeight) -> Sparse:
    if weight.sparse is not None:
        return weight.sparse
    device = weight.codes.device
    starts = torch.zeros(weight.outputs + 1, dtype=torch.int32, device=device)
    return Sparse(starts, torch.zeros(0, dtype=torch.int32, device=device), torch.zeros(0, device=device))
