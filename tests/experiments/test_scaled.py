"""Replicas that come and go: nobody is lost, nobody is sent where nothing is ready, and what is paid for adds up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulate import run, workload
from test_cluster import LOADS, ROOT, SHARED, same

from experiments import runner
from experiments.scaled import Scaled
from reports.metrics import summarize
from reports.run_data import FINISHED, RunData
from reports.run_folder import read_run, write_run
from sim.cluster import ROUTERS, Autoscaler, Demand
from workloads.errors import InputError

QUICK = {"min": 1, "max": 6, "signal": "requests", "target": 8, "interval": "1s", "start_up": "3s", "down_window": "5s"}
WAVES = {
    "backend.gpu": "l40s",
    "traffic.synthetic": {
        "requests": 600,
        "arrivals": {"process": "on-off", "rate": 10, "on": "10s", "off": "20s"},
        "input_tokens": {"distribution": "lognormal", "mean": 400, "std": 300, "high": 1500},
        "output_tokens": {"distribution": "lognormal", "mean": 80, "std": 60, "high": 300},
    },
}


def scaled(
    changes: dict[str, Any], rule: dict[str, Any] | None = None, router: str = "least-requests", **options
) -> RunData:
    return run({**changes, "cluster": {"router": router, "autoscale": {**QUICK, **(rule or {})}}}, **options)


@pytest.mark.parametrize("router", sorted(ROUTERS))
@pytest.mark.parametrize("load", ["waves", *LOADS])
def test_everybody_is_served_by_a_replica_that_was_there(load: str, router: str) -> None:
    resolved = runner.resolve(workload({
        **(WAVES if load == "waves" else LOADS[load]), "cluster": {"router": router, "autoscale": QUICK},
    }))  # fmt: skip
    service = Scaled(resolved, resolved.traffic, True, None)
    service.serve()
    lives, place, sent = service.lives, service.place, service.sent
    assert np.isfinite(sent).all() and (place >= 0).all()
    for member, life in zip(service.replicas, lives, strict=True):
        own = sent[place == member.number]
        assert not len(own) or (own.min() >= life.ready - 1e-9 and own.max() <= life.last + 1e-9)
        assert life.ready - life.asked in (0.0, pytest.approx(3.0)) or life.ready == float("inf")
        assert member.engine.state.idle and not member.engine.unfinished_rows()
    for _, ready, starting, _ in service.history:
        assert ready >= 1 and ready + starting <= 6
    assert len(lives) > 1 or load != "waves"


@pytest.mark.parametrize("load", ["waves", "closed", "sessions"])
def test_stretching_changes_nothing_and_neither_does_again(load: str) -> None:
    for signal, target in (("requests", 8), ("queue", 2), ("rate", 3), ("kv", 0.02)):
        changes = {**(WAVES if load == "waves" else LOADS[load]), "engine.preset": "vllm@0.8"}
        rule = {"signal": signal, "target": target}
        at_once = scaled(changes, rule)
        assert same(at_once, scaled(changes, rule, stretch=False)) == []
        assert at_once.info["scaling"] == scaled(changes, rule).info["scaling"]


class Still(Autoscaler):
    """As many as there are."""

    def desired(self, seen: Demand) -> int:
        return seen.ready


class Clockwork(Autoscaler):
    """Four from the tenth second on, one from the thirtieth."""

    def desired(self, seen: Demand) -> int:
        return 4 if 10 <= seen.time < 30 else 1


STILL = {"min": 1, "max": 4, "policy": "test_scaled:Still"}
CLOCKWORK = {"min": 1, "max": 4, "policy": "test_scaled:Clockwork", "interval": "5s", "start_up": "5s"}


@pytest.mark.parametrize("load", LOADS)
def test_an_autoscaler_that_does_nothing_is_none(load: str) -> None:
    fixed = run({**LOADS[load], "cluster": {"replicas": 3, "router": "prefix"}})
    still = run({**LOADS[load], "cluster": {"replicas": 3, "router": "prefix", "autoscale": STILL}})
    assert same(fixed, still, timeline=True) == []
    assert still.info["scaling"]["gpu_hours"] == pytest.approx(
        3 * float(np.nanmax(still.requests.finish)) / 3600, rel=0.01
    )


def test_gpu_hours_by_hand() -> None:
    """One all the time; three from 10 s on, ready at 15 s, told to go at 30 s and gone when they have served what they have."""
    changes = {
        **SHARED, "traffic.synthetic.requests": 800, "traffic.synthetic.arrivals.rate": 20, "engine.parallel": {"tensor": 2},
    }  # fmt: skip
    data = run({**changes, "cluster": {"router": "round-robin", "autoscale": CLOCKWORK}})
    r, told = data.requests, data.info["scaling"]
    assert (r.status == FINISHED).all() and told["started"] == 4 and told["went"] == 3
    last = [max(30.0, float(r.finish[r.replica == number].max())) for number in (1, 2, 3)]
    end = float(np.nanmax(r.finish))
    assert told["gpu_hours"] == pytest.approx(2 * (end + sum(t - 10 for t in last)) / 3600, rel=2e-3)
    assert [10, 1, 3, 0] in told["history"] and [15, 4, 0, 0] in told["history"]
    assert [30, 1, 0] in [entry[:3] for entry in told["history"]]
    assert not ((r.sent < 15 - 1e-9) & (r.replica > 0)).any() and not ((r.sent > 30) & (r.replica > 0)).any()
    kv = sum(getattr(data.timeline, f"kv_{k}") for k in ("used", "cached", "reserved", "internal", "external", "free"))
    one = data.info["kv_pool_tokens"] / 4
    times = data.timeline.time
    assert kv[np.searchsorted(times, 5)] == pytest.approx(one) and kv[np.searchsorted(times, 20)] == pytest.approx(
        4 * one
    )


def test_a_run_folder_knows(tmp_path: Path) -> None:
    data = scaled(WAVES)
    back = read_run(write_run(data, tmp_path / "r"))
    assert back.info["scaling"] == data.info["scaling"]
    summary = json.loads((tmp_path / "r" / "run.json").read_text())["summary"]
    assert summary["scaling"] == summarize(data)["scaling"] and summary["scaling"]["most"] > 1
    page = (tmp_path / "r" / "report.html").read_text()
    assert "<h2>Autoscaling</h2>" in page and 'id="figure-scaling"' in page


def test_a_slow_start_costs_the_slo() -> None:
    met = []
    for start in ("0s", "20s"):
        data = scaled({**WAVES, "slo": {"ttft_ms": 500}, "traffic.synthetic.arrivals.rate": 25}, {"start_up": start})
        met.append(summarize(data, with_intervals=False)["slo_attainment"])
    assert met[0] > met[1] + 0.05


class Mute(Autoscaler):
    """Says nothing."""

    def desired(self, seen: Demand) -> int:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"min": 3, "max": 3}, r"cluster\.autoscale\.max: nothing to scale from 3 to 3"),
        ({"signal": None}, r"cluster\.autoscale\.signal: hpa needs a signal"),
        ({"signal": "ttft"}, r"cluster\.autoscale\.signal: .*queue"),
        ({"target": 0}, r"cluster\.autoscale\.target"),
        ({"signal": "kv", "target": 80}, r"cluster\.autoscale\.target: .*a share"),
        ({"start_up": 3}, r"cluster\.autoscale\.start_up: .*3s"),
        ({"policy": "hpaa"}, r"cluster\.autoscale\.policy: .*hpa"),
        ({"policy": "test_scaled:Still"}, r"cluster\.autoscale\.signal: a setting of hpa"),
        ({"options": {"a": 1}}, r"cluster\.autoscale\.options: "),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_where_it_was_written(rule: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        runner.resolve(workload({"cluster.autoscale": {**QUICK, **rule}}))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cluster.replicas": 9}, r"cluster\.replicas: 9 replicas at the start"),
        (
            {"cluster.prefill": {}, "cluster.decode": {}},
            r"cluster\.autoscale: prefill and decode engines are not scaled",
        ),
        ({"backend": {"name": "http", "base_url": "http://localhost:1"}}, r"cluster\.autoscale: .*simulation only"),
        ({"backend": {"name": "torch"}}, r"cluster\.autoscale: .*simulation only"),
    ],
)
def test_what_does_not_go_with_it(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        runner.resolve(workload({"cluster.autoscale": QUICK, **changes}))


def test_an_autoscaler_that_says_no_number_is_told_so() -> None:
    with pytest.raises(InputError, match=r"autoscaler test_scaled:Mute asks for None replicas"):
        run({**SHARED, "cluster.autoscale": {"max": 3, "policy": "test_scaled:Mute", "interval": "1s"}})


def test_the_autoscaler_of_the_how_to_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "howto" / "autoscaling.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(# my_autoscalers.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "my_autoscalers.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    rule = {"min": 1, "max": 6, "policy": "my_autoscalers:AheadOfTheQueue", "interval": "1s", "start_up": "3s",
            "options": {"requests_each": 8, "spare": 2}}  # fmt: skip
    data = run({**WAVES, "cluster": {"router": "least-requests", "autoscale": rule}})
    assert (data.requests.status == FINISHED).all()
    history = data.info["scaling"]["history"]
    assert history[0] == [0, 1, 0, 0] and all(2 <= ready + starting <= 6 for _, ready, starting, _ in history[1:])
