"""Continuous (iteration-level) batching with whole prompts."""

from __future__ import annotations

from sim.engine.step import Step
from sim.schedulers.chunked import ChunkedPrefill


class ContinuousBatching(ChunkedPrefill):
    """After every step finished sequences leave and waiting ones may join, each prompt in one piece.

    With `prefill: mixed` prompts are computed beside the decodes (Orca, OSDI '22; TensorRT-LLM without chunked context). With
    `prefill: first` a step is all prompts or all decodes (vLLM v0, SGLang without chunking).
    """

    def prefill(self, step: Step) -> None:
        """Admit waiting prompts in order while each fits whole."""
        if step.preempted and not self.config.admit_after_preemption:
            return
        state = step.state
        waiting = state.waiting
        while waiting and step.budget > 0 and not state.blocked and not state.swapped:
            if not step.admit(waiting.head(), whole=True):
                break
