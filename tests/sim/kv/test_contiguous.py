"""Contiguous slabs: first fit and buddies, by hand and against a map of every slot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sim.engine.sequence import Sequence
from sim.kv.base import NO_HIT
from sim.kv.contiguous import Buddy, ContiguousAllocator, FirstFit
from workloads.traffic import Span, private_content


class SlabMachine(RuleBasedStateMachine):
    """Takes and puts back; a list with one entry a slot knows who owns what."""

    space_of = staticmethod(FirstFit)

    @initialize(capacity=st.integers(1, 300))
    def start(self, capacity):
        self.space = self.space_of(capacity)
        self.slots = [None] * capacity
        self.taken: list[tuple[int, int]] = []

    @rule(tokens=st.integers(1, 90))
    def take(self, tokens):
        size = self.space.size(tokens)
        assert size >= tokens
        fits = self.space.largest() >= size
        start = self.space.take(size)
        assert (start is not None) == fits
        if start is None:
            return
        assert start + size <= len(self.slots)
        assert self.slots[start : start + size] == [None] * size, "the slab is somebody's"
        self.slots[start : start + size] = [start] * size
        self.taken.append((start, size))

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 50))
    def put(self, which):
        start, size = self.taken.pop(which % len(self.taken))
        self.space.put(start, size)
        self.slots[start : start + size] = [None] * size

    def holes(self) -> list[int]:
        """Sizes of the free stretches."""
        sizes, run = [], 0
        for slot in [*self.slots, "end"]:
            if slot is None:
                run += 1
            elif run:
                sizes.append(run)
                run = 0
        return sizes

    @invariant()
    def counts(self):
        if hasattr(self, "space"):
            assert self.space.free == self.slots.count(None)
            self.largest()

    def largest(self):
        assert self.space.largest() == max(self.holes(), default=0), "neighbours were not joined"


class BuddyMachine(SlabMachine):
    space_of = staticmethod(Buddy)

    def largest(self):
        """The largest free aligned power of two inside one of the powers that the capacity is the sum of."""
        best, base = 0, 0
        for bit in reversed(range(len(self.slots).bit_length())):
            root = 1 << bit
            if len(self.slots) & root:
                size = root
                while size > best:
                    starts = range(base, base + root, size)
                    if any(all(slot is None for slot in self.slots[start : start + size]) for start in starts):
                        best = size
                    size >>= 1
                base += root
        assert self.space.largest() == best, "buddies were not joined"


SlabMachine.TestCase.settings = BuddyMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, derandomize=True, deadline=None, database=None
)
TestFirstFit = SlabMachine.TestCase
TestBuddy = BuddyMachine.TestCase


def test_first_fit_takes_the_lowest_hole_that_is_large_enough() -> None:
    space = FirstFit(100)
    starts = [space.take(20) for _ in range(5)]
    assert starts == [0, 20, 40, 60, 80]
    space.put(20, 20)
    space.put(60, 20)
    assert space.take(10) == 20
    assert space.take(15) == 60, "the rest of the first hole is too small"
    space.put(40, 20)
    assert space.largest() == 30, "30 to 60: the rest of one hole and the slab after it"


def test_buddies_fragment_as_worked_out_by_hand() -> None:
    """1024 slots, four answers of 200 (slabs of 256). Two that are no buddies leave: 512 free, yet no slab of 512."""
    space = Buddy(1024)
    starts = [space.take(space.size(200)) for _ in range(4)]
    assert starts == [0, 256, 512, 768]
    space.put(256, 256)
    space.put(512, 256)
    assert (space.free, space.largest()) == (512, 256), "they touch, but 256 and 512 are not buddies"
    assert space.take(512) is None
    space.put(0, 256)
    assert (space.free, space.largest()) == (768, 512), "0 and 256 are"
    assert space.take(300 and 512) == 0
    space.put(768, 256)
    assert space.largest() == 512


def test_a_buddy_splits_down_and_joins_back_up() -> None:
    space = Buddy(64)
    start = space.take(1)
    assert (start, space.free, space.largest()) == (0, 63, 32)
    assert [space.take(size) for size in (1, 2, 4, 8, 16, 32)] == [1, 2, 4, 8, 16, 32]
    assert space.free == 0
    for begin, size in ((0, 1), (2, 2), (8, 8), (1, 1), (4, 4), (16, 16), (32, 32)):
        space.put(begin, size)
    assert space.largest() == 64


@pytest.mark.parametrize("capacity, sizes", [(100, [64, 32, 4]), (7, [4, 2, 1]), (64, [64])])
def test_a_capacity_that_is_no_power_of_two_is_a_sum_of_them(capacity: int, sizes: list[int]) -> None:
    space, taken = Buddy(capacity), []
    while space.free:
        taken.append(space.largest())
        space.take(taken[-1])
    assert taken == sizes


def sequence(row: int, prompt: int, declared: int) -> Sequence:
    return Sequence(row, (Span(private_content(row), 0, prompt),), prompt, declared)


def test_waste_is_told_apart() -> None:
    """Slabs of 256 in 1024 slots: what is stored, what is set aside, and holes that the next cannot use."""
    pool = ContiguousAllocator(1024, Buddy(1024), lambda seq: seq.limit)
    seqs = [sequence(row, 100, 100) for row in range(4)]
    for seq in seqs:
        assert pool.admit(seq, NO_HIT, 100)
        seq._computed = 100
    use = pool.use(400)
    assert (use.live, use.allocated, use.holes, use.free) == (400, 624, 0, 0)
    for seq in (seqs[1], seqs[2]):
        pool.release(seq)
    large = sequence(9, 300, 150)
    assert not pool.admit(large, NO_HIT, 300)
    use = pool.use(200)
    assert (use.live, use.allocated, use.holes, use.free) == (200, 312, 512, 0), (
        "512 are free and none of them is of use"
    )
    pool.release(seqs[0])
    assert pool.admit(large, NO_HIT, 300)
    assert pool.use(100).holes == 0
    pool.check([seqs[3], large])


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60), st.booleans()), min_size=1, max_size=40), st.booleans()
)
def test_allocators_add_up(steps, buddies):
    pool = ContiguousAllocator(256, Buddy(256) if buddies else FirstFit(256), lambda seq: seq.limit)
    here: list[Sequence] = []
    for row, (prompt, declared, leave) in enumerate(steps):
        seq = sequence(row, prompt, declared)
        if pool.fits(seq) is None and pool.admit(seq, NO_HIT, prompt):
            seq._computed = prompt
            here.append(seq)
            assert pool.grow(seq, seq.limit)
            assert not pool.grow(seq, seq.slab + 1)
        if leave and here:
            pool.release(here.pop(0))
        pool.check(here)
        use = pool.use(sum(seq.computed for seq in here))
        assert sum(use[1:]) == 256 and min(use) >= 0


def test_what_can_never_fit_is_told_beforehand() -> None:
    pool = ContiguousAllocator(100, Buddy(100), lambda seq: seq.limit)
    assert pool.fits(sequence(0, 30, 34)) is None
    assert "slab of 128" in pool.fits(sequence(0, 30, 35))
