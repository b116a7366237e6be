"""The front end as a queue: requests are prepared one after another, tokens handed out one after another; seldom looks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate import workload

from experiments import runner
from experiments.delivery import Delivery, drained
from experiments.driver import LoadDriver, prepared
from reports.run_data import TokenTimes

SMALL = {
    "load": {"mode": "closed", "concurrency": 16},
    "traffic.synthetic": {
        "requests": 64,
        "arrivals": {"process": "poisson", "rate": 30},
        "input_tokens": {"distribution": "uniform", "low": 100, "high": 400},
        "output_tokens": {"distribution": "uniform", "low": 20, "high": 100},
    },
}
OPEN = {**SMALL, "load": {"mode": "open"}}
seconds = st.floats(0, 10, allow_nan=False)


def simulated(changes: dict, *, stretch: bool = True, **front):
    """A run with some times of the front end set."""
    resolved = runner.resolve(workload(changes))
    resolved.cost.front_end = replace(resolved.cost.front_end, **front)
    return runner.run(resolved, stretch=stretch)


def one_by_one(arrivals, work):
    free, out = 0.0, []
    for arrival, each in zip(arrivals, work, strict=True):
        free = max(arrival, free) + each
        out.append(free)
    return out


@given(st.lists(st.tuples(seconds, seconds), max_size=30))
def test_a_server_does_one_thing_after_another(jobs) -> None:
    arrivals = np.sort(np.array([a for a, _ in jobs], float))
    work = np.array([w for _, w in jobs], float)
    found = prepared(arrivals, work)
    assert found == pytest.approx(one_by_one(arrivals, work), rel=1e-9, abs=1e-9)
    assert (found >= arrivals).all()


@pytest.mark.parametrize("changes", [OPEN, SMALL], ids=["open", "closed"])
def test_requests_queue_for_the_tokeniser(changes) -> None:
    r = simulated(changes, base=0.01, request_work=0.05, input_token=0.0).requests
    order = np.lexsort((r.request, r.sent))
    assert r.queued[order] - 0.01 == pytest.approx(one_by_one(r.sent[order], np.full(len(r), 0.05)), rel=1e-9)
    assert (np.diff(np.sort(r.queued)) > 0.0499).all()


def test_a_closed_loop_starts_one_after_another() -> None:
    r = simulated(SMALL, base=0.0, request_work=0.02, input_token=0.0).requests
    assert r.sent[:16] == pytest.approx(np.zeros(16))
    assert r.queued[:16] == pytest.approx(0.02 * np.arange(1, 17))


def test_without_work_nothing_queues() -> None:
    r = simulated(OPEN, base=0.004, request_work=0.0, input_token=0.0).requests
    assert r.queued - r.sent == pytest.approx(np.full(len(r), 0.004))


def test_rows_sent_later_but_known_earlier_wait_for_their_turn() -> None:
    """A turn that its user thinks about is not in the way of what is sent before it."""
    resolved = runner.resolve(workload(SMALL))
    driver = LoadDriver(resolved.traffic, 2, np.full(len(resolved.traffic), 1.0), 0.5)
    assert driver.next_time() == 1.5
    driver._send(5, 7.0)  # known now, sent at 7 s
    assert [row.row for row, _ in driver.take(3.0)] == [0, 1]
    driver._send(6, 4.0)
    assert driver.next_time() == 5.5
    assert [(row.row, at) for row, at in driver.take(9.0)] == [(6, 5.5), (5, 8.5)]
    assert driver.next_time() == float("inf")


def test_a_front_end_bounds_the_tokens_of_a_closed_loop() -> None:
    free = simulated(SMALL, output_work=0.0)
    slow = simulated(SMALL, output_work=2e-3)

    def rate(data):
        return data.requests.output_tokens.sum() / (data.requests.finish.max() - data.requests.sent.min())

    assert rate(free) > 1000
    assert 0.9 * 500 < rate(slow) <= 500
    assert slow.requests.first_token.max() > free.requests.first_token.max()


def test_a_fast_front_end_only_delays() -> None:
    free, fast = (simulated(OPEN, output_work=w) for w in (0.0, 1e-7))
    late = fast.requests.finish - free.requests.finish
    assert (late >= 0).all() and late.max() < 1e-5


@pytest.mark.parametrize("changes", [OPEN, SMALL], ids=["open", "closed"])
@pytest.mark.parametrize(
    "engine", [{}, {"engine.preset": "sglang", "engine.scheduler.poll_interval": 7}], ids=["", "seldom"]
)
def test_stretching_is_stepping_with_a_queue(changes, engine) -> None:
    times = [simulated(changes | engine, stretch=stretch, output_work=4e-4) for stretch in (True, False)]
    for name in ("queued", "first_token", "finish"):
        np.testing.assert_array_equal(*(getattr(data.requests, name) for data in times))


def test_the_next_request_is_sent_when_the_last_token_is_out() -> None:
    r = simulated(SMALL, output_work=2e-3).requests
    later = np.sort(r.sent)[16:]
    assert np.isin(later, r.finish).all()


def test_what_is_worked_out_afterwards_is_what_the_steps_say() -> None:
    """Two requests over five steps, one of them for three."""
    ends = np.array([1.0, 2.0, 3.0, 3.1, 3.2])
    tokens = TokenTimes(np.array([0, 1]), np.array([0.5, 1.0]), np.array([0, 1]), np.array([5, 3]), ends.copy())
    queue = Delivery(0.25, 0.4)
    for end, rows in zip(ends, (1, 2, 2, 2, 1), strict=True):
        queue.steps([end], rows)
    assert drained(tokens, 0.4) == pytest.approx([1.4, 2.8, 3.8, 4.6, 5.0])
    assert list(queue.out) == pytest.approx([1.4, 2.8, 3.8, 4.6, 5.0])
    finish = np.array([3.2, np.nan])
    Delivery(0.25, 0.4).apply(tokens, finish)
    assert tokens.step_ends == pytest.approx([1.65, 3.05, 4.05, 4.85, 5.25])
    assert tokens.start == pytest.approx([0.75, 1.65]) and finish[0] == pytest.approx(5.25) and np.isnan(finish[1])
    assert queue.time(0.2) == pytest.approx(0.45) and queue.time(3.1) == pytest.approx(4.85)


def test_seldom_looks_keep_requests_waiting() -> None:
    """Half of the interval in the mean, where others decode all the while and no prompts come between."""
    preset = {"engine.preset": "sglang"}
    often = simulated(OPEN | preset).requests
    seldom = simulated(OPEN | preset | {"engine.scheduler.poll_interval": 20}).requests
    step = float(np.median((often.finish - often.first_token) / (often.output_tokens - 1)))
    later = float((seldom.admitted - seldom.queued).mean() - (often.admitted - often.queued).mean())
    assert 0.05 * 20 * step < later < 20 * step


def test_waiting_for_the_front_end_is_told() -> None:
    """A burst waits for a slow one; one that keeps up says nothing."""
    burst = {**SMALL, "load": {"mode": "closed", "concurrency": 64}}
    slow = simulated(burst, request_work=0.05, output_work=0.0).warnings
    assert any("for the front end, which is taken to prepare 20 a second" in line for line in slow)
    assert not any("front end" in line for line in simulated(burst, request_work=1e-4, output_work=1e-6).warnings)


def test_more_tokens_than_front_ends_were_seen_to_stream_are_told() -> None:
    many = {
        "model": "qwen3-0.6b", "load": {"mode": "closed", "concurrency": 256},
        "traffic.synthetic": {"requests": 256, "input_tokens": 32, "output_tokens": 200},
    }  # fmt: skip
    fast = simulated(many, request_work=1e-5, output_work=4e-5)
    rate = fast.requests.output_tokens.sum() / fast.info["end"]
    assert rate > 8000 and any(f"{rate:,.0f} tokens a second" in line for line in fast.warnings)
    assert not any("tokens a second" in line for line in simulated(many, request_work=1e-5, output_work=2e-4).warnings)
