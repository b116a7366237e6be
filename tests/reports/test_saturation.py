from __future__ import annotations

import numpy as np
import pytest
from synthetic_runs import make_requests, make_run, simulated_run

from reports.saturation import saturation, saturation_along


def queue_run(rho: float, n: int, seed: int, service=None, arrival=None, **info):
    """A single server, first come first served, mean service 1 s."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / rho, n)) if arrival is None else arrival
    service = rng.exponential(1.0, n) if service is None else service
    begin = np.empty(n)
    free = 0.0
    for i in range(n):
        begin[i] = max(arrival[i], free)
        free = begin[i] + service[i]
    end = begin + service
    return make_run(make_requests(n, sent=arrival, admitted=begin, first_token=end, finish=end), **info)


@pytest.mark.parametrize("seed", range(12))
def test_past_capacity_is_overloaded(seed):
    found = saturation(queue_run(1.4, 2000, seed))
    assert found["label"] == "overloaded"
    assert found["growth_per_s"] == pytest.approx(0.4, rel=0.5)
    assert found["sentence"].startswith("Overloaded")


@pytest.mark.parametrize("seed", range(12))
def test_within_capacity_is_never_overloaded(seed):
    assert saturation(queue_run(0.8, 2000, seed))["label"] != "overloaded"


@pytest.mark.parametrize("seed", range(4))
def test_light_load_is_stable(seed):
    assert saturation(queue_run(0.05, 500, seed))["label"] == "stable"


def test_growth_is_arrivals_less_capacity():
    n = 600
    found = saturation(queue_run(2.0, n, 0, service=np.ones(n), arrival=np.arange(n) / 2.0))
    assert found["label"] == "overloaded"
    assert found["growth_per_s"] == pytest.approx(1.0, rel=0.02)


def test_a_burst_is_backlogged():
    found = saturation(queue_run(1, 50, 0, service=np.ones(50), arrival=np.zeros(50)))
    assert found["label"] == "backlogged"
    assert "50 s" in found["sentence"]


def test_a_hump_that_drains_before_the_end_is_backlogged():
    arrival = np.concatenate([np.arange(100) * 0.5, 100 + np.arange(200) * 2.0])
    assert saturation(queue_run(1, 300, 0, service=np.ones(300), arrival=arrival))["label"] == "backlogged"


def test_closed_loops_are_never_overloaded():
    n = 200
    arrival = np.concatenate([np.zeros(8), np.arange(n - 8) + 1.0])
    run = queue_run(1, n, 0, service=np.ones(n), arrival=arrival, load={"mode": "closed", "concurrency": 8})
    found = saturation(run)
    assert found["label"] == "backlogged"
    assert found["mean_waiting"] == pytest.approx(7, rel=0.05)


def test_a_remote_overload_shows_in_flight():
    run = queue_run(1.5, 1500, 1)
    run.requests.admitted[:] = np.nan
    assert saturation(run)["label"] == "overloaded"
    calm = queue_run(0.3, 1500, 1)
    calm.requests.admitted[:] = np.nan
    assert saturation(calm)["label"] == "stable"


def test_a_run_cut_short_while_its_queue_grows_is_overloaded():
    assert saturation(simulated_run(2000, 60, cut=25.0))["label"] == "overloaded"


def test_an_engine_below_and_above_its_capacity():
    assert saturation(simulated_run(800, 10))["label"] == "stable"
    assert saturation(simulated_run(1500, 60))["label"] == "overloaded"


def seats_run(seats: int, each: float, n: int, rate: float, tail: float = 0.0):
    """`seats` servers that take `each` seconds a request; the last of all takes `tail` seconds more."""
    arrival, free = np.arange(n) / rate, np.zeros(seats)
    begin, end = np.empty(n), np.empty(n)
    for i in range(n):
        first = int(free.argmin())
        begin[i] = max(arrival[i], free[first])
        free[first] = end[i] = begin[i] + each + (tail if i == n - 1 else 0.0)
    return make_run(make_requests(n, sent=arrival, admitted=begin, first_token=end, finish=end))


@pytest.mark.parametrize("n", [330, 600, 5000])
def test_an_overload_names_what_is_served_whatever_it_took_to_fill_up(n):
    """100 seats for 2 s each serve 50/s. They fill up for 1.25 s; nobody ends before 2 s; at the end they run empty."""
    found = saturation(seats_run(100, 2.0, n, 80.0))
    assert found["label"] == "overloaded"
    assert found["served_per_s"] == pytest.approx(50.0, rel=0.03)
    assert "keeps up with about 50" in found["sentence"] or "keeps up with about 49" in found["sentence"]


def test_an_overload_too_short_to_settle_names_no_rate():
    found = saturation(seats_run(100, 20.0, 300, 80.0))
    assert found["label"] == "overloaded" and found["served_per_s"] is None
    assert "too short" in found["sentence"] and "keeps up with about" not in found["sentence"]


def test_running_empty_is_no_saturation():
    """One answer that goes on for long after all others, and an engine that was never full."""
    for tail in (0.0, 500.0):
        found = saturation(seats_run(100, 2.0, 3000, 40.0, tail))
        assert found["label"] == "stable" and found["served_per_s"] is None
    calm, long = (saturation(seats_run(100, 2.0, 600, 80.0, tail)) for tail in (0.0, 500.0))
    assert calm["label"] == long["label"] == "overloaded" and calm["served_per_s"] == long["served_per_s"]


@pytest.mark.parametrize(("n", "rate"), [(1500, 60), (1500, 45)])
def test_an_engine_serves_as_much_however_long_it_is_overloaded(n, rate):
    short, long = saturation(simulated_run(n, rate)), saturation(simulated_run(5000, 45))
    assert short["served_per_s"] == pytest.approx(long["served_per_s"], rel=0.05)
    assert long["served_per_s"] == pytest.approx(44.8 - long["growth_per_s"], rel=0.05)


@pytest.mark.parametrize(
    ("labels", "ordered", "says"),
    [
        ("sss", True, ""),
        ("ssoo", True, "Overloaded from rate 3 on: the queue grows"),
        ("ssso", True, "Overloaded at rate 4: the queue grows"),
        ("sbbo", True, "Overloaded at rate 4: the queue grows for as long as requests come, and latencies say how long the run "
         "lasted. Backlogged from rate 2 to 3: requests queue"),
        ("sbbb", True, "Backlogged from rate 2 on: requests queue"),
        ("osos", True, "Overloaded at rate 1, 3: the queue"),
        ("osos", False, "Overloaded at rate 1, 3: the queue"),
        ("oooo", False, "Overloaded at rate 1, 2, 3, 4: the queue"),
        ("usu", True, ""),
        ("", True, ""),
    ],
)  # fmt: skip
def test_what_is_said_along_a_sweep(labels, ordered, says):
    words = {"s": "stable", "o": "overloaded", "b": "backlogged", "u": "unknown"}
    names = [str(i + 1) for i in range(len(labels))]
    said = saturation_along("rate", names, [words[each] for each in labels], ordered=ordered)
    assert said.startswith(says) and bool(said) == bool(says)


def test_of_many_overloaded_points_a_few_are_named():
    said = saturation_along("x", [str(i) for i in range(40)], ["overloaded", "stable"] * 20, ordered=True)
    assert "at x 0, 2, 4, 6, 8, 10, 12, 14 and 12 more:" in said
