"""Probability laws, as frozen values that draw whole columns.

`sample` draws real numbers (seconds of thinking), `tokens` whole numbers of at least 1. Draws outside `[low,
high]` are moved to the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

_MOST = 1e15  # tokens; a float64 has no whole numbers far beyond


@dataclass(frozen=True, slots=True)
class Law:
    """Base: bounds, and tokens by rounding."""

    low: float = -math.inf
    high: float = math.inf

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """`size` unbounded draws, float64."""
        raise NotImplementedError

    def sample(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """`size` draws within the bounds, float64."""
        values = self.draw(rng, size)
        if self.low > -math.inf or self.high < math.inf:
            np.clip(values, self.low, self.high, out=values)
        return values

    def tokens(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """`size` draws rounded to whole numbers of at least 1, int64."""
        values = np.minimum(self.sample(rng, size), _MOST)  # what is longer is refused later, in words
        return np.maximum(np.rint(values, out=values), 1, out=values).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Fixed(Law):
    """Always `value`."""

    value: float = 1.0

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return np.full(size, float(self.value))


@dataclass(frozen=True, slots=True)
class Uniform(Law):
    """Evenly between the bounds; for tokens every whole number from `low` to `high`, both included."""

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return rng.uniform(self.low, self.high, size)

    def tokens(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return np.maximum(rng.integers(int(self.low), int(self.high), size, endpoint=True), 1)


@dataclass(frozen=True, slots=True)
class Normal(Law):
    """Normal with `mean` and standard deviation `std`."""

    mean: float = 0.0
    std: float = 1.0

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return rng.normal(self.mean, self.std, size)


@dataclass(frozen=True, slots=True)
class LogNormal(Law):
    """exp of a normal with mean `mu` and standard deviation `sigma`, both of the logarithm."""

    mu: float = 0.0
    sigma: float = 1.0

    @classmethod
    def of_mean(cls, mean: float, std: float, **bounds: float) -> LogNormal:
        """From the mean and standard deviation of the values themselves (before bounds)."""
        ratio = std / mean
        variance = math.log1p(ratio**2) if ratio < 1e100 else 2 * math.log(ratio)  # where the square overflows
        return cls(mu=math.log(mean) - variance / 2, sigma=math.sqrt(variance), **bounds)

    @classmethod
    def of_median(cls, median: float, sigma: float, **bounds: float) -> LogNormal:
        """From the median of the values and the standard deviation of their logarithm."""
        return cls(mu=math.log(median), sigma=sigma, **bounds)

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return rng.lognormal(self.mu, self.sigma, size)


@dataclass(frozen=True, slots=True)
class Exponential(Law):
    """Exponential with `mean`."""

    mean: float = 1.0

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return rng.exponential(self.mean, size)


@dataclass(frozen=True, slots=True)
class Zipf(Law):
    """Whole numbers k from `low` to `high` with probability proportional to k^-exponent."""

    exponent: float = 1.0

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        values = np.arange(int(self.low), int(self.high) + 1, dtype=np.float64)
        cumulative = np.cumsum(values**-self.exponent)
        return values[np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right")]


@dataclass(frozen=True, slots=True)
class Quantiles(Law):
    """The law through published quantiles: its logarithm is linear between them.

    Attributes:
        at: increasing probabilities, from 0 to 1.
        values: the quantile at each, positive and not decreasing.
    """

    at: tuple[float, ...] = (0.0, 1.0)
    values: tuple[float, ...] = (1.0, 1.0)

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return np.exp(np.interp(rng.random(size), self.at, np.log(self.values)))


@dataclass(frozen=True, slots=True)
class Empirical(Law):
    """Draws, with replacement, from `values` (float64 array)."""

    values: np.ndarray = field(default_factory=lambda: np.ones(1), compare=False)

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return self.values[rng.integers(0, len(self.values), size)].astype(np.float64)


@dataclass(frozen=True, slots=True)
class Mixture(Law):
    """One of `parts` for each draw, with probabilities `weights`."""

    parts: tuple[Law, ...] = ()
    weights: tuple[float, ...] = ()

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        chosen = choose(rng, np.array(self.weights), size)
        values = np.empty(size)
        for number, part in enumerate(self.parts):
            here = chosen == number
            values[here] = part.sample(rng, int(here.sum()))
        return values


def choose(rng: np.random.Generator, weights: np.ndarray, size: int) -> np.ndarray:
    """`size` indices into `weights`, each with its share as probability (int64)."""
    cumulative = np.cumsum(weights)
    index = np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right")
    return np.minimum(index, len(weights) - 1)
