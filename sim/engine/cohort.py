"""The decoding sequences, advanced by one shared counter.

Every member gains one token a decode step. Instead of touching each, the cohort counts steps in `tick`, and a member
keeps `base = tokens − tick` from the moment it joined. What a step needs is kept as plain integers (`size`, `context`),
and who needs a new KV block is found in a wheel: a member crosses a block boundary every `block_size` steps, so it sits
in the one bucket whose turn comes then. A step is O(members that cross), not O(members).
"""

from __future__ import annotations

from sim.engine.sequence import Sequence


class Cohort:
    """Members decode together, one token each a step.

    Attributes:
        tick: decode steps taken since the engine started.
        size: number of members.
        context: sum of the members' known tokens.
        block_size: tokens between two of a member's needs for memory.
        uneven: whether a step may give members different numbers of tokens (`sim.engine.drafting`).
    """

    uneven = False
    __slots__ = ("_turns", "_wheel", "block_size", "context", "size", "tick")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.tick = 0
        self.size = 0
        self.context = 0
        self._wheel: list[dict[Sequence, None]] = [{} for _ in range(block_size)]
        self._turns = self._wheel * 2  # any turns of less than a lap are a slice of it

    @property
    def members(self) -> list[Sequence]:
        """All of them: those who need a block at the same time together, otherwise in the order in which they joined."""
        return [seq for bucket in self._wheel for seq in bucket]

    def join(self, seq: Sequence) -> None:
        """Take in a sequence with exactly one token left to compute."""
        known, tick = seq._known, self.tick
        seq._base = base = known - tick
        seq.cohort = self
        seq.join_tick = tick
        seq.bucket = bucket = self._wheel[(1 - base) % self.block_size]
        bucket[seq] = None
        self.size += 1
        self.context += known

    def leave(self, seq: Sequence) -> None:
        """Let a member go; it keeps the tokens it has."""
        seq._known = known = seq._base + self.tick
        seq._computed = known - 1
        seq.cohort = None
        del seq.bucket[seq]
        seq.bucket = None
        self.size -= 1
        self.context -= known

    def crossing(self, ahead: int = 0) -> dict[Sequence, None]:
        """Members whose next token, `ahead` steps from now, is the first of a new block."""
        return self._wheel[(self.tick + ahead) % self.block_size]

    def crossings(self, ahead: int, steps: int) -> int:
        """How many new blocks the `steps` decode steps take whose first is `ahead` steps from now."""
        laps, rest = divmod(steps, self.block_size)  # in any `block_size` steps every member needs exactly one block
        first = (self.tick + ahead) % self.block_size
        return laps * self.size + sum(map(len, self._turns[first : first + rest]))

    def advance(self, steps: int = 1) -> None:
        """Give every member `steps` tokens."""
        self.tick += steps
        self.context += steps * self.size
