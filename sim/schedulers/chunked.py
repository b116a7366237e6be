"""Chunked prefill: prompts are cut to what is left of the step's token budget."""

from __future__ import annotations

from sim.config import SchedulerConfig
from sim.engine.sequence import DEVICE
from sim.engine.state import EngineState
from sim.engine.step import Step
from sim.schedulers.base import BuiltIn


class ChunkedPrefill(BuiltIn):
    """Decodes and prompt pieces share a budget of tokens.

    With `prefill: mixed` (vLLM v1, `vllm/v1/core/sched/scheduler.py`; Sarathi-Serve): whoever decodes gets a token, prompts
    part-way get what is left, then waiting ones are admitted while budget, seats and memory last; the head of the queue blocks
    those behind it.

    With `prefill: first` (SGLang without mixed chunks, LightLLM): as long as any prompt can be worked on, a step is prefill
    only and the decodes pause.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._prefilled_at = -config.prefill_wait_steps  # decode step of the last prefill

    def plan(self, step: Step) -> None:
        state = step.state
        if self.config.prefill == "mixed":
            step.decode()
            if state.swapped:
                self.swap_in(step)
            if state.prefilling or state.waiting:
                self.prefill(step)
            return
        if (state.prefilling or state.waiting) and self.may_prefill(state):
            self.prefill(step)
        if step.chunks:
            self._prefilled_at = state.decode_steps
        else:
            step.decode()
            if state.swapped:
                self.swap_in(step)

    def prefill(self, step: Step) -> None:
        """Go on with prompts part-way, then admit waiting ones."""
        state = step.state
        longest = self.config.long_prefill_token_threshold or self.config.max_num_batched_tokens
        unfinished = 0
        if state.prefilling:
            for seq in step.prefilling:
                if step.budget > 0 and seq.place == DEVICE:
                    step.extend(seq, longest)
            unfinished = sum(not step.completes(seq) for seq in state.prefilling)
        if step.preempted and not self.config.admit_after_preemption:
            return
        waiting = state.waiting
        while waiting and step.budget > 0 and not state.blocked and not state.swapped:
            if unfinished >= self.config.max_partial_prefills:
                break
            seq = waiting.head()
            if not step.admit(seq, most=longest):
                break
            unfinished += not step.completes(seq)

    def swap_in(self, step: Step) -> None:
        """Bring swapped sequences back, oldest first, unless this step had to preempt."""
        state = step.state
        while state.swapped and not step.preempted and not state.blocked:
            if not step.swap_in(state.swapped[0]):
                break

    def may_prefill(self, state: EngineState) -> bool:
        """Whether a prefill-only step is due: always, or (LightLLM) once the decodes had their steps since the last."""
        wait = self.config.prefill_wait_steps
        return (
            not wait
            or not state.cohort.size
            or bool(state.prefilling)
            or state.decode_steps - self._prefilled_at >= wait
        )

    def stable_steps(self, state: EngineState) -> int:
        steps = super().stable_steps(state)
        wait = self.config.prefill_wait_steps
        if steps == 1 and wait and not state.swapped:
            return max(1, wait - (state.decode_steps - self._prefilled_at))
        return steps
