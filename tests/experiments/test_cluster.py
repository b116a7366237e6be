"""Several replicas behind a router: nothing is lost, nothing hangs on how it is simulated, and one replica is no cluster."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import run, workload
from test_runner import DIGEST, ROOT, SESSIONS

from experiments import runner
from experiments.cluster import run_cluster
from reports.digest import column_digests
from reports.html import render_report
from reports.metrics import summarize
from reports.run_data import FINISHED, REFUSED, UNFINISHED, RunData
from reports.run_folder import read_run, write_run
from sim.cluster import ROUTERS, Incoming, Load, Router
from workloads.errors import InputError
from workloads.transform import take

SHARED = {
    "traffic.synthetic": {
        "requests": 120,
        "arrivals": {"process": "poisson", "rate": 60},
        "input_tokens": {"distribution": "lognormal", "mean": 400, "std": 300, "high": 1500},
        "output_tokens": {"distribution": "lognormal", "mean": 80, "std": 60, "high": 300},
        "prefix": {"kind": "system-prompts", "count": 3, "tokens": 200},
    }
}
LOADS: dict[str, dict[str, Any]] = {
    "open": SHARED,
    "closed": {**SHARED, "load": {"mode": "closed", "concurrency": 12}},
    "sessions": {**SESSIONS, "traffic.synthetic.arrivals.rate": 20},
    "closed sessions": {**SESSIONS, "load": {"mode": "closed", "concurrency": 9}},
}
REFUSING = {"engine.max_model_len": 900}


def clustered(router: str, replicas: int, load: dict[str, Any], **options: Any) -> RunData:
    """A run of `replicas` engines."""
    return run({**load, "cluster": {"replicas": replicas, "router": router}}, **options)


def same(a: RunData, b: RunData, *, timeline: bool = False) -> list[str]:
    """Columns in which two runs differ, but for which replica had what."""
    mine, theirs = column_digests(a), column_digests(b)
    kept = [name for name in mine if name != "requests.replica" and (timeline or not name.startswith("timeline."))]
    return [name for name in kept if mine[name] != theirs[name]]


# --- what must hold whatever the router does


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(ROUTERS)), st.integers(2, 5), st.sampled_from(sorted(LOADS)), st.booleans(), st.integers(0, 9)
)  # fmt: skip
def test_nobody_is_lost_and_everybody_is_somewhere(
    router: str, replicas: int, load: str, small: bool, seed: int
) -> None:
    data = clustered(router, replicas, {**LOADS[load], "seed": seed, **(REFUSING if small else {})})
    r = data.requests
    counts = {status: int((r.status == status).sum()) for status in (FINISHED, REFUSED)}
    assert sum(counts.values()) == len(r) and (counts[REFUSED] > 0) <= small
    sent = np.isfinite(r.sent)
    assert ((r.replica >= 0) == sent).all() and r.replica.max() < replicas
    assert (r.queued[sent] >= r.sent[sent]).all()
    t = data.timeline
    assert [int(t.finished.sum()), int(t.arrivals.sum())] == [counts[FINISHED], int(sent.sum())]
    assert int(t.output_tokens.sum()) == int(r.output_tokens.sum())
    np.testing.assert_allclose(sum(getattr(t, f"kv_{k}") for k in ("used", "cached", "reserved", "internal", "external",
                                                                  "free")), data.info["kv_pool_tokens"])  # fmt: skip
    summary = summarize(data, with_intervals=False)
    assert summary["littles_law"]["error"] < 0.02
    assert sum(each["requests"] for each in summary["replicas"]) == sent.sum()
    assert sum(each["output_tokens"] for each in summary["replicas"]) == r.output_tokens.sum()
    assert 1 <= summary["imbalance"] <= replicas


@pytest.mark.parametrize("preset", ["vllm", "vllm@0.8", "sglang", "static"])
@pytest.mark.parametrize("load", LOADS)
def test_stretching_changes_nothing(load: str, preset: str) -> None:
    for router in ("round-robin", "least-requests", "shortest-queue", "prefix"):
        for more in ({}, REFUSING):
            changes = {"engine.preset": preset, **more, **LOADS[load]}
            at_once = clustered(router, 3, changes)
            assert same(at_once, clustered(router, 3, changes, stretch=False)) == []
    assert at_once.host["plans"] > 0


def test_stretches_are_cut_only_for_what_comes_to_the_replica() -> None:
    """Four replicas with four times the load take about four times the plans of one, not sixteen times."""
    load = {**LOADS["closed"], "traffic.synthetic.prefix": None}
    one = run({**load, "traffic.synthetic.requests": 100})
    four = {"traffic.synthetic.requests": 400, "load": {"mode": "closed", "concurrency": 48}}
    many = clustered("least-requests", 4, {**load, **four})
    assert many.host["plans"] < 6 * one.host["plans"]


@pytest.mark.parametrize("preset", ["vllm", "vllm-v0", "sglang", "tensorrt-llm", "static", "lightllm"])
@pytest.mark.parametrize("load", LOADS)
def test_one_replica_is_no_cluster(load: str, preset: str) -> None:
    """Bit for bit, timeline included; where a cluster of one is forced through the router too.

    Not so where a static batch keeps an engine alone from looking at whom it must refuse, so that it learns of it later.
    """
    changes = {**LOADS[load], **({} if preset == "static" else REFUSING), "engine.preset": preset}
    alone = run(changes)
    written = run({**changes, "cluster": {"replicas": 1}})
    assert written.requests.replica is None and "replicas" not in written.info
    assert same(alone, written, timeline=True) == []
    routed = run_cluster(runner.resolve(workload({**changes, "cluster": {"replicas": 1, "router": "round-robin"}})))
    assert same(alone, routed, timeline=True) == []
    assert routed.host["plans"] == alone.host["plans"]


@pytest.mark.parametrize("router", ["least-requests", "shortest-queue", "prefix"])
def test_one_replica_is_no_cluster_for_a_router_that_looks(router: str) -> None:
    """In an open loop the front end adds its times up in another order: equal but for rounding."""
    alone = run(SHARED).requests
    routed = run_cluster(runner.resolve(workload({**SHARED, "cluster": {"router": router}}))).requests
    for name in ("queued", "admitted", "first_token", "finish"):
        np.testing.assert_allclose(getattr(routed, name), getattr(alone, name), rtol=1e-9)
    assert (routed.replica == 0).all()


def test_replicas_that_share_nothing_are_engines_of_their_own() -> None:
    """Each replica of a round-robin does with its share what an engine alone does with it."""
    load = {**SHARED, "traffic.synthetic.requests": 60}
    data = clustered("round-robin", 3, load)
    resolved = runner.resolve(workload(load))
    for number in range(3):
        own = np.flatnonzero(data.requests.replica == number)
        assert (own % 3 == number).all()
        resolved._traffic = take(runner.resolve(workload(load)).traffic, own)
        alone = runner.run(resolved).requests
        np.testing.assert_array_equal(alone.finish, data.requests.finish[own])
        np.testing.assert_array_equal(alone.cached_tokens, data.requests.cached_tokens[own])


def test_fresh_processes_give_the_same_bytes(tmp_path: Path) -> None:
    changes = {**LOADS["closed sessions"], "cluster": {"replicas": 3, "router": "prefix"}}
    found = []
    for seed in ("1", "2"):
        code = DIGEST.format(tests=str(Path(__file__).parent), changes=changes, out=str(tmp_path / seed))
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found[0] == found[1] and json.loads(found[0])[1]["completed"] == 60


# --- what a router is told


class Recording(Router):
    """Takes turns and notes what it is told."""

    asks = True
    seen: ClassVar[list[tuple[Incoming, list[tuple[int, int, int, int]]]]] = []

    def route(self, request: Incoming, loads: list[Load]) -> int:
        self.seen.append((request, [(a.requests, a.tokens, a.running, a.waiting) for a in loads]))
        return len(self.seen) % self.replicas


@pytest.mark.parametrize("load", LOADS)
def test_a_router_is_told_what_it_sent_and_what_came_back(load: str) -> None:
    Recording.seen.clear()
    r = clustered("test_cluster:Recording", 3, LOADS[load]).requests
    assert len(Recording.seen) == len(r)
    tokens = r.input_tokens + r.max_tokens
    earlier: list[int] = []
    for request, loads in Recording.seen:
        row = request.number
        assert [request.time, request.session, request.input_tokens] == [
            r.sent[row],
            r.session[row],
            r.input_tokens[row],
        ]
        out = [e for e in earlier if r.finish[e] > request.time]
        for place, (count, known, running, waiting) in enumerate(loads):
            there = [e for e in out if r.replica[e] == place]
            assert count == len(there) and known == tokens[there].sum()
            # of the engine's own queues: those in its front end are not in them, those whose last tokens are on their way neither
            assert 0 <= running + waiting <= count
        earlier.append(row)


class Lost(Router):
    """Names a replica that is not there."""

    def route(self, request: Incoming, loads: list[Load]) -> int:
        return self.replicas


class Mute(Router):
    """Says nothing."""

    def route(self, request: Incoming, loads: list[Load]) -> int:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(("name", "told"), [("Lost", "replica 2; there are 2"), ("Mute", "replica None; there are 2")])
def test_a_router_that_names_no_replica_is_told_so(name: str, told: str) -> None:
    with pytest.raises(InputError, match=rf"test_cluster:{name} sent request 0 to {told}"):
        clustered(f"test_cluster:{name}", 2, SHARED)


def test_the_router_of_the_how_to_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "howto" / "cluster.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(# my_routers.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "my_routers.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    r = clustered("my_routers:LongPromptsApart", 3, {**SHARED, "traffic.synthetic.prefix.tokens": 3700}).requests
    assert ((r.input_tokens > 4000) == (r.replica == 2)).all() and len(set(r.replica)) == 3


def test_routing_by_prefix_hits_more_where_one_cache_cannot_hold_all() -> None:
    """The example's point, small: 24 beginnings of 400 tokens, and room for about 8 of them in each of four pools."""
    changes = {
        **SHARED, "traffic.synthetic.requests": 400, "engine.kv": {"capacity_tokens": 6000}, "engine.max_model_len": 2500,
        "traffic.synthetic.prefix": {"kind": "system-prompts", "count": 24, "tokens": 400},
        "traffic.synthetic.input_tokens": 60, "traffic.synthetic.output_tokens": 20,
    }  # fmt: skip
    found = {
        r: summarize(clustered(r, 4, changes), with_intervals=False)
        for r in ("round-robin", "least-requests", "prefix")
    }
    for other in ("round-robin", "least-requests"):
        assert found["prefix"]["prefix_hit_rate"] > 1.3 * found[other]["prefix_hit_rate"]
        assert found["prefix"]["median_ttft_ms"] < found[other]["median_ttft_ms"]
        assert found["prefix"]["imbalance"] > found[other]["imbalance"], "and this is what it costs"


