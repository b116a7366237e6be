"""AWQ (Lin et al., arXiv 2306.00978): columns that meet large inputs are scaled up before rounding, and their inputs down.

The scale of input channel c is m[c]^α, with m the mean magnitude of its inputs; of twenty α between 0 and 1, that is taken which
leaves the least squared error of the layers' outputs. α = 0 is round-to-nearest. Inputs are scaled for nothing: the factor goes
into the norm before the layers, or into the rows of the layer whose outputs they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backends.quantization.make.gptq import objective
from backends.quantization.make.grids import int_codes, int_grid, int_values

STEPS = 20


def search(
    weights: Sequence[Tensor], hessian: Tensor, magnitude: Tensor, *, bits: int = 4, group: int = 128
) -> tuple[Tensor, float, float]:
    """Scales [K] for layers [N, K] of the same inputs.

    Args:
        hessian: [K, K], second moments of the inputs. magnitude: [K], their mean magnitudes.

    Returns:
        The scales, and the objective with them and without.
    """
    weight = torch.cat([each.float() for each in weights])
    best, least, plain = torch.ones(len(magnitude)), float("inf"), float("inf")
    for step in range(STEPS):
        scales = _scales(magnitude, step / STEPS)
        error = objective(weight, rounded(weight * scales, bits, group) / scales, hessian)
        if step == 0:
            plain = error
        if error < least:
            best, least = scales, error
    return best, least, plain


def _scales(magnitude: Tensor, power: float) -> Tensor:
    """Channel scales, centred so that the largest and the least lie as far from 1."""
    scales = magnitude.float().clamp(min=1e-4) ** power
    return (scales / (scales.max() * scales.min()).sqrt()).clamp(1e-4, 1e4)


def rounded(weight: Tensor, bits: int, group: int) -> Tensor:
    """A weight on its own grid."""
    scales, zeros = int_grid(weight, bits, group)
    return int_values(int_codes(weight, scales, zeros, bits, group), scales, zeros, group)
