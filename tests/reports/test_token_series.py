from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import tokens_from_lists

from reports.run_data import TokenTimes
from reports.token_series import gaps, peak_rate, segment_ends, select, token_counts, tokens_between


def expanded(d) -> list[float]:
    return np.repeat(d.values, d.counts).tolist()


def test_gaps_of_two_rows_that_share_steps():
    t = tokens_from_lists([[[0.0, 1.0, 2.0]], [[0.5, 1.0, 2.0, 4.0]]])
    assert expanded(gaps(t)) == [0.5, 1.0, 1.0, 1.0, 2.0]


def test_gap_across_a_preemption_is_counted():
    t = tokens_from_lists([[[0.0, 1.0, 2.0], [7.0, 8.0]]])
    assert expanded(gaps(t)) == [1.0, 1.0, 1.0, 5.0]


def test_segments_may_be_listed_in_any_order():
    t = tokens_from_lists([[[7.0, 8.0], [0.0, 1.0, 2.0]]])
    assert expanded(gaps(t)) == [1.0, 1.0, 1.0, 5.0]


def test_parallel_samples_have_no_gap_between_them():
    t = tokens_from_lists([[[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]])
    assert expanded(gaps(t)) == [1.0] * 4


def test_gap_before_a_chunk_is_spread_over_its_tokens():
    chunks = [[[0.0]], [[0.0]] + [[0.04]] * 4 + [[0.1]]]
    values = expanded(gaps(tokens_from_lists(chunks)))
    assert values == pytest.approx([0.01] * 4 + [0.06])


def test_single_tokens_have_no_gaps():
    assert gaps(tokens_from_lists([[[1.0]], [[2.0]]])).count == 0
    assert gaps(tokens_from_lists([])).count == 0


def test_ends_and_selection():
    t = tokens_from_lists([[[0.0, 1.0]], [[0.5]], [[0.2, 1.0, 3.0]]])
    assert segment_ends(t).tolist() == [1.0, 0.5, 3.0]
    assert select(t, np.array([True, False, True])).request.tolist() == [0, 2]


def test_peak_counts_tokens_in_a_sliding_second():
    # five tokens at 0.9 and five at 1.1 fall into one sliding second but into two calendar ones
    t = tokens_from_lists([[[0.9]] * 5 + [[1.1]] * 5 + [[3.0]]])
    assert peak_rate(token_counts(t)) == 10
    assert peak_rate(token_counts(tokens_from_lists([[[0.0], [1.0]]]))) == 1  # half-open
    assert peak_rate(token_counts(tokens_from_lists([]))) is None


def test_tokens_between_is_half_open():
    series = token_counts(tokens_from_lists([[[0.0, 1.0, 2.0]], [[0.0, 1.0, 2.0]]]))
    assert tokens_between(series, 1.0, 2.0) == 2
    assert tokens_between(series, 0.0, 2.5) == 6
    assert tokens_between(series, 5.0, 9.0) == 0


@st.composite
def token_times(draw):
    """Requests of consecutive segments over shared steps, as an engine makes them."""
    steps = np.cumsum(draw(st.lists(st.floats(0.001, 2), min_size=1, max_size=30)))
    rows = []
    for request in range(draw(st.integers(1, 6))):
        at = 0
        for _ in range(draw(st.integers(1, 3))):
            if at >= len(steps):
                break
            first = draw(st.integers(at, len(steps) - 1))
            length = draw(st.integers(0, len(steps) - first))
            before = steps[first - 1] if first else 0.0
            start = draw(st.floats(float(before), float(steps[first]), exclude_max=True))
            rows.append((request, start, first, length))
            at = first + length + 1
    columns = list(zip(*rows, strict=True))
    ints = [np.array(columns[i], np.int64) for i in (0, 2, 3)]
    return TokenTimes(ints[0], np.array(columns[1], float), ints[1], ints[2], steps)


@given(token_times(), st.floats(0.05, 3))
def test_weighted_series_equal_brute_force(t, window):
    lists: dict[int, list[float]] = {}
    for row, start, first, length in zip(t.request, t.start, t.first_step, t.steps, strict=True):
        lists.setdefault(int(row), []).extend([start, *t.step_ends[first : first + length]])
    brute = np.sort(np.concatenate([np.diff(v) for v in lists.values()]))
    brute = brute[brute > 0]
    got = np.array(expanded(gaps(t)))
    assert got[got > 0] == pytest.approx(brute)
    times = np.sort(np.concatenate(list(lists.values())))
    series = token_counts(t)
    assert series[1][-1] == len(times)
    best = max(int(((times >= a) & (times < a + window)).sum()) for a in times)
    assert peak_rate(series, window) == pytest.approx(best / window)


def test_a_hundred_million_tokens_take_a_moment():
    n, length, steps = 1_000_000, 128, 600_000
    rng = np.random.default_rng(0)
    first = rng.integers(0, steps - length, n)
    ends = np.cumsum(rng.uniform(0.005, 0.015, steps))
    t = TokenTimes(np.arange(n), ends[first] - 0.001, first, np.full(n, length - 1), ends)
    begin = time.process_time()
    d = gaps(t)
    assert d.count == n * (length - 1)
    assert peak_rate(token_counts(t)) > 0
    assert time.process_time() - begin < 10  # a list per token would need minutes and 2 GB
