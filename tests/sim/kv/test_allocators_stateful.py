"""Paged and radix memory against plain references: same hits, same free room, after any sequence of operations."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from reference_pools import BlockReference, TreeReference

from sim.engine.cohort import Cohort
from sim.engine.sequence import Sequence
from sim.kv.base import NO_HIT
from sim.kv.paged import PagedAllocator
from sim.kv.radix import RadixAllocator
from workloads.traffic import Span, private_content

BLOCK = 4
SHARED = st.tuples(
    st.sampled_from([-1, -1, -1, -2, -3]), st.sampled_from([0, 0, 0, 4, 6]), st.sampled_from([3, 4, 8, 8, 12, 16, 21])
)


class Machine(RuleBasedStateMachine):
    """Sequences come, are computed in pieces, decode together, fork, are given back and come again."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.pending: dict[Sequence, int] = {}  # has memory for this many tokens, which are being computed
        self.rows = 0

    def begin(self, allocator, reference) -> None:
        self.allocator, self.reference = allocator, reference
        self.cohort = Cohort(allocator.block_size)

    @property
    def decoding(self) -> list[Sequence]:
        return list(self.cohort.members)

    @precondition(lambda self: len(self.waiting) < 8)
    @rule(shared=st.lists(SHARED, max_size=2), own=st.sampled_from([0, 0, 0, 1, 4, 9]))
    def arrive(self, shared, own):
        spans = [Span(*span) for span in shared] + (
            [Span(private_content(self.rows), 0, own)] if own or not shared else []
        )
        spans = [span for span in spans if span.length] or [Span(private_content(self.rows), 0, 1)]
        self.waiting.append(Sequence(self.rows, tuple(spans), sum(span.length for span in spans), 1000))
        self.rows += 1

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 7), piece=st.integers(1, 40))
    def admit(self, which, piece):
        seq = self.waiting[which % len(self.waiting)]
        hit = self.allocator.lookup(seq) if self.allocator.shares else NO_HIT
        reach = min(seq.known, hit.tokens + piece)
        given = self.allocator.admit(seq, hit, reach)
        assert given == self.reference.admit(seq, hit.tokens, reach)
        if given:
            self.waiting.remove(seq)
            self.prefilling.append(seq)
            seq._computed = hit.tokens
            self.pending[seq] = reach

    @precondition(lambda self: self.prefilling)
    @rule(which=st.integers(0, 7), piece=st.integers(1, 40))
    def go_on(self, which, piece):
        seq = self.prefilling[which % len(self.prefilling)]
        if seq in self.pending:
            return
        reach = min(seq.known, seq.computed + piece)
        given = self.allocator.grow(seq, reach)
        assert given == self.reference.grow(seq, reach)
        if given:
            self.pending[seq] = reach

    @precondition(lambda self: self.pending)
    @rule(samples=st.integers(0, 2), only_first=st.booleans())
    def land(self, samples, only_first):
        """What was being computed is computed."""
        for seq in list(self.pending)[: 1 if only_first else None]:
            self._compute(seq, self.pending.pop(seq), samples)

    def _compute(self, seq: Sequence, reach: int, samples: int) -> None:
        seq._computed = reach
        self.allocator.computed(seq, reach)
        self.reference.computed(seq, reach)
        if reach < seq.known:
            return
        seq._known += 1
        self.prefilling.remove(seq)
        self.cohort.join(seq)
        for sample in range(1, 1 + samples):
            if seq.preemptions or seq.sample:
                return
            child = Sequence(seq.row, seq.prompt, seq.prompt_tokens, 1000, sample=10 * seq.known + sample)
            copies = self.allocator.fork(seq, child)
            assert (copies is not None) == self.reference.fork(seq, child)
            if copies is not None:
                child._known, child._computed = seq.known, seq.computed
                self.cohort.join(child)

    @precondition(lambda self: self.cohort.members)
    @rule(steps=st.integers(1, 9))
    def decode(self, steps):
        """As many equal steps as are sure to fit, at most `steps`, planned at once; the reference takes them one by one."""
        given = self.allocator.grow_cohort(self.cohort)
        assert given == self.reference.grow_all(self.decoding)
        if not given:
            return
        steps = min(steps, self.allocator.stable_steps(self.cohort))
        if steps > 1:
            self.allocator.replay(self.cohort, steps - 1)
        for step in range(steps):
            if step:
                assert self.reference.grow_all(self.decoding), "memory was not stable for as long as it was said to be"
            self.cohort.advance()

    @precondition(lambda self: self.prefilling or self.cohort.members)
    @rule(which=st.integers(0, 15), again=st.booleans())
    def give_back(self, which, again):
        """Finish, or be preempted and wait once more."""
        here = [*self.prefilling, *self.decoding]
        seq = here[which % len(here)]
        self.allocator.release(seq)
        self.reference.release(seq)
        if seq.cohort is not None:
            self.cohort.leave(seq)
        else:
            self.prefilling.remove(seq)
            self.pending.pop(seq, None)
        if again:
            seq._computed = 0
            seq.preemptions += 1
            self.waiting.append(seq)

    @invariant()
    def adds_up(self):
        if not hasattr(self, "allocator"):
            return
        holders = [*self.prefilling, *self.decoding]
        self.allocator.check(holders)
        use = self.allocator.use(sum(seq.computed for seq in holders))
        assert sum(use[1:]) == use.capacity
        assert min(use) >= 0

    @invariant()
    def agrees_with_the_reference(self):
        if not hasattr(self, "allocator"):
            return
        assert self.allocator.available == self.reference.free
        use = self.allocator.use(sum(seq.computed for seq in [*self.prefilling, *self.decoding]))
        if self.allocator.shares:
            assert use.cached == self.reference.cached
            for seq in self.waiting:
                assert self.allocator.lookup(seq).tokens == self.reference.lookup(seq)


class PagedMachine(Machine):
    @initialize(blocks=st.integers(6, 26), shares=st.sampled_from([True, True, True, False]))
    def start(self, blocks, shares):
        self.begin(PagedAllocator(blocks * BLOCK + 3, BLOCK, shares), BlockReference(blocks * BLOCK + 3, BLOCK, shares))


class RadixMachine(Machine):
    @initialize(tokens=st.integers(20, 100), shares=st.sampled_from([True, True, True, False]))
    def start(self, tokens, shares):
        self.begin(RadixAllocator(tokens, shares), TreeReference(tokens, shares))


_SETTINGS = settings(
    max_examples=80,
    stateful_step_count=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
PagedMachine.TestCase.settings = RadixMachine.TestCase.settings = _SETTINGS
TestPaged = PagedMachine.TestCase
TestRadix = RadixMachine.TestCase
