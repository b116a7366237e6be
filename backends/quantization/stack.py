"""Layers that read the same input, put into one: each keeps its own scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from backends.ops.base import Dense
from backends.quantization.base import Activation, QuantizedBank, QuantizedLinear, QuantizedWeight, Sparse


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


def _merged(*parts: QuantizedWeight) -> QuantizedWeight:
    """Parts that agree, one below the other."""
    if all(_rowwise(part) for part in parts) and parts[0].scales is not None:
        parts = tuple(_by_row(part) for part in parts)
    zeros = None
    if any(part.zeros is not None for part in parts):
        zeros = torch.cat([_zeros(part) for part in parts])
    return replace(
        parts[0], outputs=sum(part.outputs for part in parts), zeros=zeros, sparse=_cat_sparse(*parts),
        **{name: _cat([getattr(part, name) for part in parts]) for name in ("codes", "scales", "outer", "table")},
    )  # fmt: skip


def banked(layers: Sequence[QuantizedLinear | Dense]) -> QuantizedBank | None:
    """Experts' layers, without biases, as one; None: their layouts differ, or one has outliers."""
    parts = [
        layer.parts[0] if isinstance(layer, QuantizedLinear) and len(layer.parts) == 1 else None for layer in layers
    ]
    first = parts[0]
    for part in parts:
        alike = isinstance(part, QuantizedWeight) and part.outputs == first.outputs and part.sparse is None
        if not alike or not _agree(first, part):
            return None
    return QuantizedBank(_merged(*parts), len(parts), layers[0].mode)


def as_banks(
    gate_up: Sequence[QuantizedLinear | Dense], down: Sequence[QuantizedLinear | Dense]
) -> tuple[QuantizedBank, QuantizedBank] | tuple[tuple, tuple]:
    """Both matrices of all experts, as banks if both can be."""
    banks = banked(gate_up), banked(down)
    return banks if None not in banks else (tuple(gate_up), tuple(down))


def _by_row(weight: QuantizedWeight) -> QuantizedWeight:
    if weight.rows == 1:
        return weight
    return replace(weight, rows=1, scales=weight.scales.expand(weight.outputs, -1).contiguous())


def _zeros(weight: QuantizedWeight) -> Tensor:
    if weight.zeros is not None:
        return weight.zeros
    return torch.full(weight.scales.shape, weight.zero, dtype=torch.int16, device=weight.codes.device)


def _cat(parts: Sequence[Tensor | None]) -> Tensor | None:
    if parts[0] is None:
        return None
    if parts[0].dtype.itemsize == 1 and parts[0].is_floating_point():  # torch joins no 8-bit floats on every device
        return torch.cat([part.view(torch.uint8) for part in parts]).view(parts[0].dtype)
    return torch.cat(parts)


def _cat_sparse(*parts: QuantizedWeight) -> Sparse | None:
    if all(part.sparse is None for part in parts):
        return None
    found = [_sparse(part) for part in parts]
    starts, total = [found[0].starts[:1]], 0
    for each in found:
        starts.append(each.starts[1:] + total)
        total += len(each.columns)
    values = torch.cat([each.values.float() for each in found])
    return Sparse(torch.cat(starts), torch.cat([each.columns for each in found]), values)


def _sparse(weight: QuantizedWeight) -> Sparse:
    if weight.sparse is not None:
        return weight.sparse
    device = weight.codes.device
    starts = torch.zeros(weight.outputs + 1, dtype=torch.int32, device=device)
    return Sparse(starts, torch.zeros(0, dtype=torch.int32, device=device), torch.zeros(0, device=device))
