"""A mixture of experts whose matrices are quantized, one after the other, on any operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backends.quantization.base import QuantizedLinear

if TYPE_CHECKING:
    from backends.ops.base import Dense, Operators


def quantized_experts(
    ops: Operators, x: Tensor, router: Dense, gate_up: Sequence[QuantizedLinear], down: Sequence[QuantizedLinear], top_k: int,
    renormalise: bool,
) -> Tensor:  # fmt: skip
    """As `Operators.experts`, for experts that are linear layers of their own. It waits for the device: not recordable."""
    from backends.ops.reference import route

    weights, chosen = route(ops.linear(x, router), top_k, renormalise)
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in chosen.unique().tolist():
        tokens, rank = torch.where(chosen == expert)
        hidden = ops.silu_mul(ops.linear(x[tokens], gate_up[expert]))
        total.index_add_(0, tokens, ops.linear(hidden, down[expert]).float() * weights[tokens, rank, None])
    return total.to(x.dtype)
