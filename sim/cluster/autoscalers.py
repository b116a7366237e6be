"""How many replicas there are to be: what an autoscaler sees, and the rule of Kubernetes.

An autoscaler looks every so often at what monitoring tells, means over the replicas that are ready, and says how many there are
to be. New ones take a while to start; those that are too many serve what they have and go.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

SIGNALS = ("requests", "queue", "kv", "rate")
"""What may be held at a target, for each ready replica: requests in flight (running and waiting); requests waiting; share of the
KV pool in use; requests that came, a second, since the last look."""


class Demand(NamedTuple):
    """What an autoscaler sees.

    Attributes:
        time: seconds.
        ready, starting: replicas that take requests, and those that will.
        running, waiting: requests in all of them together.
        kv: share of the KV pool in use, mean over ready replicas.
        rate: requests a second that came since the last look, to all.
    """

    time: float
    ready: int
    starting: int
    running: int
    waiting: int
    kv: float
    rate: float


class Autoscaler:
    """Base of all autoscalers; a plug-in overrides `desired`.

    Args:
        least, most: bounds that hold in any case.
    """

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def desired(self, seen: Demand) -> int:
        """How many replicas there are to be, those that are starting counted in. Asked every `interval`, in order of time."""
        raise NotImplementedError


class Hpa(Autoscaler):
    """Kubernetes' horizontal pod autoscaler: as many replicas as hold a signal at its target.

    `desired = ceil(replicas × signal / target)`, nothing within a tolerance of 10 %; while replicas start they count as idle
    where more are asked for, and as at the target where fewer are. At most twice as many, or four more, at a look. What is asked
    for must have been asked for through a window before it is done: none for more, five minutes for fewer
    (pkg/controller/podautoscaler/replica_calculator.go and horizontal.go; the defaults are those of `autoscaling/v2`).
    KEDA and llm-d feed the same with `vllm:num_requests_waiting` and others.

    Args:
        signal: of `SIGNALS`.   target: of it, for each replica.   tolerance: as a share of the target.
        up_window, down_window: seconds.
    """

    def __init__(
        self, least: int, most: int, *, signal: str = "requests", target: float = 1.0, tolerance: float = 0.1,
        up_window: float = 0.0, down_window: float = 300.0,
    ) -> None:  # fmt: skip
        super().__init__(least, most)
        self.signal, self.target, self.tolerance = signal, target, tolerance
        self._windows = up_window, down_window
        self._asked: deque[tuple[float, int]] = deque()

    def desired(self, seen: Demand) -> int:
        """As many as hold the signal at its target, bounded and through its window."""
        there = seen.ready + seen.starting
        if not self._asked:
            self._asked.append((0.0, there))
        wanted = min(max(self._wanted(seen, there), self.least), self.most)
        asked = self._asked
        asked.append((seen.time, wanted))
        while asked[0][0] < seen.time - max(self._windows):
            asked.popleft()
        up, down = self._windows
        more = min(n for at, n in asked if at >= seen.time - up)
        fewer = max(n for at, n in asked if at >= seen.time - down)
        if more > there:
            return min(more, max(2 * there, there + 4))
        return min(fewer, there)

    def _wanted(self, seen: Demand, there: int) -> int:
        total = {
            "requests": seen.running + seen.waiting, "queue": seen.waiting, "kv": seen.kv * seen.ready, "rate": seen.rate,
        }[self.signal]  # fmt: skip
        ratio = total / (self.target * seen.ready)
        if abs(ratio - 1) <= self.tolerance:
            return there
        if seen.starting:
            besides = 0 if ratio > 1 else seen.starting
            again = (total / self.target + besides) / there
            if abs(again - 1) <= self.tolerance or (again > 1) != (ratio > 1):
                return there
            ratio = again
        return math.ceil(ratio * there - 1e-9)
