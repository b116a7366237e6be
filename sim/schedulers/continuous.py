"""Continuous (iteration-level) batching with whole prompts."""

from __future__ import annotations

from sim.engine.sequence import Sequence
from sim.engine.step import Step
from sim.schedulers.chunked import ChunkedPrefill


class ContinuousBatching(ChunkedPrefill):
    """After every step finished sequences leave and waiting ones may join, each prompt in one piece.

    With `prefill: mixed` prompts are computed beside the decodes (Orca, OSDI '22; TensorRT-LLM without chunked context). With
    `prefill: first` a step is all prompts or all decodes (vLLM v0, SGLang without chunking).
    """

    def admit(self, step: Step, seq: Sequence) -> bool:
        """Let a waiting sequence in if its prompt fits whole."""
        return step.admit(seq, whole=True)
