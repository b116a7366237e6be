"""Victims: who gives memory back when a running sequence cannot grow."""

from __future__ import annotations

from typing import Protocol

from sim.engine.sequence import Sequence
from sim.engine.state import EngineState


class VictimRule(Protocol):
    """Chooses among the running sequences.

    Attributes:
        headroom: decode steps for everyone that must be free before it stops choosing; 0 = what is needed now.
    """

    headroom: int

    def choose(self, state: EngineState) -> Sequence | None:
        """Who goes; None: nobody may."""


class LastAdmitted:
    """The most recently admitted (vLLM under fcfs, TensorRT-LLM's MAX_UTILIZATION, LightLLM)."""

    headroom = 0

    def choose(self, state: EngineState) -> Sequence | None:
        return next(reversed(state.running), None)


class LowestPriority:
    """The least urgent, then the latest arrival (vLLM under priority)."""

    headroom = 0

    def choose(self, state: EngineState) -> Sequence | None:
        return max(state.running, key=lambda seq: (seq.priority, seq.tie), default=None)


class FewestOutputs:
    """Who has generated least, ties to the longest prompt, until 20 steps are free for the rest (SGLang's retraction)."""

    headroom = 20

    def choose(self, state: EngineState) -> Sequence | None:
        return min(state.running, key=lambda seq: (seq.generated, -seq.prompt_tokens, seq.tie), default=None)


class Nobody:
    """Never preempt; for gates that reserve everything."""

    headroom = 0

    def choose(self, state: EngineState) -> Sequence | None:
        return None


VICTIMS = {
    "last-admitted": LastAdmitted,
    "lowest-priority": LowestPriority,
    "fewest-outputs": FewestOutputs,
    "none": Nobody,
}
