"""Kubernetes' rule, by hand: from its documentation and `replica_calculator.go`."""

from __future__ import annotations

import pytest

from sim.cluster import Demand, make_autoscaler


def seen(
    time: float,
    ready: int,
    running: int = 0,
    *,
    starting: int = 0,
    waiting: int = 0,
    kv: float = 0.0,
    rate: float = 0.0,
):
    return Demand(time, ready, starting, running, waiting, kv, rate)


def hpa(**options):
    return make_autoscaler("hpa", 1, 20, {"signal": "requests", "target": 20.0, **options})


@pytest.mark.parametrize(
    ("ready", "running", "starting", "wanted"),
    [
        (3, 90, 0, 5),  # ceil(3 × 30 / 20)
        (3, 65, 0, 3),  # 21.7 of 20 is within the tolerance of 10 %
        (3, 67, 0, 4),
        (3, 54, 0, 3),
        (2, 70, 2, 4),  # 35 of 20 on two, but 17.5 with the two that are starting: the change would turn round, so none
        (2, 120, 2, 6),  # 60 of 20, with those that start 30: ceil(4 × 1.5)
        (2, 400, 0, 6),  # 20 would do; at most twice as many or four more
        (10, 400, 0, 20),
    ],
)  # fmt: skip
def test_as_many_as_hold_the_signal_at_its_target(ready: int, running: int, starting: int, wanted: int) -> None:
    assert hpa().desired(seen(15, ready, running, starting=starting)) == wanted


@pytest.mark.parametrize(
    ("signal", "target", "wanted"), [("queue", 5.0, 4), ("kv", 0.4, 6), ("rate", 2.0, 5), ("requests", 30.0, 2)]
)
def test_every_signal_is_read(signal: str, target: float, wanted: int) -> None:
    scaler = hpa(signal=signal, target=target)
    assert scaler.desired(seen(15, 3, 33, waiting=20, kv=0.8, rate=10.0)) == (3 if signal == "requests" else wanted)
    if signal == "requests":  # 53 in flight: two would do, and five minutes must pass
        assert scaler.desired(seen(400, 3, 33, waiting=20, kv=0.8, rate=10.0)) == wanted


def test_fewer_only_when_fewer_would_have_done_for_five_minutes() -> None:
    scaler = hpa()
    assert scaler.desired(seen(15, 4, 80)) == 4
    for at in range(30, 315, 15):
        assert scaler.desired(seen(at, 4, 20)) == 4, at
    assert scaler.desired(seen(330, 4, 30)) == 2  # ceil(4 × 7.5 / 20); one was asked for before, and the most counts


def test_more_only_after_its_window_where_there_is_one() -> None:
    scaler = hpa(up_window=30.0)
    assert [scaler.desired(seen(at, 1, 60)) for at in (15, 30, 45)] == [1, 1, 3]


def test_bounds_hold() -> None:
    scaler = make_autoscaler("hpa", 2, 3, {"signal": "requests", "target": 1.0, "down_window": 0.0})
    assert scaler.desired(seen(15, 2, 100)) == 3 and scaler.desired(seen(30, 3, 0)) == 2
