"""Runs plans with drafts against a cost model: how many of them hold is drawn, and time is computed.

It alone knows which drafts hold, as it alone knows how long answers are.
"""

from __future__ import annotations

from typing import Any

from backends.sim.acceptance import Acceptance
from backends.sim.executor import SimExecutor, shape_of
from sim.engine.plan import StepOutcome, StepPlan
from sim.engine.sequence import Sequence


class DraftingExecutor(SimExecutor):
    """An executor in virtual time for engines with speculative decoding.

    Args:
        acceptance: which drafts hold.
    """

    def __init__(self, cost: Any, depth: int = 1, *, acceptance: Acceptance) -> None:
        super().__init__(cost, depth)
        self._acceptance = acceptance
        self._left: dict[Sequence, int] = {}  # tokens still to come, of those whose answer has not ended
        self._held: dict[Sequence, list[int]] = {}

    def forget(self, seq: Sequence) -> None:
        super().forget(seq)
        self._left.pop(seq, None)
        self._held.pop(seq, None)

    def _expect(self, seq: Sequence, tick: int, left: int) -> None:
        self._left[seq] = left
        if seq not in self._held:
            self._held[seq] = self._acceptance.held(seq, self._lengths[seq])

    def _strike(self, seq: Sequence) -> None:
        self._left.pop(seq, None)

    def _decode(self, plan: StepPlan, start: float, until: float, ended: list[Sequence]) -> StepOutcome:
        remaining, lengths, held = self._left, self._lengths, self._held
        gained: list[int] = []
        accepted: list[int] = []
        for seq, drafts in zip(plan.drafts.rows, plan.drafts.counts, strict=True):
            left = remaining.get(seq)
            if left is None:  # its answer has ended, which was not known when this was planned
                gained.append(1)
                accepted.append(-1)
                continue
            hold = held[seq][lengths[seq] - left]
            if hold > drafts:
                hold = drafts
            accepted.append(hold)
            if hold + 1 < left:
                gained.append(hold + 1)
                remaining[seq] = left - hold - 1
            else:
                gained.append(left)
                del remaining[seq]
                ended.append(seq)
        end = start + self._cost.step_seconds(shape_of(plan))
        return StepOutcome((end,), ended, gained=gained, accepted=accepted)
