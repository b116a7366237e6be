"""The simulated executor alone: its calendar of ends, stretches to the bit, what strikes an end off, where a stretch is cut."""

from __future__ import annotations

import numpy as np
import pytest
from harness import AffineCost, ConstantCost
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.sim import executor as module
from backends.sim.executor import SimExecutor
from sim.cost.base import DecodeLine
from sim.engine.cohort import Cohort
from sim.engine.plan import Chunk, Move, Moves, StepPlan
from sim.engine.sequence import Sequence
from workloads.traffic import Span, private_content

NEVER = float("inf")


def sequence(row: int, prompt: int = 10) -> Sequence:
    return Sequence(row, (Span(private_content(row), 0, prompt),), prompt, 10_000)


class Bench:
    """An executor and a cohort, driven by hand."""

    def __init__(self, lengths: list[int], prompt: int = 10, cost=None) -> None:
        self.executor = SimExecutor(cost or ConstantCost(1.0))
        self.cohort = Cohort(16)
        self.seqs = [sequence(row, prompt) for row in range(len(lengths))]
        self.number = 0
        for seq, length in zip(self.seqs, lengths, strict=True):
            self.executor.start(seq, length)

    def plan(self, repeat: int = 1) -> StepPlan:
        plan = StepPlan(self.number, self.cohort.tick)
        self.number += 1
        plan.repeat = repeat
        return plan

    def run(self, plan: StepPlan, now: float = 0.0, until: float = NEVER):
        return self.executor.collect(self.executor.submit(plan, now, until))

    def prefill(self, *seqs: Sequence, now: float = 0.0):
        """Compute whole prompts (or all that is known); they decode from then on."""
        plan = self.plan()
        plan.chunks = [Chunk(seq, seq.remaining, seq.computed, seq.remaining, True) for seq in seqs]
        outcome = self.run(plan, now)
        for seq in seqs:
            seq._known += 1
            self.cohort.join(seq)
        self.leave(outcome.ended)
        return outcome

    def decode(self, repeat: int = 1, now: float = 0.0, until: float = NEVER, preempted=()):
        plan = self.plan(repeat)
        if preempted:
            plan.moves = Moves()
            plan.moves.preempted += preempted
        for seq in preempted:
            self.cohort.leave(seq)
        plan.cohort, plan.rows, plan.context = self.cohort, self.cohort.size, self.cohort.context
        outcome = self.run(plan, now, until)
        self.cohort.advance(len(outcome.ends))
        self.leave(outcome.ended)
        return outcome

    def leave(self, ended) -> None:
        for seq in ended:
            self.executor.forget(seq)
            self.cohort.leave(seq)


def rows(outcome) -> list[int]:
    return [seq.row for seq in outcome.ended]


# --- ends


def test_answers_end_after_as_many_tokens_as_they_have() -> None:
    bench = Bench([1, 2, 4, 4])
    assert rows(bench.prefill(*bench.seqs)) == [0], "an answer of one token ends with its prompt"
    assert [rows(bench.decode()) for _ in range(3)] == [[1], [], [2, 3]]


def test_a_stretch_ends_with_the_first_answer_that_does() -> None:
    bench = Bench([7, 20, 20])
    bench.prefill(*bench.seqs)
    first = bench.decode(repeat=100)
    assert (len(first.ends), rows(first)) == (6, [0])
    second = bench.decode(repeat=100)
    assert (len(second.ends), rows(second)) == (13, [1, 2])


def test_a_stretch_is_no_longer_than_it_may_be() -> None:
    bench = Bench([500])
    bench.prefill(*bench.seqs)
    assert len(bench.decode(repeat=17).ends) == 17
    assert len(bench.decode(repeat=1).ends) == 1


def test_who_joins_between_decodes_ends_at_its_own_time() -> None:
    bench = Bench([10, 4])
    bench.prefill(bench.seqs[0])
    bench.decode(repeat=3)
    bench.prefill(bench.seqs[1])
    told = [rows(bench.decode()) for _ in range(6)]
    assert told == [[], [], [1], [], [], [0]]


def test_a_prompt_beside_decodes_counts_that_step_for_the_others() -> None:
    bench = Bench([5, 5])
    bench.prefill(bench.seqs[0])
    plan = bench.plan()
    plan.cohort, plan.rows, plan.context = bench.cohort, 1, bench.cohort.context
    plan.chunks = [Chunk(bench.seqs[1], 10, 0, 10, True)]
    bench.run(plan)
    bench.cohort.advance()
    bench.seqs[1]._known += 1
    bench.cohort.join(bench.seqs[1])
    assert [rows(bench.decode()) for _ in range(4)] == [[], [], [0], [1]]


