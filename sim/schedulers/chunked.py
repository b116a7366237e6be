"""Chunked prefill: prompts are cut to what is left of the step's token budget."""

from __future__ import annotations

from sim.config import SchedulerConfig
from sim.engine.sequence import DEVICE, Sequence
from sim.engine.state import EngineState
from sim.engine.step import Step
from sim.schedulers.base import BuiltIn
from sim.schedulers.gates import make_gate


class ChunkedPrefill(BuiltIn):
    """Decodes and prompt pieces share a budget of tokens.

    With `prefill: mixed` (vLLM v1, `vllm/v1/core/sched/scheduler.py`; Sarathi-Serve): whoever decodes gets a token, prompts
    part-way get what is left, then waiting ones are admitted while budget, seats and memory last; the head of the queue blocks
    those behind it.

    With `prefill: first` (SGLang without mixed chunks, LightLLM): as long as any prompt can be worked on, a step is prefill
    only and the decodes pause.

    With gate `ratio` a refusal latches, as in SGLang (`batch_is_full`): nobody is admitted before somebody has left.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._prefilled_at = 0  # decode step before which the last prefill was
        self._longest = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self._steady = make_gate(config).steady
        self._latches = config.gate == "ratio"
        self._full_since = -1  # how many had left when somebody was refused last, where that latches

    def plan(self, step: Step) -> None:
        state = step.state
        if self.config.prefill == "mixed":
            step.decode()
            if state.prefilling:
                self.go_on(step)
            if state.swapped:
                self.swap_in(step)
            if state.waiting:
                self.fill(step)
            return
        if (state.prefilling or state.waiting) and self.may_prefill(state):
            if state.prefilling:
                self.go_on(step)
            if state.waiting:
                self.fill(step)
        if step.chunks:
            self._prefilled_at = state.decode_steps
        else:
            step.decode()
            if state.swapped:
                self.swap_in(step)

    def go_on(self, step: Step) -> None:
        """Go on with prompts part-way, in order of admission."""
        for seq in step.prefilling:
            if step.budget > 0 and seq.place == DEVICE:
                step.extend(seq, self._longest)

    def fill(self, step: Step) -> None:
        """Admit waiting sequences in order, as far as budget, seats and memory last; the first refused blocks those behind it."""
        state, waiting = step.state, step.waiting
        if step.preempted and not self.config.admit_after_preemption:
            return
        if state.swapped or self.held_up(state):
            return
        limited = self.config.max_partial_prefills < self.config.max_num_seqs
        unfinished = sum(not step.completes(seq) for seq in state.prefilling) if limited else 0
        while waiting and step.budget > 0:
            if limited and unfinished >= self.config.max_partial_prefills:
                break
            seq = self.next(step) if self.config.hold_shared else waiting.head()
            if seq is None:
                break
            if not self.admit(step, seq):
                self._note_refusal(state)
                break
            if limited:
                unfinished += not step.completes(seq)
            if self._latches and self.held_up(state):
                break

    def next(self, step: Step) -> Sequence | None:
        """The first that need not wait for what is just being computed (TensorRT-LLM)."""
        head = step.waiting.head()
        if not step.awaits_prefix(head):
            return head
        return next((seq for seq in step.waiting if not step.awaits_prefix(seq)), None)

    def admit(self, step: Step, seq: Sequence) -> bool:
        """Let a waiting sequence in, with as much of its prompt as the budget has room for."""
        return step.admit(seq, most=self._longest)

    def swap_in(self, step: Step) -> None:
        """Bring swapped sequences back, oldest first, unless this step had to preempt."""
        state = step.state
        while state.swapped and step.budget > 0 and not step.preempted and not state.blocked:
            if not step.swap_in(state.swapped[0]):
                break

    def held_up(self, state: EngineState) -> bool:
        if state.blocked:
            return self._steady or state.seats < 1
        return self._full_since == state.admissions - len(state.running) and bool(state.running)

    def _note_refusal(self, state: EngineState) -> None:
        if self._latches and state.blocked:
            self._full_since = state.admissions - len(state.running)

    def may_prefill(self, state: EngineState) -> bool:
        """Whether a prefill-only step may be tried: always, or (LightLLM) right after another, then every so many decodes."""
        return (
            not self.config.prefill_wait_steps
            or not state.cohort.size
            or bool(state.prefilling)
            or not self._waited(state)
        )

    def _waited(self, state: EngineState) -> int:
        """Decode steps since prefilling was last due."""
        return (state.decode_steps - self._prefilled_at) % self.config.prefill_wait_steps

    def stable_steps(self, state: EngineState) -> int:
        steps = super().stable_steps(state)
        wait = self.config.prefill_wait_steps
        if steps == 1 and wait and self.config.prefill == "first" and not state.swapped:
            return wait - self._waited(state)
        return steps
