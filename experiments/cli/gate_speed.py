"""The simulator's own speed as a ratio: how many times a fixed piece of work fits into the time of a run.

Both are measured in this process, one after the other, several times; the quickest of each counts, in processor time. A slow
or busy machine slows both, so the ratio belongs to the code and not to the machine. It still moves by some ten per cent from
processor to processor and from Python to Python: hold it with a wide tolerance.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ROUNDS = 3


def speed_ratio(resolved: Any, *, rounds: int = ROUNDS) -> float:
    """Reference work that would fit into one simulated run's time, inverted: more is faster.

    Args:
        resolved: of `experiments.runner.resolve`, in simulation.
    """
    from experiments import runner

    reference, run = [], []
    for _ in range(rounds):
        reference.append(_seconds(_reference))
        run.append(_seconds(lambda: runner.run(resolved)))
    return min(reference) / max(min(run), 1e-9)


def _seconds(work: Callable[[], Any]) -> float:
    """Processor seconds of a call, garbage collected beforehand and left alone during it."""
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        began = time.process_time()
        work()
        return time.process_time() - began
    finally:
        if collecting:
            gc.enable()


class _Item:
    __slots__ = ("key", "left")

    def __init__(self, key: int) -> None:
        self.key, self.left = key, key % 17 + 1


def _reference(size: int = 20_000) -> int:
    """Work of the kinds that a simulator does: a heap, small objects, a table, short arrays."""
    heap: list[tuple[float, int]] = []
    table: dict[int, _Item] = {}
    total = 0
    for i in range(size):
        heapq.heappush(heap, ((i * 7919 % 10_007) / 7.0, i))
        table[i] = _Item(i)
        if len(heap) > 256:
            _, key = heapq.heappop(heap)
            item = table.pop(key)
            while item.left:
                item.left -= 1
                total += item.left
        if not i % 64:
            total += int(np.cumsum(np.arange(128))[-1])
    return total
