from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.intervals import intervals, mean_interval, percentile_interval
from reports.percentiles import Distribution, needed, statistics

finite = st.floats(-1e6, 1e6, allow_nan=False)


def test_values_one_to_ten():
    d = Distribution.of(np.arange(1.0, 11.0))
    assert d.percentile(50) == 5.5
    assert d.percentile(90) == pytest.approx(9.1)
    assert d.std() == pytest.approx(np.sqrt(8.25))  # the population's, not the sample's 9.17


@pytest.mark.parametrize(("p", "count"), [(50, 2), (90, 10), (95, 20), (99, 100), (99.9, 1000), (75, 4), (66, 3)])
def test_sample_a_percentile_needs(p, count):
    assert needed(p) == count
    assert Distribution.of(np.arange(float(count))).percentile(p) is not None
    assert Distribution.of(np.arange(float(count - 1))).percentile(p) is None


def test_p99_of_five_is_withheld():
    keys = statistics("ttft_ms", Distribution.of(np.array([1.0, 2, 3, 4, 5])))
    assert keys["p99_ttft_ms"] is None
    assert keys["p50_ttft_ms"] == keys["median_ttft_ms"] == 3000


def test_nothing_has_no_figures():
    assert set(statistics("x", Distribution.of(np.zeros(0))).values()) == {None}


@given(st.lists(st.tuples(finite, st.integers(0, 6)), min_size=1, max_size=40), st.floats(0, 99.9))
def test_weighted_equals_the_expanded_list(pairs, p):
    values, counts = np.array([v for v, _ in pairs]), np.array([c for _, c in pairs])
    expanded = np.repeat(values, counts)
    d = Distribution.of(values, counts)
    assert d.count == len(expanded)
    if len(expanded):
        assert d.quantile(p) == np.percentile(expanded, p)
        assert d.mean() == pytest.approx(expanded.mean(), rel=1e-9, abs=1e-6)
        assert d.std() == pytest.approx(expanded.std(), rel=1e-6, abs=1e-3)


def test_percentile_interval_matches_plain_resampling():
    values = np.random.default_rng(1).lognormal(0, 1, 400)
    rng = np.random.default_rng(2)
    plain = np.percentile(rng.choice(values, (4000, 400)), 90, axis=1)
    low, high = percentile_interval(Distribution.of(values), 90, seed=3)
    assert low == pytest.approx(np.quantile(plain, 0.025), rel=0.06)
    assert high == pytest.approx(np.quantile(plain, 0.975), rel=0.06)


@pytest.mark.parametrize("n", [200, 5000])
def test_mean_interval_covers(n):
    rng = np.random.default_rng(0)
    hits = 0
    for i in range(100):
        low, high = mean_interval(Distribution.of(rng.exponential(1.0, n)), seed=i)
        hits += low <= 1.0 <= high
    assert hits >= 88


def test_intervals_are_seeded_and_withheld_with_their_percentile():
    d = Distribution.of(np.random.default_rng(0).random(50))
    assert intervals("x", d, seed=1, scale=1) == intervals("x", d, seed=1, scale=1)
    assert intervals("x", d, seed=1, scale=1) != intervals("x", d, seed=2, scale=1)
    assert intervals("x", d)["p99_x"] is None
    assert mean_interval(Distribution.of(np.array([1.0]))) is None


def test_interval_with_weights_is_that_of_the_expansion():
    d = Distribution.of(np.array([1.0, 2.0, 5.0]), np.array([30, 60, 40]))
    expanded = Distribution.of(np.repeat([1.0, 2.0, 5.0], [30, 60, 40]))
    assert percentile_interval(d, 50, seed=4) == percentile_interval(expanded, 50, seed=4)
    assert mean_interval(d, seed=4) == pytest.approx(mean_interval(expanded, seed=4))