# --- what is left behind


def test_a_run_folder_knows_its_replicas(tmp_path: Path) -> None:
    data = clustered("prefix", 3, LOADS["closed"])
    back = read_run(write_run(data, tmp_path / "r"))
    np.testing.assert_array_equal(back.requests.replica, data.requests.replica)
    assert same(back, data, timeline=True) == []
    summary = summarize(back)
    assert summary["replicas"] == json.loads((tmp_path / "r" / "run.json").read_text())["summary"]["replicas"]
    page = (tmp_path / "r" / "report.html").read_text()
    assert "<h2>Replicas</h2>" in page and 'id="figure-replicas"' in page
    single = run(LOADS["closed"])
    assert read_run(write_run(single, tmp_path / "s")).requests.replica is None
    assert "<h2>Replicas</h2>" not in (tmp_path / "s" / "report.html").read_text()
    assert not {"replicas", "imbalance"} & set(summarize(single))


def test_many_replicas_are_drawn_as_a_range() -> None:
    data = clustered("random", 9, SHARED)
    page = render_report(data, summarize(data))
    assert "replica 8" not in page and ">least</button>" in page


def test_ctrl_c_keeps_what_was_done(tmp_path: Path) -> None:
    def stop(done: float, total: float, words: str) -> None:
        raise KeyboardInterrupt

    many = {**LOADS["closed"], "traffic.synthetic.requests": 3000}
    data = clustered("least-requests", 3, many, progress=stop, stretch=False)
    assert not data.info["complete"]
    r = data.requests
    assert set(r.status) == {FINISHED, UNFINISHED} and len(r) < 3000
    assert (r.replica >= 0).all() and np.isfinite(r.sent).all()
    assert len(read_run(write_run(data, tmp_path / "r")).requests) == len(r)


def test_figures_are_of_all_replicas_together() -> None:
    changes = {**SHARED, "engine.parallel": {"tensor": 2}}
    one, four = (runner.resolve(workload({**changes, "cluster": {"replicas": n}})) for n in (1, 4))
    assert [four.info[key] for key in ("gpus", "replicas")] == [8, 4] and one.info["gpus"] == 2
    for key in ("kv_pool_tokens", "max_num_seqs"):
        assert four.info[key] == 4 * one.info[key]
    assert four.budget.kv_tokens == one.budget.kv_tokens
    assert four.config["cluster"] == {
        "replicas": {"value": 4, "source": "user"}, "router": {"value": "round-robin", "source": "default"},
    }  # fmt: skip


def test_a_router_of_one_replica_is_told_to_do_nothing() -> None:
    (told,) = runner.resolve(workload({"cluster": {"router": "prefix"}})).warnings
    assert told == "cluster.router has no effect: there is one replica (cluster.replicas)"


def test_a_real_model_has_no_replicas() -> None:
    with pytest.raises(InputError, match=r"cluster\.replicas: backend torch runs one model"):
        runner.resolve(workload({"backend": {"name": "torch"}, "cluster": {"replicas": 2}}))
