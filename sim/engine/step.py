"""The step builder: the only hands a scheduler has.

A scheduler looks at the state and calls `decode`, `extend`, `admit`, `swap_in` and `preempt`. Each changes memory and queues
at once and writes itself into the plan, so that the next call sees what is left. Nothing is allocated anywhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.engine.plan import NO_MOVES, Chunk, Move, Moves, Stay, StepPlan, chunk_of
from sim.engine.sequence import DEVICE, HOST, NOWHERE, Sequence
from sim.engine.state import EngineState
from sim.kv.base import NO_HIT
from workloads.errors import TwinserveError

if TYPE_CHECKING:
    from sim.engine.cohort import Cohort
    from sim.schedulers.gates import Gate
    from sim.schedulers.victims import VictimRule


UNBOUNDED = 1 << 60
"""More tokens than any budget."""


class PlanError(TwinserveError):
    """A scheduler asked for something that no step can do; a fault of the plug-in, not of the input."""


class Step:
    """One step in the making.

    Attributes:
        state: everything that may be looked at.
        now: seconds.
        number: of the plan in the making, from 0.
        budget: tokens that may still be scheduled.
        touched: whether anything but decoding was planned.
        admitted: who got memory in this step, in order. copies: block copies to go with the next plan that is run.
        resumed: whether any of them had memory before.
        wake_at: set by a scheduler that waits on purpose: plan again at this time even if nothing happens.
    """

    __slots__ = (
        "_allocator",
        "_budget",
        "_chunks",
        "_cohort",
        "_computing",
        "_decoding",
        "_gate",
        "_moves",
        "_padded",
        "_register_now",
        "_seats",
        "_unit",
        "_unregistered",
        "_victims",
        "admitted",
        "budget",
        "copies",
        "now",
        "number",
        "resumed",
        "state",
        "touched",
        "wake_at",
    )  # fmt: skip

    def __init__(self, state: EngineState, gate: Gate, victims: VictimRule, register_now: bool) -> None:
        self.state = state
        self._cohort = state.cohort
        self._allocator = state.allocator
        self._budget = state.config.max_num_batched_tokens
        self._seats = state.config.max_num_seqs
        self._unit = state.config.chunk_unit
        self._gate = gate
        self._victims = victims
        self._register_now = register_now
        self.number = 0
        self.copies: list[tuple[int, int]] = []
        self._padded: tuple[int, int] | None = None
        self.touched = True
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Start an empty plan."""
        self.now = now
        self.budget = self._budget
        self.wake_at: float | None = None
        self._decoding = False
        if self.touched:  # else what is below is as it was
            self._chunks: dict[Sequence, Chunk] = {}
            self.admitted: dict[Sequence, None] = {}
            self._unregistered: list[Chunk] = []
            self._computing: set | None = None
            self._moves = NO_MOVES
            self.touched = self.resumed = False

    # --- what a scheduler reads

    @property
    def waiting(self):
        """The waiting queue."""
        return self.state.waiting

    @property
    def prefilling(self) -> list[Sequence]:
        """Running sequences whose known tokens are not all computed, in order of admission; a copy."""
        return list(self.state.prefilling)

    @property
    def seats(self) -> int:
        """How many more sequences may hold memory."""
        return self.state.seats

    @property
    def preempted(self) -> bool:
        """Whether anyone was preempted in this step."""
        return bool(self._moves.preempted)

    @property
    def chunks(self) -> int:
        """Prefill pieces planned so far."""
        return len(self._chunks)

    def completes(self, seq: Sequence) -> bool:
        """Whether this step computes all that is left of a prompt."""
        chunk = self._chunks.get(seq)
        return chunk is not None and chunk.samples

    def awaits_prefix(self, seq: Sequence) -> bool:
        """Whether the next block that a waiting sequence would compute is being computed in this step for another.

        If it waited, it could hit that block in the next step.
        """
        allocator = self._allocator
        if self._computing is None:
            self._computing = set()
            for chunk in self._chunks.values():
                self._computing.update(allocator.names(chunk.seq, chunk.past, chunk.past + chunk.tokens))
        if not self._computing:
            return False
        cached = allocator.lookup(seq).tokens
        return any(name in self._computing for name in allocator.names(seq, cached, cached + allocator.block_size))

    # --- what a scheduler does

    def decode(self) -> bool:
        """Plan one token for every decoding sequence, taking memory from victims if there is too little.

        Returns:
            Whether anything decodes.
        """
        cohort = self._cohort
        if self._decoding:
            raise PlanError("a scheduler planned the decoding sequences twice in one step")
        if not cohort.size:
            return False
        if not self._allocator.grow_cohort(cohort):
            self._make_room()
            if not cohort.size:
                return False
        return self._decode_all(cohort)

    def _decode_all(self, cohort: Cohort) -> bool:
        """Note that every member decodes; they have the memory for it."""
        budget = self.budget - cohort.size
        if budget < 0 and self._chunks:
            raise PlanError(
                f"{cohort.size} sequences decode but {self.budget} tokens of the step's budget are left: "
                "max_num_batched_tokens must be at least max_num_seqs, and decode() come before prefill"
            )
        self._decoding = True
        self.budget = budget if budget > 0 else 0
        return True

    def _make_room(self) -> None:
        """Preempt until the cohort can take its step: as few as needed, or down to the rule's headroom."""
        state, allocator, cohort = self.state, self.state.allocator, self.state.cohort
        headroom = self._victims.headroom
        if headroom:
            while len(state.running) > 1:
                self._preempt_one()
                if allocator.available >= cohort.size * headroom:
                    break
            if allocator.grow_cohort(cohort):
                return
        for seq in sorted(allocator.crossing(cohort), key=lambda s: s.order):
            while seq.cohort is not None and not allocator.grow(seq, seq.known):
                self._preempt_one()

    def _preempt_one(self) -> None:
        victim = self._victims.choose(self.state)
        if victim is None:
            raise PlanError(
                "the KV pool is exhausted and the victim rule `none` lets nobody be preempted: "
                "use a gate that reserves whole answers (reserve-output, max-length), or another victim rule"
            )
        self.preempt(victim)

    def extend(self, seq: Sequence, tokens: int) -> bool:
        """Compute up to `tokens` further tokens of a running sequence's prompt.

        Less is planned where the budget or what remains is less. Victims give memory back where it is short.

        Returns:
            Whether anything was planned for it.
        """
        if seq not in self.state.running or seq.cohort is not None or seq in self._chunks:
            raise PlanError(f"{seq} is not part-way through its prompt, or was extended already")
        computed = seq._computed
        remaining = seq._known - computed
        tokens = min(tokens, remaining, self.budget)
        if tokens < remaining:
            tokens -= tokens % self._unit
        if tokens < 1:
            return False
        while not self.state.allocator.grow(seq, computed + tokens):
            self._preempt_one()
            if seq.place != DEVICE:
                return False
        chunk = self._chunks[seq] = chunk_of((seq, tokens, computed, tokens, tokens == remaining))
        self._unregistered.append(chunk)
        self._computing = None
        self.touched = True
        self.budget -= tokens
        return True

    def admit(self, seq: Sequence, most: int = UNBOUNDED, whole: bool = False) -> bool:
        """Give a waiting sequence memory and plan the first piece of its prompt, after what the cache already has.

        Args:
            most: longest piece; by default what is left of the budget.
            whole: all of the prompt in this step or nothing. The first prompt of a step may then exceed the budget.

        Returns:
            Whether it was admitted. If memory or seats lacked, `state.blocked` is set.
        """
        state, allocator, budget = self.state, self._allocator, self.budget
        if seq.place is not NOWHERE or not seq.alive:
            raise PlanError(f"{seq} does not wait and cannot be admitted")
        if len(state.running) + len(state.retained) + state.kept_seats + len(seq.siblings) >= self._seats:
            state.blocked = True
            return False
        if self._unregistered:
            self._register()
        hit = allocator.lookup(seq) if allocator.shares else NO_HIT
        cached = hit.tokens
        remaining = tokens = seq._known - cached
        if whole:
            if tokens > budget and (self._chunks or self._decoding):
                return False
        else:
            if most < tokens:
                tokens = most
            if budget < tokens:
                tokens = budget
            if tokens < remaining and self._unit > 1:
                tokens -= tokens % self._unit
            if tokens < 1:
                return False
        reach = cached + tokens
        if not self._gate.admits(seq, hit, reach, state) or not allocator.admit(seq, hit, reach):
            state.blocked = True
            return False
        state.waiting.remove(seq)
        seq._computed = cached
        if seq.preemptions:
            self.resumed = True
            seq.recomputed_tokens += max(0, seq.lost_tokens - cached)
        else:
            seq.cached_tokens = cached
            seq.admitted_at = self.now
        state.seat(seq)
        state.prefilling.append(seq)
        self.admitted[seq] = None
        seq.seated_in = self.number
        self._computing = None
        self._chunks[seq] = chunk_of((seq, tokens, cached, tokens, tokens == remaining))
        self.touched = True
        self.budget = budget - tokens
        if self._register_now and allocator.shares:
            allocator.computed(seq, reach)
        return True

    def preempt(self, seq: Sequence) -> None:
        """Take all memory from a running sequence; it goes to the host if that is the rule, else it will be recomputed."""
        state = self.state
        if seq in self.admitted:
            raise PlanError(f"{seq} was admitted in this step and cannot be preempted in it")
        if seq not in state.running:
            raise PlanError(f"{seq} holds no memory and cannot be preempted")
        self.touched = True
        if self._moves is NO_MOVES:
            self._moves = Moves()
        tokens = seq.computed
        swap = state.config.preemption == "swap" and seq.cohort is not None and tokens <= state.host_free
        move = self._move(seq, tokens) if swap else None  # it names the blocks, which are given back now
        state.allocator.release(seq)
        if seq.cohort is not None:
            if self._decoding:
                self.budget += 1
            self._moves.left.append(Stay(seq, seq.join_tick, state.cohort.tick - seq.join_tick, seq.gains))
            state.cohort.leave(seq)
        else:
            state.prefilling.remove(seq)
            chunk = self._chunks.pop(seq, None)
            if chunk is not None:
                self.budget += chunk.tokens
                self._unregistered.remove(chunk)
        state.unseat(seq)
        seq.preemptions += 1
        if swap:
            seq.place = HOST
            state.host_free -= tokens
            state.swapped.append(seq)
            self._moves.swapped_out.append(move)
        else:
            seq.place = NOWHERE
            seq._computed = 0
            seq.lost_tokens = tokens
            state.waiting.put_back(seq, state.config.requeue)
        self._moves.preempted.append(seq)
        self._gate.preempted(state)

    def swap_in(self, seq: Sequence) -> bool:
        """Bring a swapped sequence back; it decodes in this step if the others do."""
        state = self.state
        if state.seats < 1 or self.budget < 1 or not state.allocator.admit(seq, NO_HIT, seq._known):
            state.blocked = True
            return False
        if state.cohort.size and not self._decoding:
            raise PlanError("swap_in() comes after decode(): who comes back decodes in this step, and so do all others")
        self.touched = self.resumed = True
        if self._moves is NO_MOVES:
            self._moves = Moves()
        state.swapped.remove(seq)
        state.host_free += seq._computed
        self._moves.swapped_in.append(self._move(seq, seq._computed))
        self.admitted[seq] = None
        seq.seated_in = self.number
        state.seat(seq)
        state.cohort.join(seq)
        self._decoding = True
        self.budget -= 1
        return True

    def _move(self, seq: Sequence, tokens: int) -> Move:
        """A swap of the first `tokens` tokens of `seq`, with the blocks that hold them."""
        allocator = self._allocator
        table = getattr(allocator, "table", None)
        return Move(seq, tokens, table(seq)[: -(-tokens // allocator.block_size)] if table else ())

    def pad_prompts(self) -> int:
        """Compute every prompt of this step at the width of the longest (static batching); that width."""
        width = max(chunk.tokens for chunk in self._chunks.values())
        self._chunks = {seq: chunk._replace(width=width) for seq, chunk in self._chunks.items()}
        return width

    def pad_rows(self, rows: int, width: int) -> None:
        """Compute `rows` rows in this decode step, dead ones among them, each over `width` tokens (static batching)."""
        self._padded = (rows, width)

    def release_retained(self) -> None:
        """Give back the memory of finished sequences that was held to the end of their batch."""
        state = self.state
        for seq in state.retained:
            state.allocator.release(seq)
        state.retained.clear()
        state.blocked = False

    # --- handing over

    def _register(self) -> None:
        """What running prompts compute in this step may be hit by whoever is admitted after them."""
        if self._register_now:
            for chunk in self._unregistered:
                self.state.allocator.computed(chunk.seq, chunk.past + chunk.tokens)
            self._unregistered.clear()

    def finish(self) -> StepPlan:
        """The plan as it stands."""
        cohort = self._cohort
        if self._decoding and cohort.size:
            plan = StepPlan(self.number, cohort.tick, cohort, cohort.size, cohort.context)
            if self._padded:
                rows, width = self._padded
                plan.rows, plan.context = rows, rows * width
                self._padded = None
        else:
            plan = StepPlan(self.number, cohort.tick)
        if self.touched:
            if self._unregistered:
                self._register()
            plan.chunks = list(self._chunks.values())
            plan.moves = self._moves
        if self.copies and not plan.empty:  # an empty plan is never run
            if plan.moves is NO_MOVES:
                plan.moves = Moves()
            plan.moves.copies, self.copies = self.copies, []
        return plan
