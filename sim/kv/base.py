"""What an engine asks of its KV memory.

An allocator owns blocks or slots and answers: which cached prefix does this prompt match; can this sequence grow to n
tokens; share these; free those; and how many tokens are used, reserved and wasted right now. Who *owns* a block (the pool)
is kept apart from which *prefix* is where (the index). The real backend reads block tables from the same objects.

Every method either does all of what it says or nothing. Sizes are in tokens of one sequence; a block or slab holds the
keys and values of its tokens for all layers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

from sim.engine.cohort import Cohort
from sim.engine.sequence import Sequence

FOREVER = 1 << 60
"""More steps than any run takes."""


class Hit(NamedTuple):
    """A cached prefix of a sequence.

    Attributes:
        tokens: how long it is.
        idle: tokens of it that nobody uses now: taking the hit takes these from what is available.
        handle: the allocator's own note of where it is.
    """

    tokens: int = 0
    idle: int = 0
    handle: object = None


NO_HIT = Hit()


class KVUse(NamedTuple):
    """Where the pool's tokens are, adding up to `capacity`.

    Attributes:
        live: hold keys and values that a sequence uses (shared ones count once).
        cached: used by nobody, but hold a prefix that may be hit.
        allocated: set aside for live sequences and not filled: the free end of a block, the rest of a slab.
        holes: free, but in pieces too small for the sequence that waits for them.
        free: the rest.
    """

    capacity: int
    live: int
    cached: int
    allocated: int
    holes: int
    free: int


class KVAllocator(Protocol):
    """Keys and values of all sequences on one replica.

    Attributes:
        block_size: tokens a block. Members of the engine's cohort need memory once every `block_size` steps.
        capacity: tokens in all.
        shares: whether prefixes may be shared at all.
        roomy: optional: a sequence of up to so many tokens fits in any case and `fits` need not be asked; 0 by default.
    """

    block_size: int
    capacity: int
    shares: bool

    @property
    def available(self) -> int:
        """Tokens that could be handed out now, evicting cached prefixes where needed."""

    def footprint(self, tokens: int) -> int:
        """Tokens of memory that a sequence of `tokens` tokens takes, rounded up to blocks or slabs."""

    def fits(self, seq: Sequence) -> str | None:
        """Why this sequence could never be held at its declared limit, even alone; None if it could."""

    def lookup(self, seq: Sequence) -> Hit:
        """The longest cached prefix of `seq`, at most `known − 1` tokens. Changes nothing that can be seen."""

    def admit(self, seq: Sequence, hit: Hit, tokens: int) -> bool:
        """Give `seq`, which holds nothing, the cached prefix `hit` and memory for its first `tokens` tokens."""

    def grow(self, seq: Sequence, tokens: int) -> bool:
        """Make room for the first `tokens` tokens of `seq`."""

    def grow_cohort(self, cohort: Cohort) -> bool:
        """Make room for the next token of every member; False, and nothing done, if there is not enough."""

    def crossing(self, cohort: Cohort) -> Iterable[Sequence]:
        """Members that need memory for their next token, for when `grow_cohort` failed."""

    def replay(self, cohort: Cohort, steps: int) -> None:
        """Do what `grow_cohort` would at each of the `steps` decode steps after the present one; it is known to fit."""

    def stable_steps(self, cohort: Cohort) -> int:
        """For how many decode steps, this one included, memory is sure to last. At least 1."""

    def names(self, seq: Sequence, low: int, high: int) -> list[Hashable]:
        """Names of the content of the blocks that tokens `low … high − 1` of `seq` complete; equal content, equal name."""

    def computed(self, seq: Sequence, tokens: int) -> None:
        """The first `tokens` tokens of `seq` are, or by the end of this step will be, in the cache: they may be hit."""

    def settle(self, seq: Sequence) -> None:
        """`seq` is about to leave the cohort and keeps its memory: what was only counted for it is now its own."""

    def table(self, seq: Sequence) -> Seq[int]:
        """Blocks or slots of `seq`, in order. Real backends alone need it; in simulation an allocator may lack it, as one that
        is a `PrivateAllocator` and does not write it does."""

    def release(self, seq: Sequence, keep: int = FOREVER) -> None:
        """Take everything back from `seq`; its first `keep` computed tokens stay cached where prefixes are kept."""

    def fork(self, parent: Sequence, child: Sequence) -> list[tuple[int, int]] | None:
        """Share the parent's computed tokens with `child`, copying the last, partly filled block.

        Returns:
            (source, destination) blocks to copy before the next step; None, and nothing done, if there is no room.
        """

    def held(self, stored: int) -> int:
        """Tokens of memory in the hands of live sequences, which have computed `stored`; shared ones count for each."""

    def use(self, stored: int) -> KVUse:
        """Where the pool's tokens are, given that live sequences have computed `stored` tokens in all."""

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Verify every invariant against the sequences that hold memory; slow, for tests.

        Raises:
            AssertionError: naming what does not add up.
        """


class PrivateAllocator:
    """Base of allocators in which every sequence has memory of its own: a subclass writes `footprint` and nothing else.

    It counts tokens and does not say where they lie, so that it is for simulation; with a `table` of its own also for a real
    backend. Nothing is shared: there are no prefix hits, and a fork copies.

    Args:
        capacity: tokens in all.
    """

    shares = False
    block_size = 1

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._taken = 0
        self._own: dict[Sequence, int] = {}

    def footprint(self, tokens: int) -> int:
        """Tokens of memory that a sequence of `tokens` tokens takes: at least as many, and never fewer for more."""
        raise NotImplementedError

    @property
    def available(self) -> int:
        return self.capacity - self._taken

    def fits(self, seq: Sequence) -> str | None:
        need = self.footprint(seq.limit)
        return None if need <= self.capacity else f"needs {need:,} tokens of KV; the pool has {self.capacity:,}"

    def lookup(self, seq: Sequence) -> Hit:
        return NO_HIT

    def admit(self, seq: Sequence, hit: Hit, tokens: int) -> bool:
        return self.grow(seq, tokens)

    def grow(self, seq: Sequence, tokens: int) -> bool:
        have = self._own.get(seq, 0)
        more = self.footprint(tokens) - have
        if more > self.available:
            return False
        if more > 0:
            self._own[seq] = have + more
            self._taken += more
        return True

    def grow_cohort(self, cohort: Cohort) -> bool:
        growing = [(seq, size - self._own[seq]) for seq, size in self._next(cohort)]
        total = sum(more for _, more in growing)
        if total > self.available:
            return False
        for seq, more in growing:
            self._own[seq] += more
        self._taken += total
        return True

    def _next(self, cohort: Cohort) -> list[tuple[Sequence, int]]:
        """Members that need memory for their next token, with what they need in all."""
        sizes = ((seq, self.footprint(seq.known)) for seq in cohort.members)
        return [(seq, size) for seq, size in sizes if size > self._own[seq]]

    def crossing(self, cohort: Cohort) -> Iterable[Sequence]:
        return [seq for seq, _ in self._next(cohort)]

    def replay(self, cohort: Cohort, steps: int) -> None:
        return None  # no step is ever taken unseen: `stable_steps` is 1

    def stable_steps(self, cohort: Cohort) -> int:
        return 1

    def names(self, seq: Sequence, low: int, high: int) -> list[Hashable]:
        return []

    def computed(self, seq: Sequence, tokens: int) -> None:
        return None

    def settle(self, seq: Sequence) -> None:
        return None

    def release(self, seq: Sequence, keep: int = FOREVER) -> None:
        self._taken -= self._own.pop(seq, 0)

    def fork(self, parent: Sequence, child: Sequence) -> list[tuple[int, int]] | None:
        return [] if self.grow(child, parent.computed) else None

    def held(self, stored: int) -> int:
        return self._taken

    def use(self, stored: int) -> KVUse:
        return KVUse(self.capacity, stored, 0, self._taken - stored, 0, self.available)

    def check(self, sequences: Iterable[Sequence]) -> None:
        held = {seq: self._own.get(seq, 0) for seq in sequences}
        assert sum(held.values()) == self._taken == sum(self._own.values()), "memory is held for nobody"
        assert all(size >= seq.computed for seq, size in held.items()), "somebody has KV outside of its memory"
        assert self._taken <= self.capacity, "more is taken than there is"
