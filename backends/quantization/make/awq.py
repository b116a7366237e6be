"""AWQ (Lin et al., arXiv 2306.00978): columns that meet large inputs are scaled up before rounding, and their inputs down.

The scale of input channel c is m[c]^α, with m the mean magnitude of its inputs; of twenty α between 0 and 1, that is taken which
leaves the least squared error of the layers' outputs. α = 0 is round-to-nearest. Inputs are scaled for nothing: the factor goes
into the norm before the layers, or into the rows of the layer whose outputs they are.

Then, as the authors' tool does, the largest weights of a group may be cut off: a grid for what is left is finer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backends.quantization.make.gptq import objective
from backends.quantization.make.grids import int_codes, int_grid, int_values

STEPS = 20
CLIPS = 10
"""Twentieths of a group's largest magnitude that may be cut off are less than this; the authors' tool stops at one half too."""
_AT_ONCE = 1 << 24
"""Weights whose grids are searched together."""


def search(
    weights: Sequence[Tensor], hessians: Sequence[Tensor], magnitude: Tensor, *, bits: int = 4, group: int = 128
) -> Tensor:
    """Scales [K] for layers [N, K] whose inputs are scaled alike: of one input, or of experts that choose from one.

    Args:
        hessians: of each, [K, K], second moments of its inputs. magnitude: [K], their mean magnitudes.
    """
    best, least = torch.ones(len(magnitude)), float("inf")
    for step in range(STEPS):
        scales = _scales(magnitude, step / STEPS)
        error = 0.0
        for weight, hessian in zip(weights, hessians, strict=True):
            error += objective(weight, rounded(weight.float() * scales, bits, group) / scales, hessian)
        if error < least:
            best, least = scales, error
    return best


def _scales(magnitude: Tensor, power: float) -> Tensor:
    """Channel scales, centred so that the largest and the least lie as far from 1."""
    scales = magnitude.float().clamp(min=1e-4) ** power
    return (scales / (scales.max() * scales.min()).sqrt()).clamp(1e-4, 1e4)


def rounded(weight: Tensor, bits: int, group: int) -> Tensor:
    """A weight on its own grid."""
    grid = int_grid(weight, bits, group)
    return on_grid(weight, grid, bits, group)


def on_grid(weight: Tensor, grid: tuple[Tensor, Tensor], bits: int, group: int) -> Tensor:
    """The nearest values of a grid, [N, K]."""
    return int_values(int_codes(weight, *grid, bits, group), *grid, group)


def clipped_grid(weight: Tensor, hessian: Tensor, *, bits: int = 4, group: int = 128) -> tuple[Tensor, Tensor]:
    """Scales and zeros [N, groups] of a weight [N, K] whose groups are cut off where that makes the outputs' error smaller.

    Each group is tried by itself, as if the others had no error. A row that is the worse for it all the same keeps the grid of
    its extremes: none has a larger objective than rounding to nearest.
    """
    step = max(1, _AT_ONCE // weight.shape[1])
    parts = [_clipped(rows.float(), hessian, bits, group) for rows in weight.split(step)]
    scales, zeros = (torch.cat(each) for each in zip(*parts, strict=True))
    return scales, zeros


def _clipped(weight: Tensor, hessian: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    width = weight.shape[1]
    size = group if group > 0 else width
    inputs = torch.stack([hessian[first : first + size, first : first + size] for first in range(0, width, size)])
    blocks = weight.unflatten(1, (-1, size))
    most = blocks.abs().amax(-1, keepdim=True)
    plain = int_grid(weight, bits, group)
    scales, zeros = (each.clone() for each in plain)
    least = torch.full(scales.shape, float("inf"))
    for step in range(CLIPS):
        limit = most * (1 - step / STEPS)
        grid = int_grid(blocks.clamp(-limit, limit).flatten(1), bits, group)
        error = (weight - on_grid(weight, grid, bits, group)).unflatten(1, (-1, size)).transpose(0, 1)
        cost = ((error @ inputs) * error).sum(-1).t()
        better = cost < least
        scales[better], zeros[better], least[better] = grid[0][better], grid[1][better], cost[better]
    worse = _row_errors(weight, (scales, zeros), hessian, bits, group) > _row_errors(
        weight, plain, hessian, bits, group
    )
    scales[worse], zeros[worse] = plain[0][worse], plain[1][worse]
    return scales, zeros


def _row_errors(weight: Tensor, grid: tuple[Tensor, Tensor], hessian: Tensor, bits: int, group: int) -> Tensor:
    """The objective of every row, [N]."""
    error = weight - on_grid(weight, grid, bits, group)
    return ((error @ hessian) * error).sum(1)
