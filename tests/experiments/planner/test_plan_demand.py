"""The traffic of one replica: sessions whole, every request once, the busiest stretch of a long trace."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.planner.demand import Demand, make_demand
from experiments.planner.question import ask
from experiments.workload_file import Source, build_workload
from workloads.errors import InputError
from workloads.traffic import Traffic


def demand(traffic: Traffic) -> Demand:
    return Demand(traffic, 1.0, 0, 1.0, 1.0, 2, 0.0)


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    """Some sessions of a few turns."""
    turns = draw(st.lists(st.integers(1, 4), min_size=1, max_size=30))
    parent, arrival = [], []
    for session, count in enumerate(turns):
        for turn in range(count):
            parent.append(-1 if turn == 0 else len(parent) - 1)
            arrival.append(float(session))
    size = len(parent)
    return Traffic(np.array(arrival), np.arange(1, size + 1), np.full(size, 2), parent=np.array(parent))


@given(traffics(), st.integers(1, 6))
@settings(deadline=None)
def test_replicas_share_all_and_nothing_twice(traffic: Traffic, replicas: int) -> None:
    shares = [demand(traffic).share(replicas, which, 10**6) for which in range(replicas)]
    # every row has its own prompt length, by which it is known again
    seen = np.concatenate([share.input_tokens for share in shares])
    assert sorted(seen.tolist()) == traffic.input_tokens.tolist()
    for share in filter(len, shares):
        share.validate()
        turns = {int(n): int(p) for n, p in zip(traffic.input_tokens, traffic.parent, strict=True)}
        for length, parent in zip(share.input_tokens.tolist(), share.parent.tolist(), strict=True):
            assert (parent >= 0) == (turns[length] >= 0), "a session stays with one replica"
    sizes = [int((share.parent < 0).sum()) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_of_a_long_trace_the_busiest_stretch_is_taken() -> None:
    arrival = np.concatenate([np.arange(0, 100, 1.0), 100 + np.arange(0, 10, 0.1), np.arange(110, 210, 1.0)])
    traffic = Traffic(arrival, np.full(len(arrival), 100), np.full(len(arrival), 10))
    part = demand(traffic).share(1, 0, 100)
    assert len(part) == 100 and part.arrival[0] == 0.0
    assert float(part.arrival[-1]) == pytest.approx(9.9)


def test_requests_beyond_the_context_are_left_out_and_told(tmp_path: Path) -> None:
    rows = [{"arrival": i * 1.0, "input_tokens": n, "output_tokens": 5} for i, n in enumerate([10, 9000, 20, 8192, 30])]
    trace = tmp_path / "t.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)) + "\n")
    question = ask("llama-3-8b", str(trace), slo="ttft=1s")
    found = question.demand()
    assert found.traffic.input_tokens.tolist() == [10, 20, 30]
    assert "2 requests are longer than the model's context of 8,192 tokens and left out" in found.notes
    with pytest.raises(InputError, match="every prompt is longer"):
        make_demand(question.workload, 5)


def test_rates_and_what_has_none(traffic: Path) -> None:
    question = ask("llama-3-8b", str(traffic), slo="ttft=1s", rate=7.0)
    found = question.demand()
    assert found.rate == 7.0
    span = float(np.ptp(found.traffic.arrival))
    assert (len(found.traffic) - 1) / span == pytest.approx(7.0, rel=1e-3)
    assert len(found.traffic) == 16 * 2 * 1000, "synthetic traffic is made long enough for all replicas"
    closed = ["load={mode: closed, concurrency: 9}"]
    assert ask("llama-3-8b", str(traffic), slo="ttft=1s", settings=closed).demand().concurrency == 9
    with pytest.raises(InputError, match="--rate belongs to traffic with arrival times"):
        ask("llama-3-8b", str(traffic), slo="ttft=1s", settings=closed, rate=1.0).demand()
    lengths = {"arrivals": {"process": "poisson", "rate": 1}, "input_tokens": 5, "output_tokens": 5}
    file = {
        "name": "one",
        "model": "llama-3-8b",
        "backend": {"gpu": "h100"},
        "traffic": {"synthetic": lengths | {"requests": 1}},
    }
    text = json.dumps(file)
    with pytest.raises(InputError, match="no arrival times to tell a rate from"):
        make_demand(build_workload(Source(text, "w.yaml")), 8192)
