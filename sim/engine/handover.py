"""Engines that share the work on a request: one computes its prompt, another its answer.

The first keeps the memory of a prompt until its KV has left (`PrefillEngine`); the second sets memory aside before KV may
come, and decodes once it is there (`DecodeEngine`). How long KV is on its way is for whoever drives the two to say.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from sim.engine import refusals
from sim.engine.cutting import cut
from sim.engine.engine import Engine
from sim.engine.plan import StepOutcome, StepPlan
from sim.engine.sequence import DEVICE, NEVER, Sequence
from sim.kv.base import FOREVER, NO_HIT
from workloads.traffic import Request


class PrefillEngine(Engine):
    """Computes prompts and their first tokens; requests ask it for one token.

    vLLM's KV connectors keep the blocks of a finished request until they were fetched (`delay_free_blocks`,
    `vllm/v1/core/sched/scheduler.py`); SGLang keeps those in its queue of transfers in flight (`disaggregation/prefill.py`,
    which asks for one token as well). A seat in the batch is free at once.

    Attributes:
        last_piece: row → tokens of its prompt that its last step computed, of prompts that are kept.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._keep: set[int] = set()
        self._kept: dict[int, Sequence] = {}
        self.last_piece: dict[int, int] = {}

    def keep(self, row: int) -> None:
        """The KV of this request is to be kept when its prompt is computed, until `let_go`."""
        self._keep.add(row)

    def began(self, row: int) -> float:
        """When a request whose KV is kept was admitted, seconds."""
        return self._kept[row].admitted_at

    def let_go(self, row: int) -> None:
        """The KV of a request has left, or nobody will ask for it: its memory is free."""
        seq = self._kept.pop(row)
        self.last_piece.pop(row, None)
        del self.state.transit[seq]
        self.state.allocator.release(seq)
        self.state.blocked = False

    def _commit(self, plan: StepPlan, outcome: StepOutcome, start: float) -> None:
        for seq, tokens, _, _, samples in plan.chunks:
            if samples and seq.row in self._keep:
                self.last_piece[seq.row] = tokens
        super()._commit(plan, outcome, start)

    def _drop(self, seq: Sequence, now: float, finished: bool, keep: int = FOREVER) -> None:
        kept = seq.row in self._keep
        self._keep.discard(seq.row)
        if not (kept and finished and seq.place is DEVICE):
            super()._drop(seq, now, finished, keep)
            return
        state = self.state
        seq.alive = False
        self.executor.forget(seq)
        self.recorder.left(seq, now, True, True)
        state.allocator.settle(seq)
        if seq.cohort is not None:
            seq.cohort.leave(seq)
        elif seq in state.draining:
            del state.draining[seq]
        else:
            state.prefilling.remove(seq)
        state.unseat(seq)
        state.transit[seq] = None
        self._kept[seq.row] = seq

    def refuse_stuck(self) -> tuple[int, str] | None:
        """As `Engine.refuse_stuck`, but for prompts that wait for memory that is about to be free."""
        return None if self.state.transit else super().refuse_stuck()


