"""GPTQ (Frantar et al., arXiv 2210.17323): columns are rounded one after the other, each error made up for by those to come.

With the Hessian H = X'X of the layer's inputs, rounding column j leaves the error e = (w − q) / U[j, j], which is taken off the
columns after it times U[j, :], where U is the upper Cholesky factor of the inverse of H (their section 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backends.quantization.make.grids import int_codes, int_grid, int_values

_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Solved:
    """Codes [N, K] uint8, scales and zeros [N, groups] float32, and the group of every column [K] int64."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    index: Tensor


def solve(
    weight: Tensor, hessian: Tensor, *, bits: int = 4, group: int = 128, symmetric: bool = True, act_order: bool = False,
    damp: float = 0.01,
) -> Solved:  # fmt: skip
    """Quantise a weight [N, K] so that its products with inputs of second moments `hessian` [K, K] change little.

    The method is greedy; a row for which rounding to nearest does better (few do) is rounded to nearest, in the same groups.

    Args:
        act_order: columns of large inputs first; groups are then of columns in that order.
        damp: added to the diagonal, as a share of its mean; tenfold as often as the matrix is not positive definite.
    """
    weight, hessian = weight.float().clone(), hessian.float().clone()
    width, size = weight.shape[1], group if group > 0 else weight.shape[1]
    dead = hessian.diagonal() == 0
    hessian[dead, dead] = 1
    weight[:, dead] = 0
    order = torch.argsort(hessian.diagonal(), descending=True, stable=True) if act_order else torch.arange(width)
    weight, hessian = weight[:, order], hessian[order][:, order]
    upper, whole = _upper(hessian, damp), weight.clone()
    codes = torch.empty(weight.shape, dtype=torch.uint8)
    scales = torch.empty(len(weight), -(-width // size))
    zeros = torch.empty_like(scales)
    for start in range(0, width, _BLOCK):
        end = min(start + _BLOCK, width)
        errors = torch.empty(len(weight), end - start)
        for column in range(start, end):
            number = column // size
            if column % size == 0:
                grid = int_grid(weight[:, column : column + size], bits, -1, symmetric)
                scales[:, number], zeros[:, number] = grid[0][:, 0], grid[1][:, 0]
            scale, zero = scales[:, number], zeros[:, number]
            code = (weight[:, column] / scale + zero).round_().clamp_(0, (1 << bits) - 1)
            codes[:, column] = code.to(torch.uint8)
            error = (weight[:, column] - (code - zero) * scale) / upper[column, column]
            weight[:, column + 1 : end] -= error[:, None] * upper[column, None, column + 1 : end]
            errors[:, column - start] = error
        weight[:, end:] -= errors @ upper[start:end, end:]
    _round_instead(whole, hessian, codes, scales, zeros, bits, size, symmetric)
    back = torch.argsort(order)
    return Solved(codes[:, back], scales, zeros, (torch.arange(width) // size)[back])


def _round_instead(
    weight: Tensor, hessian: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, bits: int, size: int, symmetric: bool
) -> None:
    """Replace, in place, the rows whose objective rounding to nearest makes smaller."""
    grid = int_grid(weight, bits, size, symmetric)
    plain = int_codes(weight, *grid, bits, size)

    def errors(found: Tensor, steps: Tensor, middles: Tensor) -> Tensor:
        error = weight - int_values(found, steps, middles, size)
        return ((error @ hessian) * error).sum(1)

    worse = errors(codes, scales, zeros) > errors(plain, *grid)
    codes[worse], scales[worse], zeros[worse] = plain[worse], grid[0][worse], grid[1][worse]


def _upper(hessian: Tensor, damp: float) -> Tensor:
    """The upper Cholesky factor of the inverse of a damped Hessian."""
    mean, eye = hessian.diagonal().mean(), torch.eye(len(hessian))
    for _ in range(4):
        lower, failed = torch.linalg.cholesky_ex(hessian + damp * mean * eye)
        if not int(failed):
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not int(failed):
                return upper
        damp *= 10
    return eye  # inputs that say nothing: round to nearest


def objective(weight: Tensor, values: Tensor, hessian: Tensor) -> float:
    """What GPTQ and AWQ make small: the squared error of the layer's outputs, summed over the inputs of `hessian`."""
    error = weight.float() - values.float()
    return float(((error @ hessian) * error).sum(dtype=torch.float64))