def test_a_piece_that_does_not_complete_a_prompt_ends_nothing() -> None:
    bench = Bench([1])
    plan = bench.plan()
    plan.chunks = [Chunk(bench.seqs[0], 6, 0, 6, False)]
    assert rows(bench.run(plan)) == []


def test_a_preempted_answer_does_not_end_when_it_was_due_but_later() -> None:
    bench = Bench([8, 30])
    bench.prefill(*bench.seqs)
    bench.decode(repeat=3)
    victim = bench.seqs[0]
    stretch = bench.decode(repeat=20, preempted=[victim])
    assert (len(stretch.ends), rows(stretch)) == (20, []), "it was struck off the calendar"
    victim._computed = 0
    assert victim.generated == 4
    bench.prefill(victim)  # the fifth token
    assert [rows(bench.decode()) for _ in range(3)] == [[], [], [0]]


def test_a_swapped_answer_goes_on_where_it_was() -> None:
    bench = Bench([8, 30])
    bench.prefill(*bench.seqs)
    bench.decode(repeat=3)
    victim = bench.seqs[0]
    bench.decode(repeat=5, preempted=[victim])
    plan = bench.plan()
    plan.moves = Moves()
    plan.moves.swapped_in.append(Move(victim, victim.computed))
    bench.cohort.join(victim)
    plan.cohort, plan.rows, plan.context = bench.cohort, 2, bench.cohort.context
    bench.run(plan)
    bench.cohort.advance()
    assert victim.generated == 5
    assert [rows(bench.decode()) for _ in range(3)] == [[], [], [0]]


def test_a_forgotten_answer_never_ends() -> None:
    bench = Bench([5, 9])
    bench.prefill(*bench.seqs)
    bench.executor.forget(bench.seqs[0])
    bench.cohort.leave(bench.seqs[0])
    assert rows(bench.decode(repeat=50)) == [1]
    bench.executor.forget(bench.seqs[0])  # twice is no harm


def test_forks_end_with_their_own_lengths() -> None:
    bench = Bench([6])
    bench.prefill(*bench.seqs)
    child = Sequence(0, bench.seqs[0].prompt, 10, 100, sample=1)
    bench.executor.start(child, 4)
    child._known, child._computed = bench.seqs[0].known, bench.seqs[0].computed
    bench.cohort.join(child)
    bench.executor.forked(child, bench.cohort.tick)
    assert [[seq.sample for seq in bench.decode().ended] for _ in range(5)] == [[], [], [1], [], [0]]


def test_it_tells_true_lengths_to_those_who_may_ask() -> None:
    bench = Bench([6, 9])
    assert SimExecutor.knows_lengths
    assert [bench.executor.length(seq) for seq in bench.seqs] == [6, 9]


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), min_size=1, max_size=12), st.integers(1, 50))
def test_any_mixture_ends_exactly_on_time(answers, most):
    """(length, decode steps before it joins): each ends with its last token, whatever the stretches are."""
    bench = Bench([length for length, _ in answers])
    left = sorted(range(len(answers)), key=lambda row: answers[row][1])
    ended: dict[int, int] = {}
    joined: dict[int, int] = {}
    while left or bench.cohort.size:
        due = [row for row in left if answers[row][1] <= bench.cohort.tick or not bench.cohort.size]
        if due:
            left = [row for row in left if row not in due]
            joined |= dict.fromkeys(due, bench.cohort.tick)
            ended |= dict.fromkeys(rows(bench.prefill(*[bench.seqs[row] for row in due])), bench.cohort.tick)
            continue
        until_next = min([answers[row][1] - bench.cohort.tick for row in left], default=most)
        ended |= dict.fromkeys(rows(bench.decode(repeat=min(most, until_next))), bench.cohort.tick)
    assert ended == {row: joined[row] + length - 1 for row, (length, _) in enumerate(answers)}


# --- time


def one_by_one(cost, count: int, context: int, steps: int, now: float) -> list[float]:
    """Ends of decode steps, each priced and added on its own."""
    ends = []
    for _ in range(steps):
        line = cost.decode_line(count, context)
        now += line.intercept + line.slope * context
        ends.append(now)
        context += count
    return ends


