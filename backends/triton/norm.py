"""RMSNorm, alone or with the residual addition before it, in one pass over the row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backends.triton.launch import Launcher, rows_last

_TILE = 4096
"""Values that a program holds, where rows are short: several short rows share a program."""


@triton.jit
def rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr,
    rows, heads, width, eps, x_outer, x_head, r_outer, r_head,
    ADD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows lie at (outer, head) of x and residual, one after the other in the outputs."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    outer, head = row // heads, row % heads
    x = tl.load(x_ptr + (outer * x_outer + head * x_head)[:, None] + column[None, :], mask=inside, other=0.0).to(
        tl.float32
    )
    flat = row[:, None] * width + column[None, :]
    dtype = out_ptr.dtype.element_ty
    if ADD:
        place = (outer * r_outer + head * r_head)[:, None] + column[None, :]
        x += tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
        total = x.to(dtype)
        tl.store(total_ptr + flat, total, mask=inside)
        x = total.to(tl.float32)  # what the next layer adds to is what is normalised here
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / width + eps)
    normed = (x * scale[:, None]).to(dtype).to(tl.float32)  # rounded before the weight, as the models were trained
    weight = tl.load(weight_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(out_ptr + flat, (normed * weight[None, :]).to(dtype), mask=inside)


def rms_norm(
    launch: Launcher, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The norm of `x` [..., width] (+ `residual`), and their sum (`x` itself without a residual)."""
    shape = x.shape
    if x.dim() == 3 and residual is None:
        x = rows_last(x)
        heads, strides = x.shape[1], (x.stride(0), x.stride(1))
    else:
        x = rows_last(x.reshape(-1, shape[-1]))
        heads, strides = 1, (x.stride(0), 0)
    width, rows = shape[-1], x.numel() // shape[-1]
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    total, other, other_strides = x, x, strides
    if residual is not None:
        other = rows_last(residual.reshape(-1, width))
        other_strides = (other.stride(0), 0)
        total = torch.empty(shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(width)
    together = max(1, min(_TILE // block, triton.next_power_of_2(rows)))
    launch(
        rms_norm_kernel,
        (triton.cdiv(rows, together),),
        (x, other, weight, out, total, rows, heads, width, eps, *strides, *other_strides),
        {"ADD": residual is not None, "ROWS": together, "BLOCK": block},
        warps=4 if block <= 4096 else 8 if block <= 8192 else 16,
    )
    return out, total
