"""The load driver: sends requests when they are due and tells when the next one is.

Open loop: at their times, whatever the server does. Closed loop: a fixed number of sessions in flight, each replaced when it is
over; times are ignored. A later turn of a session is sent its think time after the turn before it finished, in both.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush

import numpy as np

from workloads.traffic import Request, Traffic

NEVER = float("inf")
_BATCH = 1024  # rows made into objects at a time


class LoadDriver:
    """Sends the rows of a traffic.

    Args:
        traffic: what arrives.
        concurrency: sessions in flight in a closed loop; 0 = open loop.
        delay: seconds from sending to the engine's queue, one a row (the front end).

    Attributes:
        sent: float64, when each row was sent; NaN until then.
        count: rows sent so far.
    """

    def __init__(self, traffic: Traffic, concurrency: int, delay: np.ndarray) -> None:
        self._traffic = traffic
        self._delay = delay
        roots = np.flatnonzero(traffic.parent < 0)
        self._children: dict[int, list[int]] = {}
        for row in np.flatnonzero(traffic.parent >= 0).tolist():
            self._children.setdefault(int(traffic.parent[row]), []).append(row)
        self.sent = np.full(len(traffic), np.nan)
        self.count = 0
        self._heap: list[tuple[float, int]] = []  # (time in the queue, row), of rows that were sent
        self._left: dict[
            int, int
        ] = {}  # first turn's row → turns of the session that are sent and not over, if not one
        self._closed = concurrency > 0
        if self._closed:
            self._rows, self._times = roots.tolist(), []
            self._next = 0
            for _ in range(min(concurrency, len(roots))):
                self._start_session(0.0)
        else:
            queued = traffic.arrival[roots] + delay[roots]
            order = np.argsort(queued, kind="stable")
            self._rows = roots[order]
            self._times = queued[order].tolist()
            self._times.append(NEVER)
            self._next = 0
            self._made: list[tuple[Request, float]] = []  # some rows as objects, with their times
            self._made_until = 0  # the row after them, counted in order of arrival
            self.sent[roots] = traffic.arrival[roots]

    @property
    def listens(self) -> bool:
        """Whether what it sends depends on what has finished."""
        return self._closed or bool(self._children)

    def next_time(self) -> float:
        """When the next request reaches the engine, as far as that is known; infinity for never."""
        planned = NEVER if self._closed else self._times[self._next]
        return min(planned, self._heap[0][0]) if self._heap else planned

    def take(self, now: float) -> list[tuple[Request, float]]:
        """Requests that have reached the engine by `now`, with their times, in order."""
        taken: list[tuple[Request, float]] = []
        request = self._traffic.request
        heap = self._heap
        if self._closed:
            while heap and heap[0][0] <= now:
                time, row = heappop(heap)
                taken.append((request(row), time))
        else:
            while heap and heap[0][0] <= now:
                time, row = heappop(heap)
                taken += self._planned(bisect_right(self._times, time, self._next))
                taken.append((request(row), time))
            taken += self._planned(bisect_right(self._times, now, self._next))
        self.count += len(taken)
        return taken

    def _planned(self, stop: int) -> list[tuple[Request, float]]:
        """Of those that come whatever happens, the next up to the `stop`-th."""
        taken: list[tuple[Request, float]] = []
        start = self._next
        while start < stop:
            if start == self._made_until:
                rows = self._rows[start : start + _BATCH]
                self._made = list(
                    zip(self._traffic.requests(rows), self._times[start : start + len(rows)], strict=True)
                )
                self._made_until = start + len(rows)
            end = min(stop, self._made_until)
            first = start - self._made_until
            taken += self._made[first : end - self._made_until or None]
            start = end
        self._next = start
        return taken

    def finished(self, row: int, time: float) -> None:
        """The answer of a row is complete at the client (or the row was refused)."""
        children = self._children.get(row, ())
        for child in children:
            self._send(child, time + float(self._traffic.think[child]))
        if self._closed:
            self._settle(row, len(children), time)

    def refused(self, row: int, time: float) -> None:
        """A row cannot be served; the turns after it are never sent, since their prompts contain its answer."""
        if self._closed:
            self._settle(row, 0, time)

    def _settle(self, row: int, more: int, time: float) -> None:
        """A row is over and `more` follow from it; when nothing of its session is left, the next session takes its place."""
        while (parent := int(self._traffic.parent[row])) >= 0:
            row = parent
        left = self._left[row] = self._left.get(row, 1) - 1 + more
        if not left:
            del self._left[row]
            self._start_session(time)

    def _start_session(self, time: float) -> None:
        if self._next < len(self._rows):
            row = self._rows[self._next]
            self._next += 1
            self._send(row, time)

    def _send(self, row: int, time: float) -> None:
        self.sent[row] = time
        heappush(self._heap, (time + float(self._delay[row]), row))
