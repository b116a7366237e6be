from __future__ import annotations

import numpy as np
import pytest
from synthetic_runs import make_requests, make_run, simulated_run

from reports.saturation import saturation


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
