from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.knee import find_knee, isotonic

LOADS = [1, 2, 4, 6, 8, 9, 10, 12, 14, 16, 20]


def open_loop(capacity: float, noise: float = 0.0, seed: int = 0):
    rng = np.random.default_rng(seed)
    return [min(x, capacity) * 100 * (1 + noise * rng.standard_normal()) for x in LOADS]


def test_the_corner_of_an_open_loop():
    knee = find_knee(LOADS, open_loop(10))
    assert (knee.load, knee.throughput, knee.rule, knee.index) == (10, 1000, "throughput", 6)
    assert "2 times the load gives 1 times the throughput" in knee.sentence


def test_an_operating_point_is_one_that_the_engine_bore():
    """A grid that steps over the capacity: the curve bends at its first load beyond it, which nobody should run at."""
    loads = [1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 24]
    rates, over = [min(x, 10) * 100 for x in loads], [x > 10 for x in loads]
    order = [3, 0, 6, 1, 10, 5, 9, 2, 8, 4, 7]
    for places in (range(11), order):
        given = [[column[i] for i in places] for column in (loads, rates, over)]
        assert find_knee(*given[:2]).load == 11
        knee = find_knee(*given[:2], overloaded=given[2])
        assert (knee.load, knee.throughput, knee.rule) == (8, 800, "throughput") and given[0][knee.index] == 8
        assert knee.sentence == "the engine keeps up with 8 and is overloaded at 11"
    assert find_knee(LOADS, open_loop(10), overloaded=[x > 10 for x in LOADS]).load == 10, "borne: it stays"
    assert find_knee(loads, rates, overloaded=[True] * 11) is None


def test_a_queue_that_grows_is_no_noise():
    """Few loads beyond the corner: an F test cannot tell them from noise, the engine's queue can."""
    loads = [0.5, 0.707, 1, 1.414, 2, 2.828, 4]
    rates, waits = [487, 686, 964, 1349, 1878, 2174, 2181], [90, 96, 109, 130, 201, 14_191, 45_406]
    knee = find_knee(loads, rates, waits, overloaded=[x > 2.5 for x in loads])
    assert (knee.load, knee.rule) == (2, "throughput")
    assert knee.sentence == "beyond 2, more load adds little: 2 times the load gives 1.16 times the throughput"
    unsaid = find_knee(loads, rates, waits)
    assert unsaid is None or "keeps pace" not in unsaid.sentence


@pytest.mark.parametrize("seed", range(30))
def test_the_corner_survives_noise(seed):
    assert 8 <= find_knee(LOADS, open_loop(10, 0.02, seed)).load <= 12


def test_a_closed_loop_bends_where_the_asymptotes_meet():
    # machine-repair bound: throughput = min(n / 2, 8) smoothed; the asymptotes meet at 16 clients
    clients = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    rate = [8 * (1 - np.exp(-n / 16)) for n in clients]
    assert 24 <= find_knee(clients, rate).load <= 48


@pytest.mark.parametrize("seed", range(20))
def test_no_knee_in_a_straight_line(seed):
    noise = 1 + 0.02 * np.random.default_rng(seed).standard_normal(len(LOADS))
    assert find_knee(LOADS, [100 * x * e for x, e in zip(LOADS, noise, strict=True)]) is None


def test_no_knee_in_a_flat_curve():
    assert find_knee(LOADS, [500.0] * len(LOADS)) is None
    assert find_knee(LOADS, [0.0] * len(LOADS), [1.0] * len(LOADS)) is None


def test_latency_speaks_where_throughput_keeps_pace():
    """M/M/1 below capacity: throughput is the load, latency 1 / (capacity - load)."""
    load = [1, 2, 3, 4, 5, 6, 7, 8, 9, 9.5]
    knee = find_knee(load, load, [1 / (10 - x) for x in load])
    assert knee.rule == "latency"
    assert 7 <= knee.load <= 9
    assert find_knee(load, load, [1.0 + 0.01 * x for x in load]) is None


def test_order_gaps_and_too_few_points():
    order = np.random.default_rng(0).permutation(len(LOADS))
    rate = open_loop(10)
    knee = find_knee([LOADS[i] for i in order], [rate[i] for i in order])
    assert (knee.load, order[knee.index]) == (10, 6)
    holes = [None if x == 4 else y for x, y in zip(LOADS, rate, strict=True)]
    assert find_knee(LOADS, holes).load == 10
    assert find_knee([1, 2, 3], [1, 2, 2]) is None
    assert find_knee([], []) is None


def test_a_collapse_past_the_peak_keeps_the_knee_before_it():
    rate = [y if x <= 10 else y * 0.7 for x, y in zip(LOADS, open_loop(10), strict=True)]
    assert 8 <= find_knee(LOADS, rate).load <= 10


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_isotonic_is_monotone_and_keeps_the_sum(y):
    fitted = isotonic(np.array(y))
    assert (np.diff(fitted) >= -1e-9).all()
    assert fitted.sum() == pytest.approx(sum(y), abs=1e-6)


def noisy(loads, curve, noise, seed):
    rng = np.random.default_rng(seed)
    return [curve(x) * float(np.exp(noise * rng.standard_normal())) for x in loads]


POWERS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.1])
@pytest.mark.parametrize(
    "curve", [lambda x: 100.0 * x, lambda x: 500.0, lambda x: 50.0 + 3 * x], ids=["straight", "flat", "rising"]
)
def test_noise_alone_is_no_knee(noise, curve):
    """Of a hundred curves without a bend one may be taken for bent, by the stated chance."""
    for loads in (POWERS, LOADS):
        found = [find_knee(loads, noisy(loads, curve, noise, seed)) for seed in range(100)]
        assert sum(knee is not None for knee in found) <= 5


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.1])
def test_a_knee_is_found_through_noise(noise):
    found = [find_knee(POWERS, noisy(POWERS, lambda x: 100 * min(x, 50), noise, seed)) for seed in range(100)]
    assert sum(knee is not None and knee.load in (32, 64) for knee in found) >= 90
    smooth = [find_knee(POWERS, noisy(POWERS, lambda x: 8 * (1 - np.exp(-x / 32)), noise, seed)) for seed in range(100)]
    assert sum(knee is not None and 32 <= knee.load <= 128 for knee in smooth) >= 90


def test_a_curve_that_merely_leans_has_none():
    assert find_knee([1, 2, 4, 8], [150.2, 294.0, 571.5, 1081.0]) is None
    assert find_knee(POWERS, [x**0.9 for x in POWERS]) is None
    assert find_knee([1, 2, 4, 8], [100, 200, 300, 310]).load == 4


def test_a_scale_changes_nothing():
    rate = noisy(POWERS, lambda x: 100 * min(x, 50), 0.05, 1)
    assert find_knee(POWERS, rate).index == find_knee([x * 1e-3 for x in POWERS], [y * 1e6 for y in rate]).index
    assert find_knee(POWERS, [0.0, *rate[1:]]) is not None
