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
        """Blocks or slots of `seq`, in order. Real backends alone need it; in simulation an allocator may lack it."""

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
