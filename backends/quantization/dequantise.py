"""What packed weights mean, and quantized layers computed, in plain torch: what every kernel is tested against."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from backends.ops.base import Dense
from backends.quantization.activations import quantise_activation
from backends.quantization.base import QuantizedLinear, QuantizedWeight
from backends.quantization.unpack import unpack

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Values of the sixteen 4-bit floats, by code."""


def dequantise(weight: QuantizedWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weight [outputs, inputs] in its own order of columns.

    Products are taken in float32 and rounded to `dtype` once; formats whose tools round otherwise give the same for the scales
    that they store.
    """
    values, scales = decoded(weight), _group_scales(weight)
    if scales is not None:
        values = _by_group(torch.mul, values, scales, weight.group)
    if weight.order is not None:
        plain = torch.empty_like(values)
        plain[:, weight.order.long()] = values
        values = plain
    if weight.sparse is not None:
        sparse = weight.sparse
        counts = (sparse.starts[1:] - sparse.starts[:-1]).long()
        rows = torch.repeat_interleave(torch.arange(weight.outputs, device=values.device), counts)
        values.index_put_((rows, sparse.columns.long()), sparse.values.float(), accumulate=True)
    return values.to(dtype)


def decoded(weight: QuantizedWeight) -> Tensor:
    """Codes as numbers [outputs, inputs] in float32, zeros taken off, in packed order, without scales."""
    if weight.form == "fp8":
        return weight.codes.float()
    codes = weight.codes if weight.bits == 8 else unpack(weight.codes, weight.bits, weight.inputs)
    if weight.form == "table":
        return weight.table.float().gather(1, codes.long())
    if weight.form == "fp4":
        return _e2m1(codes.device)[codes.long()]
    if weight.zeros is None:
        return codes.float() - weight.zero
    return _by_group(torch.sub, codes.float(), weight.zeros.float(), weight.group)


@cache
def _e2m1(device: torch.device) -> Tensor:
    return torch.tensor(E2M1, device=device)


def scales_of(weight: QuantizedWeight) -> Tensor | None:
    """Scales in float32, second level included, so that they multiply `decoded`: [outputs or 1, inputs or 1]."""
    scales = _group_scales(weight)
    if scales is None or scales.shape[1] == 1:
        return scales
    return scales.repeat_interleave(weight.group, 1)[:, : weight.inputs]


def _group_scales(weight: QuantizedWeight) -> Tensor | None:
    """Scales in float32, second level included: [outputs or 1, groups]."""
    if weight.scales is None:
        return None
    scales = weight.scales.float()
    if weight.rows > 1 and len(scales) > 1:
        scales = scales.repeat_interleave(weight.rows, 0)[: weight.outputs]
    if weight.outer is not None:
        outer = weight.outer[:, None]
        scales = scales / outer if weight.outer_divides else scales * outer
    return scales


Combine = Callable[..., Tensor]


def _by_group(combine: Combine, values: Tensor, groups: Tensor, group: int) -> Tensor:
    """`values` [rows, inputs], overwritten, with the number [rows or 1, groups] of each group; a number a row has no groups."""
    if groups.shape[1] == 1:
        return combine(values, groups, out=values)
    whole = values.shape[1] // group * group
    blocks = values[:, :whole].unflatten(1, (-1, group))
    combine(blocks, groups[:, : whole // group, None], out=blocks)
    if whole < values.shape[1]:
        combine(values[:, whole:], groups[:, -1:], out=values[:, whole:])
    return values


def quantized_linear(x: Tensor, layer: QuantizedLinear) -> Tensor:
    """`x` [T, inputs] times the layer's weight, plus its bias: [T, outputs] in the dtype of `x`.

    Weight-only parts are expanded to the dtype of `x`. Where inputs are quantized too, codes are multiplied in float32 and scaled
    after, as tensor cores that accumulate without loss would.
    """
    found = [_part(x, part) for part in layer.parts]
    out = found[0] if len(found) == 1 else torch.cat(found, dim=-1)
    return out if layer.bias is None else out + layer.bias


def _part(x: Tensor, part: QuantizedWeight | Dense) -> Tensor:
    if isinstance(part, Dense):
        return F.linear(x, part.weight, part.bias)
    if part.activation is None:
        return F.linear(x, dequantise(part, x.dtype))
    codes, scales = quantise_activation(x, part.activation)
    if scales.shape[-1] > 1:  # scales change along K: there is no factor to take out of the sum
        wide = scales.repeat_interleave(part.activation.group, -1)[:, : x.shape[-1]]
        return F.linear(codes.float() * wide, dequantise(part)).to(x.dtype)
    if part.group >= part.inputs and part.order is None and part.sparse is None:
        return (_product(codes, part) * scales * scales_of(part).reshape(1, -1)).to(x.dtype)
    return (F.linear(codes.float(), dequantise(part)) * scales).to(x.dtype)


def _product(codes: Tensor, part: QuantizedWeight) -> Tensor:
    """Codes [T, K] times the codes of a weight: [T, N] float32; exact for integers on the CPU."""
    if codes.dtype == part.codes.dtype == torch.int8 and codes.device.type == "cpu" and not part.zero:
        return torch._int_mm(codes, part.codes.t()).float()
    return F.linear(codes.float(), decoded(part))
