"""Decode steps recorded once and replayed: on a GPU as CUDA graphs, which take the place of hundreds of launches.

A graph has fixed shapes, so there is one for each of a few numbers of rows and a few lengths of the longest; a step is filled up
with dead rows to the next. What changes from step to step lies in one buffer that is overwritten before the replay: token ids
and block tables are picked out of `Places` inside the graph.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from backends.model.model import Model
from backends.torch.pack import Packed, Rows, pack
from backends.torch.places import Places
from backends.torch.pool import KVPool

Work = Callable[[], Tensor]
Capture = Callable[[Work], Work]
"""Runs some work and records it; what it returns replays the record and gives the same tensor, filled anew."""

_LEAST_REACH = 1024
"""Tokens that the shortest graphs can attend to; each next kind has four times as many."""


_AHEAD = (_LEAST_REACH, 4 * _LEAST_REACH)
"""Reaches that are recorded before they are needed."""


def row_sizes(most: int) -> tuple[int, ...]:
    """Numbers of rows that graphs are recorded for, up to the first that is `most` or more: ever farther apart, so that a step
    is filled up by less than half, and there are not too many."""
    sizes = [1, 2, 4, 8]
    while sizes[-1] < most:
        last = sizes[-1]
        sizes.append(last + (8 if last < 32 else 16 if last < 128 else 32 if last < 256 else 64))
    return tuple(sizes[: bisect_left(sizes, most) + 1])


class CudaCapture:
    """Records work as CUDA graphs, which share their memory: only one of them runs at a time."""

    def __init__(self) -> None:
        self._memory = None

    def __call__(self, work: Work) -> Work:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiles kernels and fills caches, which recording must not do
            work()
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            out = work()
        self._memory = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


@dataclass(slots=True)
class _Recorded:
    """A graph, its input, and how often `Places` had moved when it was recorded."""

    flat: Tensor
    replay: Work
    moves: int


class DecodeGraphs:
    """Graphs of steps that only decode.

    Args:
        most: rows of the largest step.
        capture: how a step is recorded.

    Attributes:
        recorded, replayed: how often, for reports and tests.
    """

    def __init__(self, model: Model, pool: KVPool, places: Places, most: int, capture: Capture) -> None:
        self._model, self._pool, self._places = model, pool, places
        self._capture = capture
        self._sizes = row_sizes(most)
        self._graphs: dict[tuple[int, int], _Recorded] = {}
        self._logits: Tensor | None = None  # of all graphs: what each kept for itself would add up to gigabytes
        self.recorded = self.replayed = 0

    def rows(self, wanted: int) -> int:
        """To how many rows a step of `wanted` is filled up; 0 if it is too large."""
        index = bisect_left(self._sizes, wanted)
        return self._sizes[index] if index < len(self._sizes) else 0

    def run(self, packed: Packed) -> Tensor:
        """Logits [rows, vocabulary] of a step whose rows have one token each, and all a sample row; until the next run."""
        places = self._places
        size, pages = packed.layout.rows, self._reach(packed.pages)
        graph = self._graphs.get((size, pages))
        if graph is None or graph.moves != places.moves:
            graph = self._graphs[size, pages] = self._record(packed, pages)
        else:
            graph.flat.copy_(packed.flat)
        self.replayed += 1
        return graph.replay()

    def record_all(self, longest: int) -> None:
        """Record steps of every size for sequences of up to `longest` tokens, or of a few thousand: before serving, since each
        takes a part of a second. What is beyond is recorded when it first comes."""
        for size, pages in self._ahead(longest):
            self._graphs[size, pages] = self._record(self._dead(size), pages)

    def estimate(self, longest: int, taken: Callable[[], int]) -> int:
        """Bytes that `record_all` would take of the device: measured on the first two, since all after the first find room in
        its memory and take but their own launches.

        Args:
            taken: bytes in use on the device now.
        """
        ahead = self._ahead(longest)
        marks = [taken()]
        for size, pages in ahead[:2]:
            self._graphs[size, pages] = self._record(self._dead(size), pages)
            marks.append(taken())
        first, *second = (max(after - before, 0) for before, after in pairwise(marks))
        return first + sum(second) * (len(ahead) - 1)

    def _ahead(self, longest: int) -> list[tuple[int, int]]:
        """Rows and pages a table of what is recorded beforehand, largest first."""
        page = self._pool.page_size
        reaches = sorted({self._reach(-(-min(longest, length) // page)) for length in _AHEAD}, reverse=True)
        return [(size, pages) for size in reversed(self._sizes) for pages in reaches]

    def _dead(self, size: int) -> Packed:
        """A step of so many dead rows."""
        nobody = np.zeros(0, np.int64)
        none = Rows(nobody, nobody, nobody, nobody.astype(bool))
        return pack(none.padded(size), self._places, self._pool.page_size, every_row=True)

    def _reach(self, pages: int) -> int:
        """Pages of each table that a graph for rows of up to `pages` may read."""
        reach = max(1, _LEAST_REACH // self._pool.page_size)
        while reach < pages:
            reach *= 4
        return min(reach, self._places.tables.shape[1])

    def _record(self, packed: Packed, pages: int) -> _Recorded:
        flat, layout, places = packed.flat.clone(), packed.layout, self._places
        ones = np.ones(layout.rows, np.int64)
        lengths = np.full(layout.rows, pages * self._pool.page_size)  # the most that any row may come to have

        logits = self._room_for_logits()[: layout.rows]

        def work() -> Tensor:
            batch = layout.batch(flat, places, ones, lengths, pages)
            return logits.copy_(self._model.forward(batch, self._pool.cache, self._pool.scales))

        self.recorded += 1
        return _Recorded(flat, self._capture(work), places.moves)

    def _room_for_logits(self) -> Tensor:
        """[rows of the largest graph, vocabulary]: every replay leaves its logits at the beginning."""
        if self._logits is None:
            shape = self._sizes[-1], self._model.architecture.spec.vocab
            self._logits = torch.empty(shape, dtype=torch.float32, device=self._model.device)
        return self._logits
