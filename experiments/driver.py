"""The load driver: sends requests when they are due and tells when the next one is.

Open loop: at their times, whatever the server does, or, with a most that may be in flight, when one before it is over (vLLM's
`--request-rate` with `--max-concurrency`). Closed loop: a fixed number of sessions in flight, each replaced when it is
over; times are ignored. A later turn of a session is sent its think time after the turn before it finished, in all.
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
        work: seconds for which the front end prepares each row, one after another in the order in which they are sent.
        delay: seconds that pass besides until a row is in the engine's queue.
        rows: of these alone, in ascending order; all if none are given. For traffic without sessions.
        most: requests in flight in an open loop; 0 = as many as come.

    Attributes:
        due: float64, when each row is to be sent; NaN until that is known. sent: when it was sent, the same unless held back
            by `most`; NaN until then. queued: when it was in the engine's queue.
        count: rows sent so far.
    """

    def __init__(
        self, traffic: Traffic, concurrency: int, work: np.ndarray, delay: float, rows: np.ndarray | None = None,
        most: int = 0,
    ) -> None:  # fmt: skip
        self._traffic = traffic
        self._work, self._delay = work, delay
        self._free = 0.0  # when the front end has prepared all that it was sent
        roots = np.flatnonzero(traffic.parent < 0) if rows is None else rows
        self._children: dict[int, list[int]] = {}
        for row in np.flatnonzero(traffic.parent >= 0).tolist():
            self._children.setdefault(int(traffic.parent[row]), []).append(row)
        self.due = np.full(len(traffic), np.nan)
        self.sent = np.full(len(traffic), np.nan)
        self.queued = np.full(len(traffic), np.nan)
        self.count = 0
        self._slots = [0.0] * most if most else None  # when each that is free has become so
        self._sends: list[tuple[float, int]] = []  # (time, row), of rows that are or will be sent
        self._line: list[tuple[float, int]] = []  # (time in the queue, row), of rows that the front end has seen
        self._left: dict[
            int, int
        ] = {}  # first turn's row → turns of the session that are sent and not over, if not one
        self._closed = concurrency > 0
        self._planned_ahead = not self._closed and not self._children and self._slots is None
        if self._closed:
            self._rows = roots.tolist()
            self._next = 0
            for _ in range(min(concurrency, len(roots))):
                self._start_session(0.0)
        elif not self._planned_ahead:
            for row in roots.tolist():
                self._send(row, float(traffic.arrival[row]))
        else:
            order = np.argsort(traffic.arrival[roots], kind="stable")
            self._rows = roots[order]
            arrivals = traffic.arrival[self._rows]
            self.due[self._rows] = self.sent[self._rows] = arrivals
            self.queued[self._rows] = prepared(arrivals, work[self._rows]) + delay
            self._times = self.queued[self._rows].tolist()
            self._times.append(NEVER)
            self._next = 0
            self._made: list[tuple[Request, float]] = []  # some rows as objects, with their times
            self._made_until = 0  # the row after them, counted in order of arrival

    @property
    def listens(self) -> bool:
        """Whether what it sends depends on what has finished."""
        return not self._planned_ahead

    def next_time(self) -> float:
        """When the next request reaches the engine, as far as that is known; infinity for never."""
        if self._planned_ahead:
            return self._times[self._next]
        if self._line:
            return self._line[0][0]
        time = self._next_send()
        return self._through(time, self._sends[0][1]) + self._delay if time < NEVER else NEVER

    def _next_send(self) -> float:
        """When the next row is sent: when it is due, and not before there is a slot; infinity while that is not known."""
        if not self._sends:
            return NEVER
        time = self._sends[0][0]
        if self._slots is None:
            return time
        return max(time, self._slots[0]) if self._slots else NEVER

    def take(self, now: float) -> list[tuple[Request, float]]:
        """Requests that have reached the engine by `now`, with their times, in order."""
        if self._planned_ahead:
            taken = self._planned(bisect_right(self._times, now, self._next))
        else:
            taken = []
            sends, line = self._sends, self._line
            while (time := self._next_send()) <= now:  # nothing can be sent before now any more: their order is certain
                _, row = heappop(sends)
                if self._slots is not None:
                    heappop(self._slots)
                    self.sent[row] = time
                self._free = self._through(time, row)
                self.queued[row] = at = self._free + self._delay
                heappush(line, (at, row))
            while line and line[0][0] <= now:
                time, row = heappop(line)
                taken.append((self._traffic.request(row), time))
        self.count += len(taken)
        return taken

    def _through(self, time: float, row: int) -> float:
        """When the front end has prepared a row that is sent at `time`."""
        return max(time, self._free) + float(self._work[row])

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
        if self._slots is not None:
            heappush(self._slots, time)
        children = self._children.get(row, ())
        for child in children:
            self._send(child, time + float(self._traffic.think[child]))
        if self._closed:
            self._settle(row, len(children), time)

    def refused(self, row: int, time: float) -> None:
        """A row cannot be served; the turns after it are never sent, since their prompts contain its answer."""
        if self._slots is not None:
            heappush(self._slots, time)
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
        self.due[row] = time
        if self._slots is None:
            self.sent[row] = time
        heappush(self._sends, (time, row))


def prepared(arrivals: np.ndarray, work: np.ndarray) -> np.ndarray:
    """When a server that does one thing after another has done `work[i]` that came at `arrivals[i]`, in ascending order."""
    if not work.any():
        return arrivals.copy()
    through = np.cumsum(work)
    before = through - work
    return np.maximum(through + np.maximum.accumulate(arrivals - before), arrivals + work)
