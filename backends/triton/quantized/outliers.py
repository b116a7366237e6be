"""What a sparse part adds to a product: outliers that dense-and-sparse formats keep apart."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from backends.quantization.base import Sparse
from backends.triton.launch import Launcher


@triton.jit
def outliers_kernel(
    x_ptr, starts_ptr, columns_ptr, values_ptr, factor_ptr, out_ptr, tokens, x_row, out_row,
    FACTOR: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One output of a tile of tokens; its outliers lie between two starts."""
    n, across = tl.program_id(0), tl.program_id(1)
    m = across * BLOCK_M + tl.arange(0, BLOCK_M)
    begin, end = tl.load(starts_ptr + n), tl.load(starts_ptr + n + 1)
    total = tl.zeros([BLOCK_M], tl.float32)
    for start in range(begin, end, BLOCK):
        place = start + tl.arange(0, BLOCK)
        column = tl.load(columns_ptr + place, mask=place < end, other=0)
        value = tl.load(values_ptr + place, mask=place < end, other=0.0).to(tl.float32)
        x_place = x_ptr + m.to(tl.int64)[:, None] * x_row + column[None, :]
        x = tl.load(x_place, mask=(m < tokens)[:, None] & (place < end)[None, :], other=0.0).to(tl.float32)
        total += tl.sum(x * value[None, :], axis=1)
    if FACTOR:
        total = total * tl.load(factor_ptr + m, mask=m < tokens, other=0.0)
    tl.store(out_ptr + m.to(tl.int64) * out_row + n, total, mask=m < tokens)


def add_outliers(launch: Launcher, x: Tensor, sparse: Sparse, factor: Tensor | None, out: Tensor) -> None:
    """Fill `out` [T, outputs] float32 with what the outliers add to the product of `x` [T, inputs], times `factor` [T]."""
    rows = max(1, min(triton.next_power_of_2(len(x)), 32))
    launch(
        outliers_kernel,
        (len(sparse.starts) - 1, triton.cdiv(len(x), rows)),
        (
            x, sparse.starts, sparse.columns, sparse.values, x if factor is None else factor, out, len(x), x.stride(0),
            out.stride(0),
        ),
        {"FACTOR": factor is not None, "BLOCK_M": rows, "BLOCK": 64},
        warps=2,
    )  # fmt: skip