@settings(max_examples=120, derandomize=True, deadline=None, database=None)
@given(
    count=st.integers(1, 40), prompt=st.integers(1, 500), steps=st.integers(1, 700), band=st.sampled_from([1, 37, 701, 10**6]),
    now=st.floats(0, 1e6), cut=st.one_of(st.just(NEVER), st.floats(0, 3)),
)  # fmt: skip
def test_stretches_are_equal_to_steps_to_the_bit(count, prompt, steps, band, now, cut):
    cost = AffineCost(base=0.00313, row=1.7e-5, context=3.3e-7, band=band)
    bench = Bench([10_000] * count, prompt, cost)
    bench.prefill(*bench.seqs, now=now)
    start = bench.executor._busy_until
    expected = one_by_one(cost, count, bench.cohort.context, steps, start)
    until = start + cut
    stop = next((index + 1 for index, end in enumerate(expected) if end >= until), steps)
    outcome = bench.decode(repeat=steps, now=now, until=until)
    assert list(outcome.ends) == expected[:stop]


def test_the_loop_and_numpy_give_the_same_bits() -> None:
    """The same stretch below and above the length at which numpy takes over."""
    cost = AffineCost(base=0.00313, row=1.7e-5, context=3.3e-7, band=10**6)
    lengths = {}
    for threshold in (1, 10**9):
        old, module._VECTOR = module._VECTOR, threshold
        try:
            bench = Bench([3000] * 7, cost=cost)
            bench.prefill(*bench.seqs)
            lengths[threshold] = bench.decode(repeat=2000).ends
        finally:
            module._VECTOR = old
    assert np.array(lengths[1]).tobytes() == np.array(lengths[10**9]).tobytes()
    assert len(lengths[1]) == 2000


def test_a_stretch_stops_at_the_first_end_at_or_after_the_time_given() -> None:
    for until, steps in ((3.0, 2), (3.5, 3), (4.0, 3), (1.0, 1), (0.0, 1)):
        bench = Bench([500])
        bench.prefill(*bench.seqs)  # ends at 1.0
        assert len(bench.decode(repeat=200, now=1.0, until=until).ends) == steps, until


def test_a_step_begins_when_it_is_planned_or_when_the_one_before_has_ended() -> None:
    bench = Bench([50])
    assert bench.prefill(*bench.seqs, now=10.0).ends == (11.0,)
    assert list(bench.decode(now=10.5).ends) == [12.0]
    assert list(bench.decode(now=20.0).ends) == [21.0]


def test_lines_are_asked_for_only_when_the_old_one_no_longer_serves() -> None:
    class Counting(ConstantCost):
        asked = 0

        def decode_line(self, rows, context):
            Counting.asked += 1
            return DecodeLine(context // 100 * 100, context // 100 * 100 + 100, 1.0, 0.0)

    bench = Bench([1000] * 2, 50, Counting(1.0))
    bench.prefill(*bench.seqs)
    for _ in range(200):
        bench.decode()
    assert Counting.asked == pytest.approx(2 * 200 / 100, abs=1)


def test_swapping_and_padding_are_priced() -> None:
    seen = []

    class Shapes(ConstantCost):
        def step_seconds(self, shape):
            seen.append(shape)
            return 1.0

    bench = Bench([9, 9], cost=Shapes(1.0))
    plan = bench.plan()
    plan.chunks = [Chunk(bench.seqs[0], 10, 0, 30, True), Chunk(bench.seqs[1], 4, 2, 4, False)]
    plan.moves = Moves()
    plan.moves.swapped_out.append(Move(bench.seqs[1], 70))
    bench.run(plan)
    (shape,) = seen
    assert shape.chunks == ((30, 0), (4, 2)), "a padded prompt is computed at its width"
    assert shape.swapped_tokens == 70
    assert (shape.decode_rows, shape.sampled) == (0, 1), "only a prompt that is complete has logits"


def test_memory_of_the_calendar_does_not_grow_with_what_was_struck_off() -> None:
    bench = Bench([10_000] * 3)
    bench.prefill(*bench.seqs)
    for _ in range(300):
        seq = bench.seqs[0]
        bench.decode(preempted=[seq])
        seq._computed = 0
        bench.prefill(seq)
    assert sum(len(bucket) for bucket in bench.executor._calendar.values()) == 3
