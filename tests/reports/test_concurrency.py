from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.concurrency import InFlight

spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=30)


def test_touching_intervals_do_not_overlap():
    assert InFlight.of(np.array([0.0, 1, 2]), np.array([1.0, 2, 3])).peak() == 1


def test_never_finished_and_empty_intervals_are_left_out():
    f = InFlight.of(np.array([0.0, 1.0, 2.0]), np.array([np.nan, 1.0, 3.0]))
    assert f.peak() == 1
    assert f.area() == 1.0
    assert InFlight.of(np.zeros(0), np.zeros(0)).peak() == 0


@given(spans)
def test_sweep_equals_counting(pairs):
    start = np.array([a for a, _ in pairs], float)
    end = start + np.array([b for _, b in pairs], float)
    f = InFlight.of(start, end)
    grid = np.arange(0, 72) + 0.5
    brute = np.array([int(((start <= t) & (t < end)).sum()) for t in grid])
    assert f.at(grid).tolist() == brute.tolist()
    assert f.peak() == brute.max()
    assert f.area() == pytest.approx((end - start).sum())


def test_longest_stretch_and_dips():
    f = InFlight.of(np.array([0.0, 0, 3, 4.1]), np.array([4.0, 2, 4, 9]))
    # two in flight over [0, 2) and [3, 4)
    assert f.longest_at_least(2) == (0.0, 2.0)
    assert f.longest_at_least(2, dip=1.0) == (0.0, 4.0)
    assert f.longest_at_least(1) == (4.1, 9.0)
    assert f.longest_at_least(1, dip=0.2) == (0.0, 9.0)
    assert f.longest_at_least(5) is None
