"""The simulator's executor, with tokens that look like some: prompts of real ids, answers of filler words.

Prompts share what their token ids share, and answers join them, so that a prefix cache hits what a real one would.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from typing import Any
from weakref import WeakKeyDictionary

from backends.sim.executor import SimExecutor
from sim.cost.base import CostModel
from sim.engine.plan import StepOutcome, StepPlan
from sim.engine.sequence import Sequence
from workloads.traffic import Span

_MIX, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


class Spoken:
    """Token ids of a sequence, as the token allocators of the real engine read them.

    Args:
        prompt: ids of the prompt.
        fillers: ids that answers are made of.
        key: decides which of them come; equal keys, equal answers.

    Attributes:
        ids: of the prompt and of the answer so far.
        left: tokens of the answer that are still to come.
        finish: why it ends when none is left: `length` or `stop`.
    """

    __slots__ = ("__weakref__", "_fillers", "_key", "_prompt", "_spans", "finish", "ids", "left")

    def __init__(self, prompt: Seq[int], fillers: Seq[int], key: int, finish: str, length: int) -> None:
        self.ids = array("q", prompt)
        self.left = length
        self.finish = finish
        self._prompt = len(self.ids)
        self._fillers, self._key = fillers, key
        self._spans: list[Span] = []

    def next(self) -> int:
        """One more token of the answer."""
        token = filler(self._fillers, self._key, len(self.ids) - self._prompt)
        self.ids.append(token)
        self.left -= 1
        return token

    def spell_out(self) -> list[Span]:
        """All tokens so far as spans of one token each, whose content is the token id; not to be changed."""
        spans = self._spans
        spans += [Span(token, 0, 1) for token in self.ids[len(spans) :]]
        return spans


def filler(fillers: Seq[int], key: int, place: int) -> int:
    """Token number `place` of the answer that `key` stands for."""
    mixed = ((key + place + 1) * _MIX) & _MASK
    return fillers[(mixed ^ (mixed >> 31)) % len(fillers)]


class FillerExecutor(SimExecutor):
    """An executor that prices steps and makes words up.

    Attributes:
        book: the tokens of every sequence that is alive.
        prompts: whether the plan that came back last computes prompts. decoded: tokens that it gave decoding sequences.
    """

    def __init__(self, cost: CostModel, depth: int = 1) -> None:
        super().__init__(cost, depth)
        self.book: WeakKeyDictionary[Sequence, Spoken] = WeakKeyDictionary()
        self.prompts, self.decoded = False, 0
        self._given: dict[int, tuple[Seq[int], Seq[int], int, str]] = {}
        self._sent: dict[int, tuple[list[Sequence], list[Sequence], bool]] = {}

    def give(self, row: int, prompt: Seq[int], fillers: Seq[int], key: int, finish: str = "length") -> None:
        """Say what request `row` contains and what it will be answered, before the engine gets it."""
        self._given[row] = prompt, fillers, key, finish

    def start(self, seq: Sequence, output_tokens: int) -> None:
        super().start(seq, output_tokens)
        self.book[seq] = Spoken(*self._given.pop(seq.row), output_tokens)

    def submit(self, plan: StepPlan, now: float, until: float) -> StepOutcome:
        sampled = [chunk.seq for chunk in plan.chunks if chunk.samples]
        decoding = plan.decoding()
        outcome = super().submit(plan, now, until)
        self._sent[id(outcome)] = decoding, sampled, bool(plan.chunks)
        return outcome

    def collect(self, ticket: Any) -> StepOutcome:
        decoding, sampled, self.prompts = self._sent.pop(id(ticket))
        ticket.tokens = self._tokens(decoding)
        self.decoded = len(ticket.tokens)
        ticket.tokens |= self._tokens(sampled)
        return ticket

    def _tokens(self, told: list[Sequence]) -> dict[Sequence, int]:
        """A token for each whose answer did not end with the plan before, which was not known when this one was made."""
        book = self.book
        return {seq: mine.next() for seq in told if (mine := book.get(seq)) is not None and mine.left}
