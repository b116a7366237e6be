"""Who reaches the declared end of an answer, and when."""

from __future__ import annotations

from heapq import heappop, heappush

from sim.engine.sequence import Sequence


class LimitCalendar:
    """Decoding sequences by the value of the cohort's counter at which they have all they declared.

    An engine with several plans in flight looks here so as not to plan them once more; with one plan in flight it learns of
    every end in time and keeps no calendar.

    Attributes:
        by_tick: counter value → who may be at the limit then.
    """

    def __init__(self) -> None:
        self.by_tick: dict[int, dict[Sequence, None]] = {}
        self._ticks: list[int] = []

    def expect(self, seq: Sequence) -> None:
        """`seq` has just joined the cohort."""
        tick = seq.limit - seq._base
        if tick in self.by_tick:
            self.by_tick[tick][seq] = None  # it may be there already, if it was preempted and is back
        else:
            self.by_tick[tick] = {seq: None}
            heappush(self._ticks, tick)

    def steps_from(self, tick: int) -> int | None:
        """Decode steps from this counter value to the next limit; None if there is none."""
        ticks = self._ticks
        while ticks and ticks[0] <= tick:
            heappop(ticks)
        return ticks[0] - tick if ticks else None

    def reached(self, tick: int) -> list[Sequence]:
        """Sequences that decode and have all they declared at this counter value; they are struck off."""
        return [seq for seq in self.by_tick.pop(tick, ()) if seq.cohort is not None and seq.limit == seq._base + tick]
