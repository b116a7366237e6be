"""SiLU times the gated half, and rows picked from a table."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backends.triton.launch import Launcher, rows_last


@triton.jit
def silu(x):
    """`x × sigmoid(x)` of float32."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def rounded(x):
    """The nearest whole number, ties to even, of float32 below 2^22: the sum has no room for what comes after the point."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def silu_mul_kernel(x_ptr, out_ptr, rows, width, x_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of x hold the gate, then what it multiplies."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = x_ptr + row[:, None] * x_stride + column[None, :]
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        out_ptr + row[:, None] * width + column[None, :], (silu(gate) * up).to(out_ptr.dtype.element_ty), mask=inside
    )


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, rows, width, x_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of x whose numbers lie at index_ptr."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    source = tl.load(index_ptr + row, mask=row < rows, other=0).to(tl.int64)
    values = tl.load(x_ptr + source[:, None] * x_stride + column[None, :], mask=inside)
    tl.store(out_ptr + row[:, None] * width + column[None, :], values, mask=inside)


def _tile(rows: int, width: int) -> tuple[int, int]:
    """Rows and columns of a program: 2048 values, of several rows where they are short."""
    block = min(triton.next_power_of_2(width), 2048)
    return max(1, min(2048 // block, triton.next_power_of_2(rows))), block


def silu_mul(launch: Launcher, x: Tensor) -> Tensor:
    """See `backends.ops.base.Operators.silu_mul`; any leading axes."""
    width = x.shape[-1] // 2
    flat = rows_last(x.reshape(-1, 2 * width))
    out = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
    rows, block = _tile(len(flat), width)
    grid = (triton.cdiv(len(flat), rows), triton.cdiv(width, block))
    launch(silu_mul_kernel, grid, (flat, out, len(flat), width, flat.stride(0)), {"ROWS": rows, "BLOCK": block})
    return out


def gather(launch: Launcher, x: Tensor, index: Tensor) -> Tensor:
    """Rows `index` [R] of `x` [T, width]."""
    x, width = rows_last(x), x.shape[-1]
    out = torch.empty(len(index), width, dtype=x.dtype, device=x.device)
    rows, block = _tile(len(index), width)
    grid = (triton.cdiv(len(index), rows), triton.cdiv(width, block))
    launch(
        gather_kernel,
        grid,
        (x, index.contiguous(), out, len(index), width, x.stride(0)),
        {"ROWS": rows, "BLOCK": block},
    )
    return out
