"""What the cost model's errors do to a run: bounds on rows to repeat, runs that err, and how they become intervals."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, hypot, log
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from simulate import run, workload

from experiments import intervals, runner
from experiments.intervals import ErringCost, Mix, add_spread, drawn_errors, rows_to_repeat
from experiments.load_response import respond
from experiments.propagation import DEPLOYMENT, ELSEWHERE, FRONT
from reports.metrics import summarize
from reports.uncertainty import FIGURES, Z, interval_of
from sim.cost.base import StepShape

SHORT = {"traffic.synthetic.requests": 120}


def test_ranges_widen_with_the_age_of_an_engine_that_is_simulated_as_another() -> None:
    wide = {}
    for name in ("sglang@0.4.1", "sglang@0.4.6", "sglang@0.5.6"):
        resolved = runner.resolve(workload(SHORT | {"engine.preset": name}))
        mix = Mix(resolved.cost)
        wide[name] = mix.deviations[DEPLOYMENT]
        assert wide[name] == pytest.approx(hypot(ELSEWHERE, resolved.cost.older))
        assert any("ranges are wider" in text for text in resolved.warnings) == (resolved.cost.older > 0)
    oldest, older, present = wide.values()
    assert oldest > older > present == ELSEWHERE


def spread(changes: dict, draws: int = 0) -> tuple[dict, dict]:
    """(summary with intervals, info) of a workload."""
    resolved = runner.resolve(workload(changes))
    data = runner.run(resolved)
    summary = summarize(data)
    add_spread(resolved, data, summary, draws=draws)
    return summary, data.info


def width(summary: dict, key: str) -> float:
    low, high = interval_of(summary, key)
    return log(high / low)


@pytest.mark.parametrize(("requests", "steps", "rows"), [(150, 9000, 150), (10_000, 4000, 250), (3000, 70_000, 150)])
def test_short_runs_are_repeated_as_a_whole_and_long_ones_in_part(requests: int, steps: int, rows: int) -> None:
    assert rows_to_repeat(requests, steps) == rows


def test_few_requests_of_very_many_steps_are_not_all_run_again() -> None:
    assert rows_to_repeat(200, 4_000_000) <= 10
    assert rows_to_repeat(1, 10**9) == 1


def test_every_figure_has_an_interval_around_it() -> None:
    summary, info = spread(SHORT | {"slo": {"ttft_ms": 60, "tpot_ms": 9}})
    assert info["cost_spread"]["method"] == "two runs"
    assert summary["interval"]["from"] == ["cost", "traffic"]
    for key in FIGURES:
        if summary.get(key) is not None:
            low, high = interval_of(summary, key)
            assert low <= summary[key] <= high
    assert all(width(summary, key) > 0.05 for key in ("mean_tpot_ms", "mean_ttft_ms", "p99_itl_ms", "mean_e2el_ms"))
    assert interval_of(summary, "slo_attainment")[1] <= 1


def test_a_recorded_run_gives_the_same_intervals_again() -> None:
    resolved = runner.resolve(workload(SHORT))
    data = runner.run(resolved)
    summary = summarize(data)
    add_spread(resolved, data, summary)
    data.info = json.loads(json.dumps(data.info))
    assert summarize(data)["interval"] == summary["interval"]


def test_a_trace_has_no_chance_in_simulation(tmp_path: Path) -> None:
    rows = [{"arrival": i / 4, "input_tokens": 300, "output_tokens": 40} for i in range(60)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    changes = {"traffic": {"max_tokens": "exact", "trace": {"format": "twinserve", "path": str(path)}}}
    summary, _ = spread(changes)
    assert summary["interval"]["from"] == ["cost"]
    low, high = interval_of(summary, "request_throughput")
    assert high / low < 1.02  # arrivals alone decide it


def test_a_closed_loop_is_as_uncertain_as_its_steps() -> None:
    summary, _ = spread(SHORT | {"load": {"mode": "closed", "concurrency": 32}})
    resolved = runner.resolve(workload(SHORT))
    sigma = hypot(resolved.cost.step_uncertainty(StepShape(32, 32 * 600, (), 32)), ELSEWHERE)
    assert width(summary, "output_throughput") > 2 * Z * sigma * 0.9
    assert width(summary, "mean_tpot_ms") == pytest.approx(2 * Z * sigma, rel=0.5)


def test_long_workloads_are_repeated_in_part_with_like_results(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"traffic.synthetic.requests": 400, "traffic.synthetic.arrivals.rate": 8}
    part, info = spread(changes)
    assert info["cost_spread"]["method"] == "the first 150 requests"
    monkeypatch.setattr(intervals, "SHORT", 400)
    whole, info = spread(changes)
    assert info["cost_spread"]["method"] == "two runs"
    for key in ("mean_tpot_ms", "mean_ttft_ms", "mean_e2el_ms"):
        assert width(part, key) == pytest.approx(width(whole, key), rel=0.35)
    assert width(part, "request_throughput") == pytest.approx(width(whole, "request_throughput"), abs=0.02)


def test_an_open_load_near_its_limit_piles_up() -> None:
    """Two runs of everything and the mean step say alike how much more than the steps latency grows."""
    changes = {
        "traffic.synthetic.requests": 4000, "traffic.synthetic.arrivals.rate": 55,
        "traffic.synthetic.input_tokens": 512, "traffic.synthetic.output_tokens": 128,
    }  # fmt: skip
    data = run(changes)
    cost = runner.resolve(workload(changes)).cost
    expected = respond(cost, data, 1.1).latency
    resolved = runner.resolve(workload(changes))
    resolved.cost = Mix(cost).erring(lambda shares: 1.1)
    slower = summarize(runner.run(resolved), with_intervals=False)["mean_tpot_ms"]
    found = slower / summarize(data, with_intervals=False)["mean_tpot_ms"]
    assert expected > 1.15
    assert found > 1.15
    assert log(expected) == pytest.approx(log(found), rel=0.5)


def test_a_backlog_that_comes_at_once_is_as_uncertain_as_a_closed_loop_of_all() -> None:
    at_once = SHORT | {"traffic.synthetic.requests": 600, "traffic.synthetic.arrivals": {"process": "at-once"}}
    _, info = spread(at_once)
    assert info["cost_spread"]["method"] == "the first 150 requests"
    closed, _ = spread(at_once | {"load": {"mode": "closed", "concurrency": 600}})
    for key in ("mean_tpot_ms", "mean_e2el_ms", "mean_ttft_ms"):
        assert info["cost_spread"]["figures"][key] == pytest.approx(
            [factor / closed[key] for factor in interval_of(closed, key)], rel=0.1
        )
    low, high = info["cost_spread"]["figures"]["output_throughput"]
    assert low == pytest.approx(1 / high, rel=0.02)
    assert width(closed, "output_throughput") == pytest.approx(log(high / low), rel=0.2)


def test_beyond_the_limit_throughput_falls_and_requests_wait() -> None:
    data = run(
        {
            "traffic.synthetic.requests": 1000,
            "traffic.synthetic.arrivals.rate": 40,
            "engine.scheduler": {"max_num_seqs": 64},
        }
    )
    cost = runner.resolve(workload()).cost
    answer = respond(cost, data, 3.0)
    assert answer.served < 0.9
    assert answer.wait > 1
    assert respond(cost, data, 1.0).latency == pytest.approx(1.0, abs=0.01)


def test_drawn_errors_are_seeded_centred_and_one_a_class() -> None:
    errors = drawn_errors({"linear": 0.1, "host": 0.5}, 16, seed=3)
    assert errors == drawn_errors({"host": 0.5, "linear": 0.1}, 16, seed=3)
    assert errors != drawn_errors({"linear": 0.1, "host": 0.5}, 16, seed=4)
    logs = {kind: np.log(values) for kind, values in errors.items()}
    assert all(abs(values.mean()) < 1e-12 for values in logs.values())
    assert logs["host"].std() == pytest.approx(0.5, rel=0.06)
    assert [np.argmax(v) for v in logs.values()] != [np.argsort(v)[0] for v in logs.values()]


def test_draws_hold_errors_and_traffic_together() -> None:
    summary, info = spread(SHORT, draws=6)
    told = {key: info["cost_spread"][key] for key in ("method", "draws", "traffic")}
    assert told == {"method": "draws", "draws": 6, "traffic": True}
    assert summary["interval"]["from"] == ["cost", "traffic"]
    low, high = interval_of(summary, "mean_tpot_ms")
    assert low <= summary["mean_tpot_ms"] <= high
    quick, also = spread(SHORT)
    assert info["cost_spread"]["cost"] == also["cost_spread"]["figures"], (
        "without the traffic's chance, for comparisons"
    )
    assert width(summary, "mean_tpot_ms") == pytest.approx(width(quick, "mean_tpot_ms"), rel=0.6)


def test_an_erring_cost_changes_every_price_by_its_factor() -> None:
    cost = runner.resolve(workload()).cost
    mix = Mix(cost)
    slower = mix.erring(lambda shares: 2.0)
    mixed = StepShape(8, 4000, ((256, 0), (100, 50)), 9)
    assert slower.step_seconds(mixed) == 2 * cost.step_seconds(mixed)
    line, plain = slower.decode_line(8, 4000), cost.decode_line(8, 4000)
    assert (line.low, line.high, line.slope) == (plain.low, plain.high, 2 * plain.slope)
    assert slower.front_end.base == 2 * cost.front_end.base
    assert sum(mix.of(mixed).values()) == pytest.approx(1)
    step = StepShape(24, 24 * 400, (), 24)
    of_operators = Mix(cost, elsewhere=0.0).deviation(mix.of(step))
    assert of_operators == pytest.approx(cost.step_uncertainty(step), rel=0.15)
    assert mix.deviation(mix.of(step)) == pytest.approx(hypot(of_operators, ELSEWHERE))
    assert mix.deviation({FRONT: 1.0}) == mix.deviations[FRONT]


def test_the_deployment_errs_for_all_of_a_step_and_not_for_the_front_end() -> None:
    factors = {"linear": 1.1, "host": 0.9, FRONT: 1.5, DEPLOYMENT: 2.0}
    assert Mix.weighted({"linear": 0.5, "host": 0.5}, factors) == pytest.approx(2.0)
    assert Mix.weighted({FRONT: 1.0}, factors) == 1.5


def test_only_the_class_that_errs_counts() -> None:
    mix = Mix(runner.resolve(workload()).cost)
    shares = mix.of(StepShape(24, 12000, (), 24))
    cost = ErringCost(mix, lambda shares: sum(s * (exp(0.3) if k == "linear" else 1.0) for k, s in shares.items()))
    factor = cost.step_seconds(StepShape(24, 12000, (), 24)) / mix.cost.step_seconds(StepShape(24, 12000, (), 24))
    assert factor == pytest.approx(1 + shares["linear"] * (exp(0.3) - 1), rel=1e-6)


def test_a_cost_model_without_errors_leaves_the_traffic() -> None:
    resolved = runner.resolve(workload(SHORT))
    data = runner.run(resolved)
    summary = summarize(data)
    resolved.cost = SimpleNamespace()
    add_spread(resolved, data, summary)
    assert "cost_spread" not in data.info
    assert summary["interval"]["from"] == ["traffic"]


def test_a_served_run_that_left_small_errors_narrows_the_interval() -> None:
    resolved = runner.resolve(workload(SHORT))
    data = runner.run(resolved)
    wide = summarize(data)
    add_spread(resolved, data, wide)
    cost = resolved.cost
    resolved.cost = cost.with_times(replace(cost.host, error=0.02), replace(cost.front_end, error=0.03))
    narrow = summarize(data)
    add_spread(resolved, data, narrow)
    for key in ("mean_tpot_ms", "mean_ttft_ms"):  # of E2E most is the chance in the lengths
        assert width(narrow, key) < 0.7 * width(wide, key)
    resolved.cost = cost.with_times(replace(cost.host, error=0.5), cost.front_end)
    same = summarize(data)
    add_spread(resolved, data, same)
    assert same["interval"] == wide["interval"]


def test_long_prompts_that_seldom_meet_do_not_pile_up() -> None:
    """An engine that is idle most of the time takes slower steps out of its idle time."""
    changes = {
        "traffic.synthetic.requests": 400, "traffic.synthetic.arrivals.rate": 2,
        "traffic.synthetic.input_tokens": 3000, "traffic.synthetic.output_tokens": 1,
    }  # fmt: skip
    data = run(changes)
    resolved = runner.resolve(workload(changes))
    before = summarize(data, with_intervals=False)["mean_e2el_ms"]
    for factor in (0.75, 1.3):
        resolved.cost = Mix(runner.resolve(workload(changes)).cost).erring(lambda shares, factor=factor: factor)
        found = summarize(runner.run(resolved), with_intervals=False)["mean_e2el_ms"] / before
        assert respond(runner.resolve(workload(changes)).cost, data, factor).latency == pytest.approx(found, rel=0.1)


def test_a_load_that_might_overload_does_not_get_faster_than_its_steps() -> None:
    changes = {
        "traffic.synthetic.requests": 3000, "traffic.synthetic.arrivals.rate": 60,
        "traffic.synthetic.input_tokens": 512, "traffic.synthetic.output_tokens": 128,
    }  # fmt: skip
    summary, _ = spread(changes)
    low, high = interval_of(summary, "mean_ttft_ms")
    assert high > 3 * summary["mean_ttft_ms"]
    assert low > summary["mean_ttft_ms"] / 6
