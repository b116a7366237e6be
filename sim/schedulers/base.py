"""What a scheduler is: a method that fills a step, and two honest words about the future."""

from __future__ import annotations

from sim.config import SchedulerConfig
from sim.engine.state import EngineState
from sim.engine.step import Step
from sim.kv.base import FOREVER


class Scheduler:
    """Base of all schedulers; a plug-in overrides `plan` and need not touch anything else.

    `plan` acts only through the step it is handed, must be deterministic, and sees no true lengths. Three smaller decisions
    are set apart from it, each replaceable by configuration: the gate (may a sequence be admitted?), the order of the
    waiting queue, and the victim rule (who gives memory back?).

    Attributes:
        config: settings.
        retains_finished: finished sequences keep their memory until the scheduler calls `step.release_retained()`.
    """

    retains_finished = False

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config

    def plan(self, step: Step) -> None:
        """Fill the step: decode, extend prompts, admit, preempt."""
        raise NotImplementedError

    def stable_steps(self, state: EngineState) -> int:
        """For how many steps, beginning with the decode-only step just planned, `plan` would choose the same again if nobody
        arrives, finishes or runs out of memory. 1 is always right, and merely slower."""
        return 1

    def arrival_matters(self, state: EngineState) -> bool:
        """Whether an arrival could change the next plan; if not, the engine need not stop for it."""
        return True


class BuiltIn(Scheduler):
    """What the built-in schedulers know about their own constancy."""

    def held_up(self, state: EngineState) -> bool:
        """Whether somebody was refused, and nothing has changed since that could let anybody in."""
        return state.blocked

    def stable_steps(self, state: EngineState) -> int:
        return FOREVER if not (state.waiting or state.swapped) or self.held_up(state) else 1

    def arrival_matters(self, state: EngineState) -> bool:
        return not ((state.waiting or state.swapped) and state.waiting.indifferent and self.held_up(state))
