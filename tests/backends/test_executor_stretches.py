"""The simulated executor alone: its calendar of ends, and stretches that are sums to the bit."""

from __future__ import annotations

import pytest

import backends.sim.executor as module
from backends.sim.executor import SimExecutor
from sim.cost.base import DecodeLine, StepShape
from sim.engine.cohort import Cohort
from sim.engine.plan import Chunk, Moves, StepPlan
from sim.engine.sequence import Sequence

SEGMENT = 500
"""Tokens of context that one line covers."""


class Lines:
    """Decode steps priced by lines that change every `SEGMENT` tokens of context."""

    def decode_line(self, rows: int, context: int) -> DecodeLine:
        low = context // SEGMENT * SEGMENT
        return DecodeLine(low, low + SEGMENT, 1e-3 + 1e-5 * rows + 7e-9 * low, 1.3e-8)

    def step_seconds(self, shape: StepShape) -> float:
        if shape.chunks:
            return 2e-3 + 1e-6 * sum(new for new, _ in shape.chunks)
        _, _, intercept, slope = self.decode_line(shape.decode_rows, shape.decode_context)
        return intercept + slope * shape.decode_context


def decoding(executor: SimExecutor, answers: list[int]) -> tuple[Cohort, list[Sequence]]:
    """Sequences whose prompts of 10 tokens have just been computed in one step, and their cohort."""
    cohort = Cohort(16)
    sequences = [Sequence(row, (), 10, 100_000) for row in range(len(answers))]
    plan = StepPlan(0, 0)
    plan.chunks = [Chunk(seq, 10, 0, 10, True) for seq in sequences]
    for seq, answer in zip(sequences, answers, strict=True):
        executor.start(seq, answer)
    executor.submit(plan, 0.0, float("inf"))
    for seq in sequences:
        seq._computed, seq._known = 10, 11
        cohort.join(seq)
    return cohort, sequences


def decode(executor: SimExecutor, cohort: Cohort, repeat: int, now: float, until: float = float("inf")):
    plan = StepPlan(1, cohort.tick)
    plan.cohort, plan.rows, plan.context, plan.repeat = cohort, cohort.size, cohort.context, repeat
    outcome = executor.collect(executor.submit(plan, now, until))
    cohort.advance(outcome.steps)
    return outcome


def all_ends(vector: int, repeat: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """End times of an answer of 5,000 tokens decoded beside two longer ones, `repeat` steps at a time."""
    monkeypatch.setattr(module, "_VECTOR", vector)
    executor = SimExecutor(Lines())
    cohort, _ = decoding(executor, [5000, 9000, 9000])
    ends, now = [], executor._busy_until
    while True:
        outcome = decode(executor, cohort, repeat, now)
        ends += outcome.ends
        now = ends[-1]
        if outcome.ended:
            return ends


def test_a_loop_numpy_and_single_steps_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    single = all_ends(96, 1, monkeypatch)
    assert len(single) == 4999
    assert all_ends(10**9, 4096, monkeypatch) == single
    assert all_ends(1, 4096, monkeypatch) == single
    assert all_ends(96, 777, monkeypatch) == single


@pytest.mark.parametrize("vector", [1, 10**9])
def test_a_stretch_stops_at_the_first_end_at_or_after_what_comes(vector: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = all_ends(10**9, 4096, monkeypatch)
    for until, steps in ((ends[7], 8), (ends[7] + 1e-9, 9), (0.0, 1)):
        monkeypatch.setattr(module, "_VECTOR", vector)
        executor = SimExecutor(Lines())
        cohort, _ = decoding(executor, [5000, 9000, 9000])
        assert list(decode(executor, cohort, 4096, executor._busy_until, until).ends) == ends[:steps]


@pytest.mark.parametrize("vector", [1, 10**9])
def test_with_two_plans_in_flight_one_step_more_was_planned(vector: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = all_ends(10**9, 4096, monkeypatch)
    monkeypatch.setattr(module, "_VECTOR", vector)
    executor = SimExecutor(Lines(), depth=2)
    cohort, _ = decoding(executor, [5000, 9000, 9000])
    assert list(decode(executor, cohort, 4096, executor._busy_until, ends[7]).ends) == ends[:9]


def test_answers_end_when_they_are_due_and_not_before() -> None:
    executor = SimExecutor(Lines())
    cohort, (short, same, long) = decoding(executor, [4, 4, 9])
    first = decode(executor, cohort, 100, 1.0)
    assert first.steps == 3
    assert set(first.ended) == {short, same}
    for seq in first.ended:
        cohort.leave(seq)
    second = decode(executor, cohort, 100, first.ends[-1])
    assert second.steps == 5
    assert list(second.ended) == [long]


def test_who_was_preempted_is_not_due_any_more() -> None:
    executor = SimExecutor(Lines())
    cohort, (victim, other) = decoding(executor, [4, 9])
    cohort.leave(victim)
    plan = StepPlan(1, cohort.tick)
    plan.cohort, plan.rows, plan.context, plan.repeat = cohort, 1, cohort.context, 100
    plan.moves = Moves()
    plan.moves.preempted.append(victim)
    outcome = executor.submit(plan, 1.0, float("inf"))
    assert outcome.steps == 8
    assert list(outcome.ended) == [other]


def test_an_overlapped_stretch_reports_who_ended_one_step_before_its_end() -> None:
    executor = SimExecutor(Lines(), depth=2)
    cohort, (short, long) = decoding(executor, [4, 50])
    outcome = decode(executor, cohort, 100, 1.0)
    assert outcome.steps == 4
    assert list(outcome.ended_before) == [short] and not outcome.ended
    head, tail = outcome.split()
    assert (head.steps, list(head.ended), tail.steps, list(tail.ended)) == (3, [short], 1, [])
    assert long in cohort.members


def test_a_stretch_that_could_not_end_is_a_fault() -> None:
    executor = SimExecutor(Lines())
    cohort, (only,) = decoding(executor, [4])
    executor.forget(only)
    with pytest.raises(RuntimeError, match="never due"):
        decode(executor, cohort, 100, 1.0)
