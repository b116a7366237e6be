"""The future peak, summed up once for many questions, against its definition."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.cohort import Cohort
from sim.engine.sequence import Sequence
from sim.schedulers.gates import FuturePeak


def naive(rows: list[tuple[int, int]]) -> int:
    total = peak = 0
    for count, (left, known) in enumerate(sorted(rows, reverse=True), 1):
        total += known
        peak = max(peak, left * count + total)
    return peak


ROW = st.tuples(st.integers(1, 400), st.integers(60, 500))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(ROW, min_size=1, max_size=12), st.lists(ROW, min_size=1, max_size=5), st.integers(0, 50))
def test_it_is_the_definition_at_every_step(running, candidates, steps: int) -> None:
    cohort = Cohort(1)
    sequences = []
    for prompt, answer in running:
        seq = Sequence(len(sequences), (), prompt, answer)
        seq._computed, seq._known = prompt, prompt + 1
        cohort.join(seq)
        sequences.append(seq)
    running = dict.fromkeys(sequences)
    state = SimpleNamespace(admissions=len(sequences), running=running, prefilling=[], transit={}, cohort=cohort)
    gate = FuturePeak()
    for tick in range(steps + 1):
        for prompt, answer in candidates:
            seq = Sequence(99, (), prompt, answer)
            rows = [(each.left, each.known) for each in sequences]
            assert gate.peak_with(seq, state) == naive([*rows, (seq.left, seq.known)]), tick
        cohort.advance()
