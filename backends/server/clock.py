"""The engine's time on the wall clock, at any speed."""

from __future__ import annotations

import time


class ServerClock:
    """Seconds of the engine since the clock was made.

    Args:
        speed: seconds of the engine a second of the wall; 1 unless the engine is simulated.

    Attributes:
        zero: the value of `time.perf_counter()` at its beginning.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self.zero = time.perf_counter()

    def now(self) -> float:
        """Seconds so far."""
        return (time.perf_counter() - self.zero) * self.speed

    def wall(self, seconds: float) -> float:
        """How long the wall clock takes for so many seconds of the engine."""
        return seconds / self.speed
