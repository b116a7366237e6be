"""An open loop with a most that may be in flight: requests come when they are due, and wait for one before them to be over."""

from __future__ import annotations

import numpy as np
import pytest
import simulate

from experiments.driver import NEVER, LoadDriver
from reports.metrics import notices, summarize
from reports.run_data import RunData
from workloads.errors import InputError
from workloads.traffic import Traffic

REQUESTS = 60


def run(most: int | None, rate: float = 20.0, **more: object) -> RunData:
    traffic = {
        "requests": REQUESTS, "arrivals": {"process": "poisson", "rate": rate},
        "input_tokens": {"distribution": "fixed", "value": 512},
        "output_tokens": {"distribution": "uniform", "low": 5, "high": 90},
    }  # fmt: skip
    load = {"load": {"mode": "open", "max_concurrency": most}} if most else {}
    return simulate.run({"traffic": {"synthetic": traffic}, **load, **more})


def in_flight(data: RunData) -> int:
    r = data.requests
    events = sorted([(t, 1) for t in r.sent] + [(t, -1) for t in r.finish])
    return int(max(np.cumsum([change for _, change in events])))


@pytest.mark.parametrize(
    "more", [{}, {"cluster": {"replicas": 2, "router": "least-requests"}}], ids=["one", "two replicas"]
)
def test_no_more_are_in_flight_and_one_is_sent_as_soon_as_there_is_room(more: dict) -> None:
    data = run(4, **more)
    r = data.requests
    assert in_flight(data) == 4
    order = np.lexsort((r.request, r.scheduled))
    free = [0.0] * 4  # by hand: the earliest of four places takes the next that is due
    for row in order:
        place = int(np.argmin(free))
        assert r.sent[row] == max(r.scheduled[row], free[place])
        free[place] = r.finish[row]
    assert (np.diff(r.sent[order]) >= 0).all()


def test_one_place_serves_one_after_another() -> None:
    r = run(1).requests
    assert (r.sent[1:] >= r.finish[:-1] - 1e-12).all()


def test_room_for_all_is_no_limit() -> None:
    free, wide = run(None), run(REQUESTS)
    for column in ("sent", "queued", "first_token", "finish"):
        # Not to the bit: how tokens queue on their way out is worked out step by step in one, at the end in the other.
        assert getattr(wide.requests, column) == pytest.approx(getattr(free.requests, column), rel=1e-3)


def test_what_is_told() -> None:
    slow = run(2, rate=50.0)
    summary = summarize(slow)
    held = int((slow.requests.sent > slow.requests.scheduled).sum())
    assert held > REQUESTS / 2 and summary["held_back_requests"] == held
    assert summary["mean_e2el_from_schedule_ms"] > 2 * summary["mean_e2el_ms"]
    assert any(text.startswith(f"{held} of {REQUESTS} requests were held back") for text in notices(summary))
    assert summary["saturation"]["label"] == "overloaded" and "with 2 in flight" in summary["saturation"]["sentence"]
    assert summary["send_lag_ok"] is None and summary["rate_kept"] is None
    assert summarize(run(None))["held_back_requests"] is None


def test_a_driver_that_is_full_knows_no_time() -> None:
    traffic = Traffic(np.array([0.0, 1.0, 2.0]), np.full(3, 8), np.full(3, 2))
    driver = LoadDriver(traffic, 0, np.zeros(3), 0.0, most=1)
    assert driver.listens and driver.next_time() == 0.0
    assert [request.row for request, _ in driver.take(0.0)] == [0] and driver.next_time() == NEVER
    assert driver.take(5.0) == []
    driver.finished(0, 5.0)
    assert driver.next_time() == 5.0 and [(r.row, at) for r, at in driver.take(5.0)] == [(1, 5.0)]
    driver.refused(1, 5.5)
    assert driver.take(6.0)[0][1] == 5.5
    assert driver.due.tolist() == [0.0, 1.0, 2.0] and driver.sent.tolist() == [0.0, 5.0, 5.5]


def test_a_closed_loop_has_none() -> None:
    with pytest.raises(InputError, match="a closed loop has as many in flight as concurrency says"):
        simulate.workload({"load": {"mode": "closed", "concurrency": 2, "max_concurrency": 2}})
