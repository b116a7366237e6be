"""How many requests were in flight, exactly: a sweep over half-open intervals.

A request is in flight over `[sent, finish)`, so one that ends at the instant at which another begins never counts
beside it: [0, 1) [1, 2) [2, 3) have a peak of 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class InFlight:
    """A step function: `count[i]` requests from `time[i]` until `time[i + 1]`. The last count is 0.

    Attributes:
        time: float64, strictly increasing.   count: int64.
    """

    time: np.ndarray
    count: np.ndarray

    @classmethod
    def of(cls, start: np.ndarray, end: np.ndarray) -> InFlight:
        """From intervals `[start, end)`; empty ones and those with a NaN are left out."""
        real = end > start
        times = np.concatenate([start[real], end[real]])
        change = np.concatenate([np.ones(int(real.sum()), np.int64), -np.ones(int(real.sum()), np.int64)])
        time, where = np.unique(times, return_inverse=True)
        total = np.bincount(where, weights=change, minlength=len(time)).astype(np.int64)
        return cls(time, np.cumsum(total))

    def peak(self) -> int:
        """The largest number in flight at once."""
        return int(self.count.max()) if len(self.count) else 0

    def at(self, times: np.ndarray) -> np.ndarray:
        """Numbers in flight at these times."""
        if not len(self.time):
            return np.zeros(len(times), np.int64)
        place = np.searchsorted(self.time, times, side="right") - 1
        return np.where(place >= 0, self.count[np.maximum(place, 0)], 0)

    def area(self) -> float:
        """Request-seconds."""
        return float(np.dot(self.count[:-1], np.diff(self.time))) if len(self.time) else 0.0

    def longest_at_least(self, level: float, dip: float = 0.0) -> tuple[float, float] | None:
        """The longest stretch with at least `level` in flight; falls below it of up to `dip` seconds are bridged."""
        full = np.append(self.count >= level, False)
        edges = np.diff(np.concatenate([[False], full]).astype(np.int8))
        starts, ends = self.time[np.flatnonzero(edges == 1)], self.time[np.flatnonzero(edges == -1)]
        if not len(starts):
            return None
        apart = np.flatnonzero(starts[1:] - ends[:-1] > dip)
        starts, ends = starts[np.append(0, apart + 1)], ends[np.append(apart, len(ends) - 1)]
        best = int(np.argmax(ends - starts))
        return float(starts[best]), float(ends[best])
