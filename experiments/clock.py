"""The wall clock, for engines that really run. (In virtual time the engine itself says how late it is.)"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any


class WallClock:
    """Seconds since it was entered. While it is, Ctrl-C asks for a stop between two steps; a second one stops at once.

    Attributes:
        stopped: whether a stop was asked for.
        zero: the value of `time.perf_counter()` at which it was entered.
    """

    def __init__(self) -> None:
        self.zero = time.perf_counter()
        self._stop = threading.Event()
        self._before: Any = None

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def now(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self.zero

    def wait(self, until: float) -> float:
        """Sleep until then, or until a stop is asked for; what time it is."""
        if (seconds := until - self.now()) > 0:
            self._stop.wait(seconds)
        return self.now()

    def __enter__(self) -> WallClock:
        self.zero = time.perf_counter()
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def stop(self) -> None:
        """Ask for a stop.

        Raises:
            KeyboardInterrupt: one was asked for before.
        """
        if self.stopped:
            raise KeyboardInterrupt
        self._stop.set()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self.stop()
