"""Axes: from data to pixels, with ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def nice_step(reach: float, count: int) -> float:
    """A step of 1, 2, 2.5 or 5 times a power of ten that cuts `reach` into about `count` pieces."""
    raw = reach / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999999)


def linear_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values from `low` to `high`, about `count` of them."""
    if not high > low:
        return [low]
    step = nice_step(high - low, count)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Values 1, 2, 5 × 10^k in the range; only powers of ten where those would be too many."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        ticks = [m * 10.0**k for k in powers for m in mantissas if low * 0.999 <= m * 10.0**k <= high * 1.001]
        if len(ticks) <= count + 2:
            break
    every = max(1, math.ceil(len(ticks) / (count + 2)))
    return ticks[::every] or [low, high]


def tick_label(value: float) -> str:
    """Short text of a tick: 0, 0.5, 250, 1.5k, 3M."""
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Scale:
    """`low … high` of the data onto `start … end` in pixels, in proportion or in ratio (`log`)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Pixels of a value; values outside land on the edge."""
        if self.log:
            share = (math.log(max(value, self.low)) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + (self.end - self.start) * min(max(share, 0.0), 1.0), 1)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values within the scale."""
        return log_ticks(self.low, self.high, count) if self.log else linear_ticks(self.low, self.high, count)


def fit(values: Sequence[float], *, log: bool = False, zero: bool = True) -> tuple[float, float]:
    """Ends of an axis that shows `values` with a little room; never empty."""
    real = [v for v in values if v is not None and math.isfinite(v) and (v > 0 or not log)]
    if not real:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(real), max(real)
    if log:
        return (low / 1.25, high * 1.25) if high > low else (low / 2, high * 2)
    low = min(low, 0.0) if zero else low
    if high <= low:
        return (low, low + 1.0) if low >= 0 else (low - 1, low + 1)
    step = nice_step(high - low, 5)
    top = math.ceil(high / step - 1e-9) * step
    return (math.floor(low / step + 1e-9) * step, top)
