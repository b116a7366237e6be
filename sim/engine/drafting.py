"""Speculative decoding: sequences that may get several tokens of a step.

A decoding sequence computes its own next token and some drafts behind it, which something cheaper has guessed; the drafts that
the model would have chosen itself are kept, up to the first that it would not, and the model's own token follows (Leviathan et
al., ICML 2023). So a step gives each sequence between one token and one more than it had drafts. The engine is the same
engine, with three parts of it told otherwise:

* `DraftingCohort`: members gain different numbers of tokens, and so are touched one by one.
* `DraftingStep`: a member takes memory for its drafts before the step, as engines do (vLLM's lookahead slots), and `1 + drafts`
  tokens of the budget. Slots of drafts that did not hold are used again by the next step. No draft reaches past what a sequence
  may know, so that it needs no more memory than without.
* `DraftingEngine`: steps are taken one at a time, and counted with what came of them.

Nobody may hit a draft: allocators register what is computed, which counts verified tokens only. With two plans in flight the next
is planned before this one's drafts are verified; engines then take slots as if all of them held (vLLM's output placeholders), and
positions are set right on the device. A simulated engine takes those slots too, and counts at once what the executor knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any

from sim.config import EngineConfig, SpeculationConfig
from sim.engine.cohort import Cohort
from sim.engine.engine import Engine
from sim.engine.plan import Drafts, StepOutcome, StepPlan
from sim.engine.sequence import Sequence
from sim.engine.state import EngineState
from sim.engine.step import PlanError, Step


class DraftingCohort(Cohort):
    """Members decode together, each with its own number of tokens a step.

    That a member knows `base + tick` tokens holds here too: `base` moves with what it gains beside one token.

    Attributes:
        reach: members in the order in which they joined → tokens for which they have memory, as far as that is known.
    """

    uneven = True
    __slots__ = ("reach",)

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.reach: dict[Sequence, int] = {}

    @property
    def members(self) -> list[Sequence]:
        """All of them, in the order in which they joined."""
        return [*self.reach]

    def join(self, seq: Sequence) -> None:
        """Take in a sequence with exactly one token left to compute."""
        seq._base = seq._known - self.tick
        seq.cohort = self
        seq.join_tick = self.tick
        seq.gains = []
        seq.bucket = self.reach
        self.reach[seq] = 0
        self.size += 1
        self.context += seq._known

    def crossing(self, ahead: int = 0) -> dict[Sequence, int]:
        """Members that may need memory for a step to come: any of them."""
        return self.reach

    def gain(self, rows: Iterable[Sequence], gained: Seq[int]) -> None:
        """A step gave each of `rows` so many tokens. Who has left since it was planned gets none."""
        total = sum(gained)
        for seq, tokens in zip(rows, gained, strict=True):
            if seq.cohort is not None:
                seq.gains.append(tokens)
                if tokens != 1:
                    seq._base += tokens - 1
            else:
                total -= tokens
        self.tick += 1
        self.context += total


class DraftingStep(Step):
    """One step in the making, in which decoding sequences have drafts beside their next token.

    Args:
        speculation: how many. ahead: plans in flight, for all of which a sequence needs slots.
    """

    __slots__ = ("_ahead", "_drafts", "_fewer", "_speculation")

    def __init__(
        self, state: EngineState, gate: Any, victims: Any, register_now: bool, speculation: SpeculationConfig, ahead: int
    ) -> None:  # fmt: skip
        self._speculation, self._ahead = speculation, ahead
        super().__init__(state, gate, victims, register_now)

    def begin(self, now: float) -> None:
        """Start an empty plan."""
        super().begin(now)
        self._drafts = 0  # of every decoding sequence,
        self._fewer: dict[Sequence, int] = {}  # but for these

    def decode(self) -> bool:
        """Plan the next token of every decoding sequence and its drafts, taking memory from victims if there is too little.

        Drafts take what is left of the budget, in the order in which sequences began to decode.

        Returns:
            Whether anything decodes.
        """
        cohort = self._cohort
        if self._decoding:
            raise PlanError("a scheduler planned the decoding sequences twice in one step")
        drafts = self._wanted()
        self._reserve(drafts)
        if not cohort.size:
            return False
        self._decode_all(cohort)
        self._drafts = drafts
        total = drafts * cohort.size
        for fewer in self._fewer.values():
            total += fewer - drafts
        if total > self.budget:
            total = self._fit_budget()
        self.budget -= total
        return True

    def _wanted(self) -> int:
        """Drafts that a sequence may have in this step."""
        most = self._speculation.disable_by_batch_size
        return 0 if most and self._cohort.size > most else self._speculation.num_speculative_tokens

    def _reserve(self, drafts: int) -> None:
        """Memory for every member's next token and its drafts, in all plans in flight; fewer where it may not know as many."""
        cohort, preempts = self._cohort, False
        reach, most_ahead = cohort.reach, cohort.tick + drafts * self._ahead
        for seq, have in [*reach.items()]:
            most = seq._base + most_ahead
            if most < seq.limit:
                if most <= have:
                    continue
            elif preempts and seq.cohort is None:
                continue
            else:
                known = seq._base + cohort.tick
                most = max(seq.limit - 1, known)
                if most - known < drafts:
                    self._fewer[seq] = most - known
                if most <= have:
                    continue
            preempts = self._grow(seq, most) or preempts

    def _grow(self, seq: Sequence, tokens: int) -> bool:
        """Memory for `tokens` tokens of a member, unless it has to give up its own; whether anybody had to."""
        preempted = False
        while seq.cohort is not None:
            if self._allocator.grow(seq, tokens):
                size = self._cohort.block_size
                self._cohort.reach[seq] = -(-tokens // size) * size
                break
            self._give_back()
            preempted = True
        return preempted

    def _give_back(self) -> None:
        """Preempt one, or down to the rule's headroom."""
        state, headroom = self.state, self._victims.headroom
        self._preempt_one()
        while headroom and len(state.running) > 1 and state.allocator.available < state.cohort.size * headroom:
            self._preempt_one()

    def _fit_budget(self) -> int:
        """Share out what is left of the budget, first come first served; how much that is."""
        left = self.budget
        for seq in self._cohort.reach:
            count = min(self._fewer.get(seq, self._drafts), left)
            self._fewer[seq] = count
            left -= count
        return self.budget - left

    def preempt(self, seq: Sequence) -> None:
        """Take all memory from a running sequence, and its drafts out of the plan."""
        decoded = self._decoding and seq.cohort is not None
        super().preempt(seq)
        fewer = self._fewer.pop(seq, self._drafts)
        if decoded:
            self.budget += fewer

    def swap_in(self, seq: Sequence) -> bool:
        """Bring a swapped sequence back; it decodes in this step, without drafts, if the others do."""
        came = super().swap_in(seq)
        if came:
            self._fewer[seq] = 0
        return came

    def finish(self) -> StepPlan:
        """The plan as it stands."""
        plan = super().finish()
        rows = plan.decoding()
        drafts, fewer = self._drafts, self._fewer
        counts = [fewer.get(seq, drafts) for seq in rows] if fewer else [drafts] * len(rows)
        plan.drafts = Drafts(rows, counts, self._wanted())
        return plan


class DraftingEngine(Engine):
    """One replica with speculative decoding; see `Engine` for the arguments."""

    def __init__(self, config: EngineConfig, **parts: Any) -> None:
        super().__init__(config, **parts)
        state = self.state
        state.cohort = DraftingCohort(state.allocator.block_size)
        self._step = DraftingStep(
            state, parts["gate"], parts["victims"], self._registers_early, config.speculation, config.depth
        )  # fmt: skip
        self._stops_ahead = self._limits is not None
        self._limits, self._stretch = None, False

    def _advance(self, plan: StepPlan, steps: int, gained: Seq[int] | None = None) -> None:
        cohort = self.state.cohort
        if plan.cohort is not None:
            if gained is None:  # it has only been sent off
                gained = self._flights[-1][1].gained
            cohort.gain(plan.drafts.rows, gained)
        if plan.chunks:
            self._advance_prompts(plan)
        if self._stops_ahead:
            tick = cohort.tick
            self._drain([seq for seq in cohort.members if seq._base + tick >= seq.limit])

    def _commit(self, plan: StepPlan, outcome: StepOutcome, start: float) -> None:
        super()._commit(plan, outcome, start)
        if outcome.accepted:
            self.recorder.drafted(plan.drafts.counts, outcome.accepted)
