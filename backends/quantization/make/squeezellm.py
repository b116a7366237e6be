"""SqueezeLLM (Kim et al., arXiv 2306.07629): each row gets 2^bits values of its own, where they cost the model least.

A weight's sensitivity is the square of the loss's gradient by it, summed over samples (the diagonal of the Fisher information);
the values are the centroids of a k-means over the row's weights, weighted by sensitivity. With a sparse part, the most sensitive
and the largest weights are kept apart, and do not pull at the centroids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backends.quantization.base import Sparse
from backends.quantization.formats.squeezellm import coordinates_to_csr

ROUNDS = 30
SENSITIVE = 1 / 9
"""Part of the kept-apart weights that are chosen by sensitivity, the others by size (0.05 and 0.4 % in the paper)."""


def cluster(weight: Tensor, sensitivity: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes [N, K] uint8 and tables [N, 2^bits] float32 in rising order, by weighted k-means (Lloyd's rounds).

    It starts once from an even grid between the row's extremes and once from weighted quantiles, and keeps, row by row, what
    ends better. Rounds never make the objective worse, so that it is at most that of rounding to the even grid.
    """
    weight = weight.float()
    # what no sample moves still counts a little, or its centroid could be anywhere
    weights = sensitivity.float() + sensitivity.float().mean(1, keepdim=True) * 1e-3 + 1e-30
    found = [_lloyd(weight, weights, start) for start in (_even(weight, bits), _quantiles(weight, weights, bits))]
    errors = [weighted_error(weight, weights, codes, table) for codes, table in found]
    first = (errors[0] <= errors[1])[:, None]
    codes, table = (torch.where(first, *pair) for pair in zip(*found, strict=True))
    return codes.to(torch.uint8), table


def weighted_error(weight: Tensor, sensitivity: Tensor, codes: Tensor, table: Tensor) -> Tensor:
    """The objective of every row [N]: squared errors, weighted by sensitivity."""
    error = weight.float() - table.gather(1, codes.long())
    return (sensitivity * error.square()).double().sum(1)


def _even(weight: Tensor, bits: int) -> Tensor:
    steps = torch.linspace(0, 1, 1 << bits)
    low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    return low + (high - low) * steps


def _quantiles(weight: Tensor, sensitivity: Tensor, bits: int) -> Tensor:
    """Values that share the row's sensitivity (by its cube root, which spreads centroids to the tails) evenly."""
    order = weight.argsort(1)
    ranked = weight.gather(1, order)
    mass = sensitivity.gather(1, order).pow(1 / 3).cumsum(1)
    count = 1 << bits
    wanted = (torch.arange(count) + 0.5) / count * mass[:, -1:]
    return ranked.gather(1, torch.searchsorted(mass, wanted.contiguous()).clamp(max=weight.shape[1] - 1))


def _lloyd(weight: Tensor, sensitivity: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Lloyd's rounds until nothing moves: in a sorted row clusters are stretches, whose sums are differences of running sums."""
    order = weight.argsort(1)
    ranked, weights = weight.gather(1, order), sensitivity.gather(1, order).double()
    mass, total = (_running(each) for each in (weights, weights * ranked))
    for _ in range(ROUNDS):
        edges = ((table[:, 1:] + table[:, :-1]) / 2).contiguous()
        ends = torch.nn.functional.pad(torch.searchsorted(ranked, edges, right=True), (1, 1))
        ends[:, -1] = weight.shape[1]
        held, sums = (each.gather(1, ends).diff(dim=1) for each in (mass, total))
        moved = torch.where(held > 0, (sums / held.clamp(min=1e-300)).float(), table).sort(1).values
        if torch.equal(moved, table):
            break
        table = moved
    return nearest(weight, table), table


def _running(values: Tensor) -> Tensor:
    """Sums of the first 0, 1, … values of every row."""
    return torch.nn.functional.pad(values.cumsum(1), (1, 0))


def nearest(weight: Tensor, table: Tensor) -> Tensor:
    """Codes [N, K] int64 of the nearest of each row's values, which are in rising order."""
    edges = ((table[:, 1:] + table[:, :-1]) / 2).contiguous()
    return torch.searchsorted(edges, weight.contiguous())


def kept_apart(weight: Tensor, sensitivity: Tensor, share: float) -> Tensor:
    """Which weights [N, K] bool go to the sparse part: the most sensitive and the largest, `share` of all together."""
    count = round(share * weight.numel())
    sensitive = round(count * SENSITIVE)
    mask = torch.zeros(weight.numel(), dtype=torch.bool)
    mask[sensitivity.flatten().topk(sensitive).indices] = True
    size = weight.float().abs().flatten().masked_fill(mask, -1.0)
    mask[size.topk(count - sensitive).indices] = True
    return mask.view_as(weight)


def dense_and_sparse(
    weight: Tensor, sensitivity: Tensor, bits: int, share: float
) -> tuple[Tensor, Tensor, Sparse | None]:
    """Codes, tables and outliers of a weight.

    Outliers are coded by the table's value nearest 0, which is taken off what the sparse part holds.
    """
    if share <= 0:
        return *cluster(weight, sensitivity, bits), None
    mask = kept_apart(weight, sensitivity, share)
    codes, table = cluster(weight.float().masked_fill(mask, 0.0), sensitivity.masked_fill(mask, 0.0), bits)
    zero = table.abs().argmin(1, keepdim=True)
    codes = torch.where(mask, zero, codes.long()).to(torch.uint8)
    rest = torch.where(mask, weight.float() - table.gather(1, zero), torch.zeros(()))
    rows, columns = mask.nonzero(as_tuple=True)
    return codes, table, coordinates_to_csr(rows, columns, rest[rows, columns], len(weight))
