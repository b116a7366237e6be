"""Contiguous KV: one slab a sequence, reserved at admission and given back at the end.

This is how engines kept KV before paging, in three sizes of slab: the longest sequence the engine allows
(FasterTransformer, Orca's "Max"), the declared length rounded up to a power of two out of a buddy allocator (Orca's
"Pow2"), and the true length out of a first-fit free list (the "Oracle" of the PagedAttention paper, which no real system
can have). A slab's unfilled end is waste of two kinds, told apart after the run when the true length is known: *reserved*
for tokens that come later, and *internal* for tokens that never do. Holes between slabs are *external* waste.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

from sim.engine.cohort import Cohort
from sim.engine.sequence import Sequence
from sim.kv.base import FOREVER, NO_HIT, Hit, KVUse


class Space(Protocol):
    """A line of `capacity` token slots out of which slabs are cut."""

    free: int

    def size(self, tokens: int) -> int:
        """Slots that a slab for `tokens` tokens takes."""

    def take(self, size: int) -> int | None:
        """Start of a free slab of that size, or None."""

    def put(self, start: int, size: int) -> None:
        """Give a slab back, joining it with free neighbours."""

    def largest(self) -> int:
        """Size of the largest slab that could be taken now."""


class FirstFit:
    """Slabs of any size, the lowest hole that is large enough; neighbours coalesce."""

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self._holes: list[tuple[int, int]] = [(0, capacity)] if capacity else []  # (start, size) by start

    def size(self, tokens: int) -> int:
        return tokens

    def take(self, size: int) -> int | None:
        for index, (start, hole) in enumerate(self._holes):
            if hole >= size:
                if hole == size:
                    del self._holes[index]
                else:
                    self._holes[index] = (start + size, hole - size)
                self.free -= size
                return start
        return None

    def put(self, start: int, size: int) -> None:
        holes = self._holes
        self.free += size
        index = bisect_left(holes, (start, 0))
        if index < len(holes) and holes[index][0] == start + size:
            size += holes.pop(index)[1]
        if index and sum(holes[index - 1]) == start:
            index -= 1
            start, before = holes.pop(index)
            size += before
        holes.insert(index, (start, size))

    def largest(self) -> int:
        return max((hole for _, hole in self._holes), default=0)


class Buddy:
    """Slabs of powers of two: split on demand, joined with their buddy when both are free.

    A capacity that is not a power of two is kept as the powers of two it is the sum of, largest first.
    """

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self._by_size: dict[int, list[int]] = {}  # size → sorted starts
        start = 0
        for bit in reversed(range(capacity.bit_length())):
            if capacity >> bit & 1:
                self._by_size[1 << bit] = [start]
                start += 1 << bit
        self._roots = [(starts[0], size) for size, starts in self._by_size.items()]

    def size(self, tokens: int) -> int:
        return 1 << (tokens - 1).bit_length()

    def take(self, size: int) -> int | None:
        fitting = [s for s, starts in self._by_size.items() if s >= size and starts]
        if not fitting:
            return None
        have = min(fitting)
        start = self._by_size[have].pop(0)
        while have > size:
            have >>= 1
            insort(self._by_size.setdefault(have, []), start + have)
        self.free -= size
        return start

    def put(self, start: int, size: int) -> None:
        self.free += size
        while (start, size) not in self._roots:
            base = next(root for root, length in self._roots if root <= start < root + length)
            buddy = base + ((start - base) ^ size)
            starts = self._by_size.get(size, [])
            index = bisect_left(starts, buddy)
            if index == len(starts) or starts[index] != buddy:
                break
            del starts[index]
            start = min(start, buddy)
            size <<= 1
        insort(self._by_size.setdefault(size, []), start)

    def largest(self) -> int:
        return max((size for size, starts in self._by_size.items() if starts), default=0)


class ContiguousAllocator:
    """One slab a sequence.

    Args:
        capacity: tokens in all.
        space: how slabs are cut, e.g. `FirstFit(capacity)` or `Buddy(capacity)`.
        length: tokens that a sequence's slab must hold.
    """

    shares = False
    block_size = 1

    def __init__(self, capacity: int, space: Space, length: Callable[[Sequence], int]) -> None:
        self.capacity = capacity
        self.space = space
        self._largest = space.largest()
        self._length = length
        self._wanted = 0  # size of the slab that was last refused, 0 if the last one was given
        self._slabs = 0  # slots in slabs

    @property
    def available(self) -> int:
        return self.space.largest()

    def footprint(self, tokens: int) -> int:
        return self.space.size(tokens)

    def fits(self, seq: Sequence) -> str | None:
        size = self.space.size(max(self._length(seq), 1))
        if size <= self._largest:
            return None
        return f"needs a slab of {size:,} tokens for its {seq.limit:,}; the largest there can be has {self._largest:,}"

    def table(self, seq: Sequence) -> range:
        """Slots of a sequence, in order."""
        return range(seq.blocks[0], seq.blocks[0] + seq.slab)

    def lookup(self, seq: Sequence) -> Hit:
        return NO_HIT

    def names(self, seq: Sequence, low: int, high: int) -> list[Hashable]:
        return []

    def computed(self, seq: Sequence, tokens: int) -> None:
        return None

    def admit(self, seq: Sequence, hit: Hit, tokens: int) -> bool:
        size = self.space.size(max(self._length(seq), tokens))
        start = self.space.take(size)
        if start is None:
            self._wanted = size
            return False
        self._wanted = 0
        seq.blocks = [start]
        seq.slab = size
        self._slabs += size
        return True

    def grow(self, seq: Sequence, tokens: int) -> bool:
        return tokens <= seq.slab

    def grow_cohort(self, cohort: Cohort) -> bool:
        return True  # a slab holds all that its sequence may ever know

    def crossing(self, cohort: Cohort) -> Iterable[Sequence]:
        return ()

    def replay(self, cohort: Cohort, steps: int) -> None:
        return None

    def stable_steps(self, cohort: Cohort) -> int:
        return FOREVER

    def settle(self, seq: Sequence) -> None:
        return None

    def release(self, seq: Sequence, keep: int = FOREVER) -> None:
        if seq.slab:
            self.space.put(seq.blocks[0], seq.slab)
            self._slabs -= seq.slab
            seq.blocks = []
            seq.slab = 0
            self._wanted = 0

    def fork(self, parent: Sequence, child: Sequence) -> list[tuple[int, int]] | None:
        size = self.space.size(max(self._length(child), parent.computed))
        start = self.space.take(size)
        if start is None:
            return None
        child.blocks, child.slab = [start], size
        self._slabs += size
        return [(parent.blocks[0] + i, start + i) for i in range(parent.computed)]  # nothing can be shared

    def held(self, stored: int) -> int:
        return self._slabs

    def use(self, stored: int) -> KVUse:
        free = self.space.free
        holes = free if self._wanted and free >= self._wanted else 0
        return KVUse(self.capacity, stored, 0, self._slabs - stored, holes, free - holes)

    def check(self, sequences: Iterable[Sequence]) -> None:
        taken = sorted((seq.blocks[0], seq.slab, seq.computed) for seq in sequences if seq.slab)
        end = 0
        for start, size, filled in taken:
            assert start >= end, f"the slab at {start} overlaps the one before it"
            assert filled <= size, f"the slab at {start} holds {filled} tokens in {size} slots"
            end = start + size
        assert end <= self.capacity, "a slab reaches past the pool"
        assert self._slabs == sum(size for _, size, _ in taken), "slabs are miscounted"
        assert self._slabs + self.space.free == self.capacity, "slots leaked"
