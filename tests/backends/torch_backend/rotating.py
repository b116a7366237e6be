"""A scheduler of somebody's own: every few steps one decoding sequence makes room for another that waits on the host."""

from __future__ import annotations

from sim.engine.step import Step
from sim.schedulers import ChunkedPrefill


class Rotating(ChunkedPrefill):
    """What goes out and what comes in change places in one step."""

    def plan(self, step: Step) -> None:
        state = step.state
        if state.decode_steps % 3 or state.waiting or state.prefilling or state.cohort.size < 2:
            super().plan(step)
            return
        step.decode()
        oldest = next(iter(state.cohort.members))
        swapped = list(state.swapped)
        step.preempt(oldest)
        if swapped and swapped[0] in state.swapped:
            step.swap_in(swapped[0])

    def swap_in(self, step: Step) -> None:
        """Only by turns, unless nothing else is left."""
        if step.state.cohort.size < 2:
            super().swap_in(step)

    def stable_steps(self, state) -> int:
        return 1
