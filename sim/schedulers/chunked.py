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
        self._longest_piece = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self._refusals_stand = make_gate(config).steady
        self._latches = config.gate == "ratio"
        self._left_at_refusal = -1  # how many had left when somebody was refused last, where that latches
        self._last_prefill = 0  # how many decode steps there had been when prompts were worked on last

    def plan(self, step: Step) -> None:
        if self.config.prefill == "mixed":
            self._beside_decodes(step)
        else:
            self._before_decodes(step)

    def _beside_decodes(self, step: Step) -> None:
        state = step.state
        step.decode()
        if state.prefilling:
            self.go_on(step)
        if state.swapped:
            self.swap_in(step)
        if state.waiting and (self.config.admit_after_preemption or not step.preempted):
            self.fill(step)

    def _before_decodes(self, step: Step) -> None:
        state = step.state
        if (state.prefilling or state.waiting) and self.may_prefill(state):
            if state.prefilling:
                self.go_on(step)
            # A prompt that has just had to give its memory back would take it again here, and those who decode, and could
            # end and free some, would never come to. In engines of this kind only a decode step takes memory back.
            if state.waiting and not step.preempted:
                self.fill(step)
        if step.chunks:
            self._last_prefill = state.decode_steps
            return
        step.decode()
        if state.swapped:
            self.swap_in(step)

    def go_on(self, step: Step) -> None:
        """Go on with prompts part-way, in order of admission."""
        for seq in step.prefilling:
            if step.budget > 0 and seq.place == DEVICE:
                step.extend(seq, self._longest_piece)

    def fill(self, step: Step) -> None:
        """Admit waiting sequences in order, as far as budget, seats and memory last; the first refused blocks those behind it."""
        state, waiting = step.state, step.waiting
        if state.swapped or self.held_up(state):
            return
        most = self.config.max_partial_prefills
        limited = most < self.config.max_num_seqs
        part_way = sum(not step.completes(seq) for seq in state.prefilling) if limited else 0
        while waiting and step.budget > 0 and part_way < most:
            seq = self.candidate(step) if self.config.hold_shared else waiting.head()
            if seq is None:
                break
            if not self.admit(step, seq):
                if self._latches and state.blocked:
                    self._left_at_refusal = _left(state)
                break
            if limited:
                part_way += not step.completes(seq)
            if self._latches and self.held_up(state):
                break

    def candidate(self, step: Step) -> Sequence | None:
        """The first that need not wait for what is just being computed (TensorRT-LLM)."""
        head = step.waiting.head()
        if not step.awaits_prefix(head):
            return head
        return next((seq for seq in step.waiting if not step.awaits_prefix(seq)), None)

    def admit(self, step: Step, seq: Sequence) -> bool:
        """Let a waiting sequence in, with as much of its prompt as the budget has room for."""
        return step.admit(seq, most=self._longest_piece)

    def swap_in(self, step: Step) -> None:
        """Bring swapped sequences back, oldest first, unless this step had to preempt."""
        state = step.state
        while state.swapped and step.budget > 0 and not step.preempted and not state.blocked:
            if not step.swap_in(state.swapped[0]):
                break

    def held_up(self, state: EngineState) -> bool:
        if state.blocked:
            return self._refusals_stand or state.seats < 1
        return bool(state.running) and _left(state) == self._left_at_refusal

    def may_prefill(self, state: EngineState) -> bool:
        """Whether prompts may be worked on now.

        Always; with `prefill_wait_steps` (LightLLM) if nobody decodes, a prompt is part-way, or so many decode steps have passed.
        """
        wait = self.config.prefill_wait_steps
        return not wait or not state.cohort.size or bool(state.prefilling) or not self._waited(state)

    def _waited(self, state: EngineState) -> int:
        """Decode steps since prompts might last have been worked on."""
        return (state.decode_steps - self._last_prefill) % self.config.prefill_wait_steps

    def stable_steps(self, state: EngineState) -> int:
        steps = super().stable_steps(state)
        wait = self.config.prefill_wait_steps
        if steps == 1 and wait and self.config.prefill == "first" and not state.swapped:
            return wait - self._waited(state)
        return steps


def _left(state: EngineState) -> int:
    """How many of all that were ever admitted hold no memory any more."""
    return state.admissions - len(state.running)
