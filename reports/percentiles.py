"""Distributions with honest percentiles.

Percentiles interpolate linearly between order statistics (numpy's default) and are withheld where the sample is too
small to hold one value beyond them: p99 needs 100 values, p50 needs 2. A distribution may be weighted by whole counts,
which gives exactly what the expanded list would; a hundred million token gaps are then a few arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

PERCENTILES = (50, 90, 95, 99)


def needed(p: float) -> int:
    """Smallest sample for which the `p`-th percentile is reported: `ceil(1 / (1 - p/100))`, in exact arithmetic."""
    if not 0 <= p < 100:
        raise ValueError(f"percentile {p} is outside 0 … 100")
    rest = 1 - Fraction(str(p)) / 100
    return -(-rest.denominator // rest.numerator)


@dataclass(slots=True)
class Distribution:
    """Values in ascending order, each with a count.

    Attributes:
        values: float64, ascending.
        cumulative: int64, running sum of the counts; None when every count is 1.
    """

    values: np.ndarray
    cumulative: np.ndarray | None = None

    @classmethod
    def of(cls, values: np.ndarray, counts: np.ndarray | None = None) -> Distribution:
        """Sorts; drops entries with no count. `values` must be finite."""
        values = np.asarray(values, np.float64)
        if counts is None:
            return cls(np.sort(values))
        counts = np.asarray(counts, np.int64)
        kept = counts > 0
        values, counts = values[kept], counts[kept]
        order = np.argsort(values, kind="stable")
        return cls(values[order], np.cumsum(counts[order]))

    @property
    def count(self) -> int:
        """How many values there are, repeats included."""
        if self.cumulative is None:
            return len(self.values)
        return int(self.cumulative[-1]) if len(self.cumulative) else 0

    @property
    def counts(self) -> np.ndarray:
        """int64, the count of each entry of `values`."""
        if self.cumulative is None:
            return np.ones(len(self.values), np.int64)
        return np.diff(self.cumulative, prepend=0)

    def mean(self) -> float | None:
        """The mean; None of nothing."""
        if not self.count:
            return None
        if self.cumulative is None:
            return float(self.values.mean())
        return float(np.dot(self.values, self.counts) / self.count)

    def std(self) -> float | None:
        """The population's standard deviation (divides by n, as vLLM does); None of nothing."""
        mean = self.mean()
        if mean is None:
            return None
        squares = (self.values - mean) ** 2
        return float(np.sqrt(np.dot(squares, self.counts) / self.count))

    def quantile(self, p: float) -> float:
        """The `p`-th percentile however small the sample; NaN of nothing."""
        n = self.count
        if not n:
            return float("nan")
        position = (n - 1) * (p / 100)
        low = int(position)
        a, b = self.at(np.array([low, min(low + 1, n - 1)]))
        share = position - low
        # the two forms of the same line that numpy uses, so that results agree to the last bit
        return float(a + (b - a) * share) if share < 0.5 else float(b - (b - a) * (1 - share))

    def percentile(self, p: float) -> float | None:
        """The `p`-th percentile, or None when fewer than `needed(p)` values are at hand."""
        return self.quantile(p) if self.count >= needed(p) else None

    def median(self) -> float | None:
        """The middle value; unlike p50 it is given for a single value too."""
        return self.quantile(50) if self.count else None

    def at(self, index: np.ndarray) -> np.ndarray:
        """Order statistics: the values at these places of the expanded, sorted list."""
        if self.cumulative is None:
            return self.values[index]
        return self.values[np.searchsorted(self.cumulative, index, side="right")]


def statistics(name: str, distribution: Distribution, scale: float = 1e3) -> dict[str, float | None]:
    """`mean_`, `median_`, `std_` and `pNN_` of a distribution under vLLM's key names.

    Args:
        name: suffix of the keys, unit included, e.g. `ttft_ms`.
        scale: what values are multiplied by (1000: seconds to milliseconds).
    """
    figures = {
        "mean": distribution.mean(),
        "median": distribution.median(),
        "std": distribution.std(),
        **{f"p{p:g}": distribution.percentile(p) for p in PERCENTILES},
    }
    return {f"{key}_{name}": None if value is None else value * scale for key, value in figures.items()}
