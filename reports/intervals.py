"""Bootstrap intervals at a bounded cost, whatever the size of the sample.

A percentile of a resample is an order statistic of `n` uniform draws from the sorted sample, and order statistics of
uniforms are Beta distributed. Drawing those directly gives the bootstrap distribution of a percentile exactly, without
drawing the resamples (Efron & Tibshirani 1993, ch. 13, for the percentile interval itself). Resampled means are drawn
in full up to `EXACT_MEAN` values and taken as normal beyond it.

The intervals treat values as independent. Requests that queue behind each other are not, so the truth is wider.
"""

from __future__ import annotations

import numpy as np

from reports.percentiles import Distribution, needed

RESAMPLES = 1000
EXACT_MEAN = 500
LEVEL = 0.95

Interval = tuple[float, float]


def mean_interval(d: Distribution, seed: int = 0, level: float = LEVEL) -> Interval | None:
    """Interval of the mean; None for fewer than two values."""
    n = d.count
    if n < 2:
        return None
    rng = np.random.default_rng([seed, 1])
    if n > EXACT_MEAN:
        means = d.mean() + d.std() / np.sqrt(n) * rng.standard_normal(RESAMPLES)
    else:
        means = d.at(np.arange(n))[rng.integers(0, n, (RESAMPLES, n))].mean(axis=1)
    return _ends(means, level)


def percentile_interval(d: Distribution, p: float, seed: int = 0, level: float = LEVEL) -> Interval | None:
    """Interval of the `p`-th percentile; None where the percentile itself is withheld."""
    n = d.count
    if n < max(2, needed(p)):
        return None
    rng = np.random.default_rng([seed, 2, int(p * 10)])
    position = (n - 1) * (p / 100)
    low = int(position)
    first = rng.beta(low + 1, n - low, RESAMPLES)
    # the next order statistic is the least of the n - low - 1 draws above the first
    second = first + (1 - first) * rng.beta(1, n - low - 1, RESAMPLES) if low + 1 < n else first
    a, b = (d.at(np.minimum((u * n).astype(np.int64), n - 1)) for u in (first, second))
    return _ends(a + (b - a) * (position - low), level)


def intervals(name: str, d: Distribution, seed: int = 0, scale: float = 1e3) -> dict[str, list[float] | None]:
    """Intervals of mean, median and p99 under the keys of `percentiles.statistics`."""
    found = {
        "mean": mean_interval(d, seed),
        "median": percentile_interval(d, 50, seed),
        "p99": percentile_interval(d, 99, seed),
    }
    return {f"{key}_{name}": ends and [ends[0] * scale, ends[1] * scale] for key, ends in found.items()}


def _ends(samples: np.ndarray, level: float) -> Interval:
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
