"""Victims: who gives memory back when a running sequence cannot grow."""

from __future__ import annotations

from typing import Protocol

from sim.engine.sequence import Sequence
from sim.engine.state import EngineState


class VictimRule(Protocol):
    """Chooses among the running sequences, but for those that have all their tokens and only wait for their last plan.

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
        return next((seq for seq in reversed(state.running) if seq not in state.draining), None)


class LowestPriority:
    """The least urgent, then the latest arrival (vLLM under priority)."""

    headroom = 0

    def choose(self, state: EngineState) -> Sequence | None:
        return max(_candidates(state), key=lambda seq: (seq.priority, seq.tie), default=None)


class FewestOutputs:
    """Who has generated least, ties to the longest prompt, until 20 steps are free for the rest (SGLang's retraction).

    As long as several decode, prompts part-way are spared: SGLang keeps them out of the batch that it retracts from.
    """

    headroom = 20

    def choose(self, state: EngineState) -> Sequence | None:
        members = state.cohort.members
        candidates = members if len(members) > 1 else _candidates(state)
        return min(candidates, key=lambda seq: (seq.generated, -seq.prompt_tokens, -seq.order), default=None)


class Nobody:
    """Never preempt; for gates that reserve everything."""

    headroom = 0

    def choose(self, state: EngineState) -> Sequence | None:
        return None


def _candidates(state: EngineState) -> list[Sequence]:
    return [seq for seq in state.running if seq not in state.draining]


VICTIMS = {
    "last-admitted": LastAdmitted,
    "lowest-priority": LowestPriority,
    "fewest-outputs": FewestOutputs,
    "none": Nobody,
}