class DecodeEngine(Engine):
    """Decodes what others have prefilled. A request that it is given waits until there is memory for its prompt, in order of
    arrival; then `on_reserved` is called, and whoever hears it says by `due` when the KV will be there.

    Memory is asked for as for a prompt of its own: seats, the gate, the pool. Who was preempted comes first, as in vLLM, whose
    waiting queue it heads, and in SGLang (`retracted_queue`). A preempted sequence is computed again here, or swapped.

    Attributes:
        with_token: whether the first token of the answer comes with the KV (SGLang, TensorRT-LLM); else the last token of the
            prompt is computed again here (vLLM: a prompt that is there whole counts as computed but for one token).
        on_reserved: called with a row, the tokens of its prompt that are not in the cache here, and the time.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.with_token = True
        self.on_reserved: Callable[[int, int, float], None] | None = None
        self._gate = self._step._gate
        self._longest_prompt = self.max_len  # it computes a prompt only after a preemption
        self._coming: list[tuple[float, int, Sequence]] = []  # when, number of the reservation
        self._reservations = 0
        self._left_at_refusal = -1
        self._awaited: dict[int, Sequence] = {}

    def submit(self, request: Request, now: float) -> str | None:
        """Take a request in whose prompt another engine has computed, or will."""
        if request.n > 1:
            return refusals.several_samples(request.n)
        reason = super().submit(request, now)
        if reason is None:
            seq = self._sequences[request.row]
            self.state.waiting.remove(seq)
            seq._known = seq.prompt_tokens + self.with_token
            self.state.expected.append(seq)
        return reason

    def due(self, row: int, when: float) -> None:
        """The KV of a request for which memory was set aside will be here at `when`."""
        heappush(self._coming, (when, self._reservations, self._awaited.pop(row)))
        self._reservations += 1

    def give_up(self, row: int, now: float) -> None:
        """The KV of a request for which memory was set aside will never come."""
        seq = self._awaited.pop(row)
        self.state.has_kv(seq)
        self.state.prefilling.append(seq)
        self._drop(seq, now, finished=False)
        del self._sequences[row]

    @property
    def next_coming(self) -> float:
        """When KV comes next, as far as that is known; infinity for never."""
        return self._coming[0][0] if self._coming else float("inf")

    def launch(self, now: float, until: float) -> bool:
        flights = self._flights
        if flights and (len(flights) >= self._depth or flights[-1][0].stretched):
            return False
        self._receive(now)
        if self.state.expected and self._reserve(now):
            self._receive(now)  # what is in the cache whole is there at once
        launched = super().launch(now, min(until, self.next_coming))
        if launched and self._coming:
            cut(self, self.next_coming, heed=True)
        if not launched and not flights and self._coming:
            self.wake_at = min(self.wake_at or self.next_coming, self.next_coming)
        return launched

    def _horizon(self) -> int:
        return 1 if self.state.expected and not self._gate.steady else super()._horizon()

    def _reserve(self, now: float) -> bool:
        """Set memory aside for those at the head of the queue; whether any got some."""
        state, allocator = self.state, self.state.allocator
        before = len(state.expected)
        while state.expected and not state.waiting and not state.swapped:
            left = state.admissions - len(state.running)
            if self._gate.steady and left == self._left_at_refusal and (state.running or state.transit):
                break
            seq = self._first()
            hit = allocator.lookup(seq) if allocator.shares else NO_HIT
            reach = seq._known - 1
            if state.seats < 1 or not self._gate.admits(seq, hit, reach, state) or not allocator.admit(seq, hit, reach):
                self._left_at_refusal = left
                break
            self._left_at_refusal = -1
            state.expected.remove(seq)
            seq._computed = seq.cached_tokens = hit.tokens
            seq.admitted_at = now
            seq.place = DEVICE
            state.await_kv(seq)
            self._awaited[seq.row] = seq
            self.on_reserved(seq.row, seq.prompt_tokens - hit.tokens, now)
        return len(state.expected) < before

    def _first(self) -> Sequence:
        """Who is asked for first."""
        if self.config.scheduler.policy == "priority":
            return min(self.state.expected, key=lambda seq: (seq.priority, seq.tie))
        return self.state.expected[0]

    def _receive(self, now: float) -> None:
        """Whose KV is here by `now` decodes from now on."""
        state = self.state
        while self._coming and self._coming[0][0] <= now:
            _, _, seq = heappop(self._coming)
            seq._computed = seq._known - 1
            state.has_kv(seq)
            seq.seated_in = self._step.number
            seq.token_at = now if self.with_token else NEVER
            if state.allocator.shares:
                state.allocator.computed(seq, seq._computed)
                state.blocked = False
            state.cohort.join(seq)
            if self._limits is not None:
                self._limits.expect(seq)
            self.executor.received(seq, state.cohort.tick, int(self.with_token))

    def refuse_stuck(self) -> tuple[int, str] | None:
        """As `Engine.refuse_stuck`; also for KV that memory was never set aside for though nothing runs."""
        state = self.state
        if self._flights or state.transit:
            return None
        if state.running or state.waiting or state.swapped or not state.expected:
            return super().refuse_stuck()
        seq = self._first()
        state.expected.remove(seq)
        seq.alive = False
        self.executor.forget(seq)
        self.recorder.left(seq, self._busy_until, False, False)
        del self._sequences[seq.row]
        return seq.row, refusals.never_admitted(seq, state)
