"""Sums of a product whose columns were split among programs, added up."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from backends.triton.launch import Launcher


@triton.jit
def add_parts_kernel(
    parts_ptr, bias_ptr, out_ptr, count, tokens, outputs, out_row, BIAS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One token's sums [count, tokens, outputs], added in their order."""
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(count):
        place = parts_ptr + (part * tl.cast(tokens, tl.int64) + token) * outputs + n
        total += tl.load(place, mask=n < outputs, other=0.0)
    if BIAS:
        total += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * out_row + n, total.to(out_ptr.dtype.element_ty), mask=n < outputs)


def add_parts(launch: Launcher, parts: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Fill `out` [T, outputs] (rows may lie apart) with the sum over `parts` [count, T, outputs] float32, plus `bias`."""
    count, tokens, outputs = parts.shape
    block = min(1024, triton.next_power_of_2(outputs))
    launch(
        add_parts_kernel,
        (tokens, triton.cdiv(outputs, block)),
        (parts, parts if bias is None else bias, out, count, tokens, outputs, out.stride(0)),
        {"BIAS": bias is not None, "BLOCK": block},
    )
