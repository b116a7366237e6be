"""Intervals from the chance in the traffic: standard errors that count dependent requests once."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_runs import make_requests, make_run, simulated_run

from reports.metrics import summarize
from reports.uncertainty import _error, interval_of, told


def many(seed: int, rate: float = 20.0) -> dict:
    run = simulated_run(600, rate, seed=seed)
    run.config = {"traffic": {"synthetic": {}}}
    return summarize(run)


def test_the_error_of_independent_values_is_the_usual_one() -> None:
    values = np.random.default_rng(0).normal(5, 2, 20_000)
    assert _error(values) == pytest.approx(2 / 20_000**0.5, rel=0.4)


def test_values_that_hang_together_count_once() -> None:
    rng = np.random.default_rng(1)
    alike = np.repeat(rng.normal(0, 1, 400), 50)
    assert _error(alike) > 4 * alike.std() / len(alike) ** 0.5


def test_a_trend_is_not_chance() -> None:
    assert _error(np.linspace(0, 100, 1000)) < 0.1 * 100 / 12**0.5 / 5


def test_the_mean_over_seeds_falls_into_the_interval_about_as_often_as_stated() -> None:
    runs = [many(seed) for seed in range(24)]
    for key in ("mean_ttft_ms", "median_e2el_ms", "p99_ttft_ms", "request_throughput"):
        centre = np.mean([np.log(one[key]) for one in runs])
        inside = [low <= centre <= high for low, high in (np.log(interval_of(one, key)) for one in runs)]
        assert 0.5 < np.mean(inside) < 0.97, key


def test_cost_and_chance_add_up_in_quadrature() -> None:
    run = simulated_run(300, 20)
    run.config = {"traffic": {"synthetic": {}}}
    alone = interval_of(summarize(run), "mean_e2el_ms")
    run.info["cost_spread"] = {
        "method": "two runs",
        "draws": 0,
        "traffic": False,
        "figures": {"mean_e2el_ms": [0.8, 1.3]},
    }
    summary = summarize(run)
    both = interval_of(summary, "mean_e2el_ms")
    value = summary["mean_e2el_ms"]
    assert np.log(both[1] / value) == pytest.approx(np.hypot(np.log(1.3), np.log(alone[1] / value)))
    assert np.log(value / both[0]) == pytest.approx(np.hypot(np.log(1.25), np.log(value / alone[0])))
    assert "80%" in told(summary)


def test_without_chance_and_cost_there_is_no_interval() -> None:
    run = simulated_run(300, 20)
    run.config = {"traffic": {"trace": {}}}
    assert summarize(run)["interval"] is None
    assert told(summarize(run)) == ""


def test_a_real_backend_has_the_chance_of_its_requests_alone() -> None:
    run = simulated_run(300, 20)
    run.info["backend"] = "torch"
    assert summarize(run)["interval"]["from"] == ["traffic"]


def test_nothing_is_said_of_a_handful_of_requests() -> None:
    run = make_run(make_requests(3, sent=[0, 1, 2], first_token=[1, 2, 3], finish=[2, 3, 4], output_tokens=[5, 5, 5]))
    run.config = {"traffic": {"synthetic": {}}}
    assert summarize(run)["interval"] is None
