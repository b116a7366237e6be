"""What crosses the line between choosing and running.

A scheduler fills a `StepPlan`; an executor runs it and answers with a `StepOutcome`. Executors never see queues, schedulers
never see tensors.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from sim.engine.cohort import Cohort
from sim.engine.sequence import Sequence


class Chunk(NamedTuple):
    """Prefill of `tokens` tokens of `seq`, of which `past` are already in the cache.

    `width` is the number of tokens computed, more than `tokens` where a static batch pads its prompts. `samples` says
    whether this piece completes what is known, so that a next token comes out.
    """

    seq: Sequence
    tokens: int
    past: int
    width: int
    samples: bool


chunk_of = partial(tuple.__new__, Chunk)
"""`Chunk(*values)` from a tuple of its values, without the call that a named tuple's own constructor costs."""


class Move(NamedTuple):
    """KV of `tokens` tokens of `seq` that goes from device to host or back before the step.

    `blocks` are the blocks or slots where it lies or is to lie, in order, if the allocator knows them.
    """

    seq: Sequence
    tokens: int
    blocks: Seq[int] = ()


class Stay(NamedTuple):
    """A sequence's time in the cohort: from counter value `joined`, for `ticks` decode steps, with `Sequence.gains`."""

    seq: Sequence
    joined: int
    ticks: int
    gains: list[int] | None = None


class Drafts(NamedTuple):
    """Draft tokens of one step (speculative decoding).

    Attributes:
        rows, counts: the decoding sequences, and how many drafts of each are verified beside its own token.
        passes: how many drafts are proposed for the next step, one after another.
    """

    rows: Seq[Sequence]
    counts: Seq[int]
    passes: int


class Moves:
    """What few plans have beside their rows: memory that moves, is given up, or is shared.

    Attributes:
        copies: (source, destination) blocks to copy before the step.
        swapped_out, swapped_in: KV moved before the step.
        preempted: sequences that lost their KV or went to the host while this plan was made.
        left: stays in the cohort that ended by preemption while this plan was made.
        forked: parallel samples that were split off when their prompt was complete with this step.
    """

    __slots__ = ("copies", "forked", "left", "preempted", "swapped_in", "swapped_out")

    def __init__(self) -> None:
        self.copies: list[tuple[int, int]] = []
        self.swapped_out: list[Move] = []
        self.swapped_in: list[Move] = []
        self.preempted: list[Sequence] = []
        self.left: list[Stay] = []
        self.forked: list[Sequence] = []

    @property
    def swaps(self) -> list[Move]:
        """KV that is moved before the step, in either direction."""
        return self.swapped_out + self.swapped_in


NO_MOVES = Moves()
"""Stands in the plans that have none; never changed."""


class StepPlan:
    """One step, or `repeat` equal decode steps.

    Attributes:
        number: of this plan, from 0.
        tick: the cohort's counter before this step.
        cohort: the decoding sequences if each gets one token in this step, else None.
        rows, context: decoding rows that are computed, and the tokens they attend to together. Dead rows of a static batch
            are among them.
        chunks: prefill.
        moves: copies, swaps, preemptions and forks, or `NO_MOVES`.
        repeat: how many times in a row the step may be run as it is; executors that cannot, run it once.
        stretched: whether more than one step of it is in flight; they are counted when the first of them come back.
        drafts: what is verified and proposed, None without speculative decoding.
    """

    __slots__ = ("chunks", "cohort", "context", "drafts", "moves", "number", "repeat", "rows", "stretched", "tick")

    def __init__(
        self, number: int, tick: int, cohort: Cohort | None = None, rows: int = 0, context: int = 0,
        chunks: Seq[Chunk] = (), moves: Moves = NO_MOVES,
    ) -> None:  # fmt: skip
        self.number = number
        self.tick = tick
        self.cohort = cohort
        self.rows = rows
        self.context = context
        self.chunks = chunks
        self.moves = moves
        self.repeat = 1
        self.stretched = False
        self.drafts: Drafts | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to run."""
        return self.cohort is None and not self.chunks and not self.moves.swapped_out

    @property
    def copies(self) -> list[tuple[int, int]]:
        return self.moves.copies

    @property
    def swapped_out(self) -> list[Move]:
        return self.moves.swapped_out

    @property
    def swapped_in(self) -> list[Move]:
        return self.moves.swapped_in

    def last(self, steps: int) -> StepPlan:
        """The last of `steps` repetitions as a plan of its own."""
        context = self.context + (steps - 1) * self.rows
        return StepPlan(self.number, self.tick + steps - 1, self.cohort, self.rows, context)

    def decoding(self) -> list[Sequence]:
        """The sequences that decode in this step, for executors that need each of them."""
        return self.cohort.members if self.cohort else []


@dataclass(slots=True)
class StepOutcome:
    """What came of a plan.

    Attributes:
        ends: end time of every step that ran, at least one, at most `plan.repeat`.
        ended: sequences whose last token came with the last of these steps.
        ended_before: those whose last token came with the step before it. With two plans in flight a stretch goes on
            for one step after an answer has ended, as the engine does not know that yet.
        tokens: token ids by sequence, or None where tokens are only counted.
        gained: tokens that each of `plan.drafts.rows` got, at least one each. accepted: drafts of each that held, which may be
            more than it got where its answer ended; -1 for one whose answer had ended before. None without drafts.
    """

    ends: Seq[float]
    ended: Seq[Sequence]
    ended_before: Seq[Sequence] = ()
    tokens: dict[Sequence, int] | None = None
    gained: Seq[int] | None = None
    accepted: Seq[int] | None = None

    @property
    def steps(self) -> int:
        """How many steps ran."""
        return len(self.ends)

    def split(self) -> tuple[StepOutcome, StepOutcome]:
        """All steps but the last, and the last."""
        return StepOutcome(self.ends[:-1], self.ended_before), StepOutcome(self.ends[-1:], self.ended)


class Ticket(Protocol):
    """A plan on its way."""

    @property
    def steps(self) -> int:
        """How many steps it stands for."""


class Executor(Protocol):
    """Runs plans, in order. `submit` and `collect` are apart so that several may be in flight.

    Attributes:
        knows_lengths: whether the true length of answers is known beforehand, so that oracles are possible.

    One that is made for a number of plans in flight says so in an attribute `depth`; `make_engine` then holds the engine's to it.
    """

    knows_lengths: bool

    def start(self, seq: Sequence, output_tokens: int) -> None:
        """A sequence was accepted by the engine; its answer truly has `output_tokens` tokens (or is forced to)."""

    def submit(self, plan: StepPlan, now: float, until: float) -> Ticket:
        """Begin a plan.

        Args:
            now: seconds; when the plan was made.
            until: repeated steps need not go on once one of them ends at or after this time.

        Returns:
            A ticket for `collect`, whose `steps` says how many of the plan's steps it stands for.
        """

    def collect(self, ticket: Ticket) -> StepOutcome:
        """Wait for a plan, the oldest first."""

    def forked(self, child: Sequence, tick: int) -> None:
        """`child` got a copy of its parent's prompt and first token; it decodes from counter value `tick` on."""

    def forget(self, seq: Sequence) -> None:
        """A sequence is gone: finished, cancelled or refused."""


class LengthOracle(Protocol):
    """Tells the true length of an answer; for policies that no real engine can have."""

    def __call__(self, seq: Sequence) -> int:
        """Tokens of the whole answer of `seq`."""
