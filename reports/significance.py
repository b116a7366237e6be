"""How much has a mean changed between two small samples? An interval by the bootstrap, without scipy.

The bootstrap-t (Efron & Tibshirani 1993, ch. 12): deviations from each side's own mean are pooled, resampled on both sides,
and the quantiles of the resampled t statistic, not those of a table, are put around the observed change. One run against
many works too, since the scatter is taken to be the same on both sides. Of fewer than six runs in all there is too little to
resample; Student's t is used there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

RESAMPLES = 4000
FEWEST = 6
_STILL = 1e-12  # relative scatter below which a side is taken to have none


def change_interval(
    before: Sequence[float], after: Sequence[float], alpha: float, seed: int = 0
) -> tuple[float, float] | None:
    """Interval of `mean(after) - mean(before)` that the truth leaves at either end with the chance `alpha`.

    Returns:
        Its ends; both the difference itself where there is no scatter; None where there is one run a side, so that the
        scatter is not known.
    """
    a, b = np.asarray(before, np.float64), np.asarray(after, np.float64)
    free = len(a) + len(b) - 2
    if free < 1:
        return None
    change = float(b.mean() - a.mean())
    squares = ((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum()
    error = math.sqrt(squares / free * (1 / len(a) + 1 / len(b)))
    if error <= _STILL * max(abs(float(a.mean())), abs(float(b.mean()))):
        return change, change
    reach = student_quantile(1 - alpha, free)
    if len(a) + len(b) >= FEWEST:
        reach = _resampled(a, b, alpha, seed) or reach
    return change - reach * error, change + reach * error


def student_cdf(t: float, dof: int) -> float:
    """P(T ≤ t) for whole degrees of freedom, by the finite sums of Abramowitz & Stegun 26.7.3 and 26.7.4."""
    theta = math.atan2(t, math.sqrt(dof))
    cos, sin = math.cos(theta), math.sin(theta)
    if dof % 2:
        term, total = cos, cos if dof > 1 else 0.0
        for k in range(3, dof - 1, 2):
            term *= cos * cos * (k - 1) / k
            total += term
        inside = 2 / math.pi * (theta + sin * total)
    else:
        term = total = 1.0
        for k in range(2, dof, 2):
            term *= cos * cos * (k - 1) / k
            total += term
        inside = sin * total
    return 0.5 + inside / 2


@cache
def student_quantile(p: float, dof: int) -> float:
    """The value that T stays below with probability `p` ≥ 0.5, by bisection."""
    low, high = 0.0, 1.0
    while student_cdf(high, dof) < p and high < 1e9:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, dof) < p else (low, middle)
    return high


def _resampled(a: np.ndarray, b: np.ndarray, alpha: float, seed: int) -> float | None:
    """The quantile of the resampled t statistic; deviations are taken with both signs, so that it is symmetric."""
    sides = [(x - x.mean()) * math.sqrt(len(x) / (len(x) - 1)) for x in (a, b) if len(x) > 1]
    pool = np.concatenate(sides)
    pool = np.concatenate([pool, -pool])
    rng = np.random.default_rng([seed, len(a), len(b)])
    x, y = (pool[rng.integers(0, len(pool), (RESAMPLES, n))] for n in (len(a), len(b)))
    squares = ((x - x.mean(1, keepdims=True)) ** 2).sum(1) + ((y - y.mean(1, keepdims=True)) ** 2).sum(1)
    error = np.sqrt(squares / (len(a) + len(b) - 2) * (1 / len(a) + 1 / len(b)))
    told = error > 0
    if not told.any():
        return None
    return float(np.quantile((y.mean(1) - x.mean(1))[told] / error[told], 1 - alpha))
