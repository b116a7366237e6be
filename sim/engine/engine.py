"""The engine: choose a batch, have it run, hand out what came.

One loop serves the simulator and a real GPU; they differ in the executor and in the clock that whoever drives the engine
keeps. A driver calls

* `submit` when a request arrives and `cancel` when a client goes away,
* `launch` to plan a step and send it to the executor (up to `depth` may be in flight),
* `land` to take the oldest result back.

Three things happen to a plan. It is *planned*: the scheduler fills a step; memory and queues change at once. It *advances*: the
sequences count the tokens that the step computes, so that the next step can be planned, possibly before this one came back.
It is *committed*: end times are known, tokens are handed out, finished sequences leave. A row that finished while later plans
with it were already in flight is computed there for nothing, as in every engine that overlaps host and device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from sim.config import EngineConfig
from sim.engine import refusals
from sim.engine.limits import LimitCalendar
from sim.engine.plan import NO_MOVES, Executor, Moves, Stay, StepOutcome, StepPlan, Ticket
from sim.engine.recorder import Recorder
from sim.engine.sequence import DEVICE, HOST, NEVER, Sequence
from sim.engine.state import RESERVING, EngineState
from sim.engine.step import Step
from sim.kv.base import FOREVER, KVAllocator
from workloads.traffic import Request

if TYPE_CHECKING:
    from sim.schedulers.base import Scheduler
    from sim.schedulers.gates import Gate
    from sim.schedulers.queue import WaitingQueue
    from sim.schedulers.victims import VictimRule

_NEVER = float("inf")
_admission = attrgetter("order")
_PATIENCE = 20_000
"""Steps without a single token after which the engine is taken to be going in circles."""


class Engine:
    """One replica.

    Args:
        config: what was asked for; `config.depth` plans may be in flight.
        scheduler, gate, victims, queue: the policy.
        allocator: KV memory.
        executor: who runs the steps.
        recorder: where results go.
        max_len: longest sequence (prompt and answer) in tokens.
        host_tokens: tokens of KV that fit in host memory, for swapping.
        stretch: whether equal decode steps may be taken at once; the results are the same either way.

    Attributes:
        state: queues and memory.
        on_finish: called with a request's row and the time when its last token is handed out.
        held_back: whether answers are handed out only when their batch has ended (static batching without streaming).
        wake_at: a scheduler that waits on purpose wants to plan again at this time.
    """

    def __init__(
        self, config: EngineConfig, *, scheduler: Scheduler, gate: Gate, victims: VictimRule, queue: WaitingQueue,
        allocator: KVAllocator, executor: Executor, recorder: Recorder, max_len: int, host_tokens: int = 0,
        stretch: bool = True,
    ) -> None:  # fmt: skip
        self.config = config
        self.scheduler = scheduler
        self.executor = executor
        self.recorder = recorder
        self.max_len = max_len
        self.state = EngineState(config.scheduler, allocator, queue, host_tokens, gate.reads_totals)
        self.wake_at: float | None = None
        self.on_finish: Callable[[int, float], None] | None = None
        self.held_back = scheduler.retains_finished and not config.scheduler.streaming
        self._undelivered: list[int] = []
        self._registers_early = config.kv.register == "scheduled"
        self._step = Step(self.state, gate, victims, self._registers_early)
        self._stretch, self._heeds = stretch, True  # and whether the last stretch is to end for an arrival
        self._limits = LimitCalendar() if config.depth > 1 and config.stops_ahead else None
        self._flights: deque[tuple[StepPlan, Ticket, float]] = deque()  # plan, ticket, start
        self._ended_stays: list[tuple[Stay, float | None]] = []  # not yet recorded, with `_first_token`
        self._sequences: dict[int, Sequence | tuple[Sequence, ...]] = {}  # by row; several for parallel samples
        self._preempted: list[Sequence] = []  # not yet told to the executor
        self._depth = config.depth
        self._slabs = config.kv.allocator == "contiguous"
        self._waiting = queue
        # An engine that does not cut prompts turns away what is longer than a step (vLLM v0's `_schedule_prefills`;
        # TensorRT-LLM's `_check_arguments` in llmapi/llm.py: the whole prompt, cached parts too, against max_num_tokens).
        whole = config.scheduler.name == "continuous"
        self._longest_prompt = config.scheduler.max_num_batched_tokens if whole else max_len
        self._reserves = config.scheduler.gate in RESERVING
        # Sequences up to this long are served in any case, so that most are not looked at more closely.
        self._roomy = min(self._longest_prompt, getattr(allocator, "roomy", 0))
        self._tokenless = 0
        self._busy_until = 0.0

    # --- requests

    def submit(self, request: Request, now: float) -> str | None:
        """Take a request in.

        Returns:
            None, or why it can never be served.
        """
        row, _, inputs, outputs, declared, prompt, priority, n = request
        most = self.max_len - inputs
        if most < 1:
            return refusals.no_room(inputs, self.max_len)
        if declared > most:
            declared = most
        length = outputs if outputs < declared else declared
        seq = self._sequences[row] = Sequence(row, prompt, inputs, declared, now, priority)
        self.executor.start(seq, length)
        if seq.limit > self._roomy or n > 1 or self._slabs:
            if reason := self._unfit(seq, n):
                self.executor.forget(seq)
                del self._sequences[row]
                return reason
            self._sample(seq, n, length)
        self._waiting.push(seq)
        if not self._waiting.indifferent:
            self.state.blocked = False
        return None

    def _unfit(self, seq: Sequence, n: int) -> str | None:
        """Why a request of `n` samples can never be served."""
        state = self.state
        if seq.prompt_tokens > self._longest_prompt:
            return refusals.prompt_too_long(seq.prompt_tokens, self._longest_prompt)
        reason = state.allocator.fits(seq)
        if not reason and (n > 1 or self._reserves):
            reason = refusals.too_much(seq, n, state, self._reserves)
        return reason

    def _sample(self, seq: Sequence, n: int, length: int) -> None:
        """Make the other samples of a request, and note the lengths of slabs."""
        if n > 1:
            seq.siblings = tuple(
                Sequence(seq.row, seq.prompt, seq.prompt_tokens, seq.max_tokens, seq.arrival, seq.priority, sample)
                for sample in range(1, n)
            )
            self._sequences[seq.row] = (seq, *seq.siblings)
            for sibling in seq.siblings:
                self.executor.start(sibling, length)
        if self._slabs:
            for each in self._samples(seq.row):
                self.recorder.accepted(each, length)

    def _samples(self, row: int) -> tuple[Sequence, ...]:
        here = self._sequences[row]
        return here if isinstance(here, tuple) else (here,)

    def cancel(self, row: int, now: float) -> bool:
        """Drop a request and free its memory at once; False if it is not here."""
        if row not in self._sequences:
            return False
        for seq in self._samples(row):
            if seq.alive:
                self._record_what_came(seq)
                self._drop(seq, now, finished=False)
        del self._sequences[row]
        if self._undelivered and not self.state.running:
            self._deliver(now)
        return True

    def _record_what_came(self, seq: Sequence) -> None:
        """Of a sequence that is to be cancelled: what is still in flight is not handed out any more."""
        landed = len(self.recorder.step_ends)
        stays = [entry for entry in self._ended_stays if entry[0].seq is seq]
        self._ended_stays = [entry for entry in self._ended_stays if entry[0].seq is not seq]
        if seq.cohort is not None or seq in self.state.draining:
            stay = Stay(seq, seq.join_tick, seq.known - seq._base - seq.join_tick, seq.gains)
            stays.append((stay, self._first_token(seq)))
        for (_, joined, ticks, gains), start in stays:
            if start is not None:
                self.recorder.segment(seq, joined, min(ticks, landed - joined), start, gains)

    def _first_token(self, seq: Sequence) -> float | None:
        """When the present stay of a decoding sequence gave its first token, NaN if none; None if that is still in flight."""
        for plan, _, _ in self._flights:
            begun = (
                *(chunk.seq for chunk in plan.chunks if chunk.samples),
                *plan.moves.forked,
                *(move.seq for move in plan.moves.swapped_in),
            )
            if seq in begun:
                return None
        return seq.token_at

    def unfinished_rows(self) -> list[int]:
        """Rows of requests that are here and not complete."""
        return [*self._sequences, *self._undelivered]

    @property
    def idle(self) -> bool:
        """Whether nothing waits, runs or is in flight."""
        return not self._flights and self.state.idle

    @property
    def in_flight(self) -> int:
        """Plans that were launched and have not landed."""
        return len(self._flights)

    # --- steps

    def launch(self, now: float, until: float) -> bool:
        """Plan a step and send it off, unless nothing can run or `depth` plans are in flight.

        Args:
            until: when something from outside may next happen; a stretch of equal steps need not go on past it.
        """
        flights = self._flights
        if flights and (len(flights) >= self._depth or flights[-1][0].stretched):
            return False
        step = self._step
        while True:
            step.begin(now)
            self.scheduler.plan(step)
            plan = step.finish()
            preempted = plan.moves.preempted
            if preempted:
                self._note_preempted(plan, now)
            if plan.cohort is not None or not plan.empty:
                break
            if not preempted:
                self.wake_at = step.wake_at
                return False
        step.number += 1
        if step.touched:
            if step.resumed or self._slabs:
                for seq in step.admitted:
                    self.recorder.seated(seq, now)
        elif self._stretch and not self._preempted:
            if now >= self.recorder.due:
                self.recorder.sample(now, self.state)
            plan.repeat = self._horizon()
            if plan.repeat > 1:
                self._heeds = self.scheduler.arrival_matters(self.state)
                until = until if self._heeds else _NEVER
        if self._preempted:
            self._tell_preempted(plan)
        ticket = self.executor.submit(plan, now, until)
        flights.append((plan, ticket, now if now > self._busy_until else self._busy_until))
        if self._depth > 1:
            plan.stretched = ticket.steps > 1
            if not plan.stretched:
                self._advance(plan, 1)
        return True

    def _horizon(self) -> int:
        """For how many steps nothing but arrivals and finishes can change the plan."""
        state = self.state
        steps = self.scheduler.stable_steps(state)
        if steps <= 1:
            return 1
        if self._limits is not None:
            to_limit = self._limits.steps_from(state.cohort.tick)
            if to_limit is not None and to_limit < steps:
                steps = to_limit
        memory = state.allocator.stable_steps(state.cohort)
        return memory if memory < steps else steps

    def _note_preempted(self, plan: StepPlan, now: float) -> None:
        for seq in plan.moves.preempted:
            self.recorder.preempted(seq, now)
        self._preempted += plan.moves.preempted
        self._ended_stays += [(stay, self._first_token(stay.seq)) for stay in plan.moves.left]

    def _tell_preempted(self, plan: StepPlan) -> None:
        """The executor learns of all who were preempted since the last plan that is run."""
        if plan.moves is NO_MOVES:
            plan.moves = Moves()
        plan.moves.preempted, self._preempted = self._preempted, []

    def collect(self) -> StepOutcome:
        """Wait for the oldest plan in flight; it stays in flight until `land` commits it.

        Of a stretch with another plan allowed in flight, all steps but the last come first; the last one then is that plan.
        """
        plan, ticket, start = self._flights[0]
        outcome = self.executor.collect(ticket)
        if not plan.stretched:
            return outcome
        self._advance(plan, outcome.steps)
        head, tail = outcome.split()
        self.recorder.watch_end(plan, max(start, self._busy_until), head.ends, self.state)
        self._flights[0] = (plan, head, start)
        self._flights.append((plan.last(len(outcome.ends)), tail, head.ends[-1]))
        plan.stretched = False
        return head

    def land(self, outcome: StepOutcome) -> float:
        """Commit the oldest plan in flight with what came of it; the time at which its last step ended."""
        plan, _, start = self._flights.popleft()
        if self._depth == 1:
            self._advance(plan, len(outcome.ends), outcome.gained)
            if len(outcome.ends) > 1:
                self.recorder.watch_end(plan, start, outcome.ends, self.state)
        self._commit(plan, outcome, start)
        return outcome.ends[-1]

    def _advance(self, plan: StepPlan, steps: int, gained: Iterable[int] | None = None) -> None:
        """Count what the plan computes; `gained` as in its outcome, if that is here."""
        state = self.state
        cohort = state.cohort
        if plan.cohort is not None:
            if steps > 1:
                state.allocator.replay(cohort, steps - 1)
            cohort.advance(steps)
        if plan.chunks:
            self._advance_prompts(plan)
        if self._limits is not None and cohort.tick in self._limits.by_tick:
            self._drain(self._limits.reached(cohort.tick))

    def _advance_prompts(self, plan: StepPlan) -> None:
        state, limits, late = self.state, self._limits, not self._registers_early
        allocator = state.allocator
        for seq, tokens, _, _, samples in plan.chunks:
            if not seq.alive:  # cancelled while its plan was in flight
                continue
            seq._computed += tokens
            if late:
                allocator.computed(seq, seq._computed)
            if samples:
                state.prefilling.remove(seq)
                seq._known += 1
                state.cohort.join(seq)
                if limits is not None:
                    limits.expect(seq)
                if seq.siblings:
                    self._fork(plan, seq)
        if allocator.shares:
            state.blocked = False  # what was computed may now be hit

    def _fork(self, plan: StepPlan, seq: Sequence) -> None:
        """Split parallel samples off a prompt that is complete; who finds no memory waits and computes it again."""
        state = self.state
        for child in seq.siblings:
            copies = state.allocator.fork(seq, child)
            if copies is None:
                state.waiting.put_back(child, "head")
                continue
            child._known, child._computed = seq.known, seq.computed
            state.seat(child)
            child.seated_in = plan.number
            state.cohort.join(child)
            if self._limits is not None:
                self._limits.expect(child)
            self.executor.forked(child, state.cohort.tick)
            self._step.copies += copies
        if plan.moves is NO_MOVES:
            plan.moves = Moves()
        plan.moves.forked += [child for child in seq.siblings if child.cohort is not None]
        state.disperse(seq)

    def _drain(self, full: list[Sequence]) -> None:
        """Those who have all they declared are not planned again; their memory goes when the plan comes back."""
        state = self.state
        cohort, settle = state.cohort, state.allocator.settle
        for seq in full:
            settle(seq)
            cohort.leave(seq)
            state.draining[seq] = None

    def _commit(self, plan: StepPlan, outcome: StepOutcome, start: float) -> None:
        """Hand out tokens and let the finished go."""
        recorder = self.recorder
        ends = outcome.ends
        if start < self._busy_until:  # it was launched while the plan before it ran
            start = self._busy_until
        now = self._busy_until = ends[-1]
        after = plan.tick
        sampled = plan.cohort is not None
        if sampled:
            after += len(ends)
        for seq, _, _, _, samples in plan.chunks:
            if samples:
                seq.token_at = now
                sampled = True
        if plan.moves is not NO_MOVES:
            for child in plan.moves.forked:
                child.token_at = now
                recorder.seated(child, now)
            for move in plan.moves.swapped_in:
                move.seq.token_at = NEVER  # it comes back with its tokens; the next comes with a decode step
        ended = outcome.ended
        if self._ended_stays:
            self._note_stays(after, ended)
        if len(ended) > 1:  # whose memory is free first must not hang on the executor
            ended = sorted(ended, key=_admission)
        for seq in ended:
            if seq.alive and seq.order >= 0:  # a sample that found no memory to split off into has had no token yet
                self._finish(seq, plan, after, now)
        if self._undelivered and not self.state.running:
            self._deliver(now)
        ahead = bool(self._flights) and self._flights[-1][0].stretched  # the state is at the end of a stretch to come
        recorder.stepped(plan, start, ends, None if ahead else self.state)
        if sampled:
            self._tokenless = 0
        else:
            self._count_tokenless()

    def _count_tokenless(self) -> None:
        self._tokenless += 1
        if self._tokenless > _PATIENCE:
            raise refusals.in_circles(_PATIENCE, self.state)

    def _note_stays(self, after: int, ended: Iterable[Sequence]) -> None:
        """Record stays that ended by preemption; of an answer that had ended before, only what belongs to it."""
        over = set(ended)
        for (seq, joined, ticks, gains), start in self._ended_stays:
            if start is None:  # it was in flight, and this is the plan that it came back with
                start = seq.token_at
            self.recorder.segment(seq, joined, min(ticks, after - joined) if seq in over else ticks, start, gains)
        self._ended_stays.clear()

    def _finish(self, seq: Sequence, plan: StepPlan, after: int, now: float) -> None:
        """Let a sequence go that finished with this plan; `after` is the counter right after its last token.

        A later plan, not knowing, may have taken it in again; then its answer is recorded already.
        """
        state = self.state
        keep = FOREVER
        if seq.seated_in <= plan.number and (seq.cohort is not None or seq in state.draining):
            self.recorder.segment(seq, seq.join_tick, after - seq.join_tick, seq.token_at, seq.gains)
            keep = seq.known_at(after) - 1  # what later plans computed for it, not knowing, is no part of its answer
        self._drop(seq, now, True, keep)
        row = seq.row
        if self._sequences[row] is seq or not any(each.alive for each in self._samples(row)):  # all its samples
            del self._sequences[row]
            if self.held_back:
                self._undelivered.append(row)
            elif self.on_finish is not None:
                self.on_finish(row, now)

    def _deliver(self, now: float) -> None:
        """A batch has ended: hand its answers out."""
        for row in self._undelivered:
            self.recorder.deliveries.add((row, now))
            if self.on_finish is not None:
                self.on_finish(row, now)
        self._undelivered.clear()

    def _drop(self, seq: Sequence, now: float, finished: bool, keep: int = FOREVER) -> None:
        """Take a sequence out of wherever it is; its first `keep` tokens may stay cached."""
        state = self.state
        seq.alive = False
        place = seq.place
        self.executor.forget(seq)
        self.recorder.left(seq, now, finished, place is DEVICE)
        if place is DEVICE:
            if finished and self.scheduler.retains_finished:
                state.allocator.settle(seq)
                state.retained.append(seq)
            else:
                state.allocator.release(seq, keep)
            if seq.cohort is not None:
                seq.cohort.leave(seq)
            elif seq in state.draining:
                del state.draining[seq]
            else:
                state.prefilling.remove(seq)
            state.unseat(seq)
        elif place == HOST:
            state.swapped.remove(seq)
            state.host_free += seq.computed
            state.blocked = False
        elif seq in state.waiting:
            state.waiting.remove(seq)
            state.blocked = False

    # --- trouble

    def refuse_stuck(self) -> tuple[int, str] | None:
        """When nothing is in flight and the scheduler planned nothing: give up on whoever is first.

        That is the first of the running, whom the scheduler gave no work, or else the head of the queue, never admitted.

        Returns:
            Its row and the reason, or None if nobody is here.
        """
        state = self.state
        if self._flights or not (state.running or state.waiting or state.swapped):
            return None
        if state.running:
            seq = next(iter(state.running))
            reason = refusals.no_work(seq, state)
        else:
            seq = state.swapped[0] if state.swapped else state.waiting.head()
            reason = refusals.never_admitted(seq, state)
        for each in self._samples(seq.row):
            if each.alive:
                self._drop(each, self._busy_until, finished=False)
        del self._sequences[seq.row]
        return seq.row, reason
