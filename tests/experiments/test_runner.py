"""Running: loops, sessions, samples, refusals, and the same bytes every time."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from simulate import figures, run, workload

from experiments import runner
from reports.fingerprint import traffic_fingerprint
from reports.metrics import summarize
from reports.run_data import FINISHED, REFUSED
from reports.run_folder import write_run

ROOT = Path(__file__).parents[2]
SESSIONS = {
    "traffic.synthetic": {
        "requests": 60,
        "arrivals": {"process": "poisson", "rate": 2},
        "input_tokens": {"distribution": "uniform", "low": 100, "high": 400},
        "output_tokens": {"distribution": "uniform", "low": 20, "high": 100},
        "sessions": {"turns": 4, "think": "5s"},
    }
}
LOADS = [{}, {"load": {"mode": "closed", "concurrency": 3}}]


@pytest.mark.parametrize("load", LOADS, ids=["open", "closed"])
@pytest.mark.parametrize(("preset", "block"), [("vllm@0.8", 16), ("lightllm", 1), ("vllm", 16), ("sglang", 1)])
def test_a_later_turn_finds_what_the_earlier_ones_computed(preset: str, block: int, load: dict) -> None:
    data = run({**SESSIONS, **load, "engine.preset": preset})
    r = data.requests
    later = np.flatnonzero(r.turn > 0)
    assert len(later) == 45 and (r.status == FINISHED).all()
    assert not r.cached_tokens[r.turn == 0].any()
    assert (r.session[later] == r.session[later - 1]).all()
    # the turn before it, prompt and answer, whose last token was never fed back: it has no keys and values
    history = r.input_tokens[later - 1] + r.output_tokens[later - 1] - 1
    # an engine that plans ahead may compute an answer's last token before it knows that it was the last
    ahead = data.config["engine"]["depth"]["value"] - 1
    assert (history // block * block <= r.cached_tokens[later]).all()
    assert (r.cached_tokens[later] <= (history + ahead) // block * block).all()


@pytest.mark.parametrize("load", LOADS, ids=["open", "closed"])
def test_a_turn_is_sent_when_its_user_has_thought(load: dict) -> None:
    r = run({**SESSIONS, **load}).requests
    later = np.flatnonzero(r.turn > 0)
    np.testing.assert_allclose(r.sent[later] - r.finish[later - 1], 5.0, rtol=1e-9)


def test_an_open_loop_sends_at_the_times_of_the_traffic_whatever_the_engine_does() -> None:
    slow = {"backend.gpu": "l4", "engine.scheduler": {"max_num_seqs": 2}}
    traffic = runner.resolve(workload(slow)).traffic
    np.testing.assert_array_equal(run(slow).requests.sent, traffic.arrival)


def test_a_closed_loop_keeps_its_clients_busy_and_has_no_more_of_them() -> None:
    r = run({"load": {"mode": "closed", "concurrency": 5}, "traffic.synthetic.requests": 100}).requests
    assert (r.sent == 0).sum() == 5
    for sent in r.sent[5:]:
        assert (r.finish == sent).any(), "each is sent the moment another has finished"
    inside = [(r.sent <= t).sum() - (r.finish <= t).sum() for t in np.sort(r.sent)]
    assert max(inside) == 5


@pytest.mark.parametrize("stretch", [True, False], ids=["stretches", "steps"])
@pytest.mark.parametrize("preset", ["vllm", "vllm@0.8"])
def test_an_engine_that_always_has_work_is_always_busy_and_never_more(preset: str, stretch: bool) -> None:
    long = {"traffic.synthetic.requests": 60, "traffic.synthetic.output_tokens": 200, "engine.preset": preset}
    data = runner.run(runner.resolve(workload({**long, "load": {"mode": "closed", "concurrency": 4}})), stretch=stretch)
    assert summarize(data)["busy_share"] == pytest.approx(1.0, abs=0.01)
    assert data.timeline.busy[2:].min() > 0.97, "no time is told as idle in one place and as doubly busy in another"


def test_sessions_are_what_a_closed_loop_counts() -> None:
    r = run({**SESSIONS, "load": {"mode": "closed", "concurrency": 2}}).requests
    for start in np.sort(r.sent[r.turn == 0]):
        last = {s: r.finish[r.session == s].max() for s in np.unique(r.session)}
        begun = {s: r.sent[r.session == s].min() for s in np.unique(r.session)}
        assert sum(begun[s] <= start < last[s] for s in begun) <= 2


@pytest.mark.parametrize("preset", ["vllm", "vllm-v0", "sglang", "tensorrt-llm", "orca", "static", "lightllm"])
def test_parallel_samples_share_the_prompt_and_all_come(preset: str) -> None:
    many = {
        "traffic.synthetic": {
            "requests": 20, "arrivals": {"process": "poisson", "rate": 5}, "input_tokens": 300, "output_tokens": 40, "n": 3,
        },
        "engine.preset": preset,
    }  # fmt: skip
    data = run(many)
    r = data.requests
    assert (r.status == FINISHED).all()
    assert (r.output_tokens == 120).all() and (r.target_tokens == 120).all()
    one = run({**many, "traffic.synthetic": {**many["traffic.synthetic"], "n": 1}})
    computed = [int(found.timeline.prefill_tokens.sum()) for found in (data, one)]
    assert computed == [20 * 300, 20 * 300], "the prompt is computed once for all samples"


# --- refusals


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine.max_model_len": 1000}, "prompt of {n} tokens leaves no room for an answer in 1,000 (max_model_len)"),
        ({"engine.kv": {"capacity_tokens": 1600}}, "tokens; the pool has 1,600"),
        ({"engine.preset": "vllm-v0", "engine.scheduler": {"max_num_batched_tokens": 1200}},
         "prompt of {n} tokens exceeds max_num_batched_tokens 1,200"),
        ({"traffic.synthetic.n": 3, "engine.scheduler": {"max_num_seqs": 2}}, "asks for 3 samples; max_num_seqs is 2"),
    ],
)  # fmt: skip
def test_what_can_never_be_served_is_refused_with_its_reason(changes: dict, reason: str) -> None:
    data = run({"traffic.max_tokens": "exact", "traffic.synthetic.requests": 100, **changes})
    r = data.requests
    refused = r.status == REFUSED
    assert refused.any()
    for row in np.flatnonzero(refused):
        assert reason.replace("{n}", f"{r.input_tokens[row]:,}") in r.reason[row]
    assert np.isnan(r.admitted[refused]).all() and not r.output_tokens[refused].any()
    assert set(r.status) <= {FINISHED, REFUSED}
    assert not (r.reason[~refused] != "").any()
    assert int(data.timeline.refused.sum()) == refused.sum()


@pytest.mark.parametrize("load", LOADS, ids=["open", "closed"])
def test_a_session_ends_where_one_of_its_turns_is_refused(load: dict) -> None:
    r = run({**SESSIONS, **load, "engine.max_model_len": 900}).requests
    refused = np.flatnonzero(r.status == REFUSED)
    own = [row for row in refused if "leaves no room" in r.reason[row]]
    after = [row for row in refused if r.reason[row] == "an earlier turn of its session was refused"]
    assert own and after and len(own) + len(after) == len(refused)
    for row in after:
        assert np.isnan(r.sent[row]) and any(r.session[o] == r.session[row] and r.turn[o] < r.turn[row] for o in own)
    assert (r.status[r.session == r.session[own[0]]][: r.turn[own[0]]] == FINISHED).all()


def test_nobody_is_lost() -> None:
    for load in LOADS:
        summary = figures({**SESSIONS, **load, "engine.max_model_len": 900})
        assert summary["completed"] + summary["refused"] == summary["requests"] == 60


# --- determinism

DIGEST = """
import hashlib, json, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from simulate import run, workload
from reports.metrics import summarize
from reports.run_folder import write_run
data = run({changes!r})
out = write_run(data, Path({out!r}), report=False)
files = {{p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(out.glob("*.parquet"))}}
print(json.dumps([files, summarize(data)], sort_keys=True))
"""
PRESSED = {
    **SESSIONS,
    "engine.kv": {"capacity_tokens": 3000},
    "engine.max_model_len": 2500,
    "traffic.max_tokens": {"multiple": 1.5},
}


@pytest.mark.parametrize(
    "changes", [{}, PRESSED, {**PRESSED, "engine.preset": "sglang"}], ids=["calm", "vllm", "sglang"]
)
def test_fresh_processes_give_the_same_bytes(changes: dict, tmp_path: Path) -> None:
    """Also where hashes of strings, and with them the order of sets, differ from process to process."""
    found = []
    for seed in ("1", "2"):
        code = DIGEST.format(tests=str(Path(__file__).parent), changes=changes, out=str(tmp_path / seed))
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={"PYTHONHASHSEED": seed}
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found[0] == found[1]
    files, summary = json.loads(found[0])
    assert len(files) == 4 and summary["completed"] > 0


def test_another_seed_is_another_run_and_the_same_seed_the_same() -> None:
    digests = []
    for seed in (0, 0, 1):
        data = run({"seed": seed, "traffic.synthetic.requests": 20})
        digests.append((traffic_fingerprint(data), hashlib.sha256(data.requests.finish.tobytes()).hexdigest()))
    assert digests[0] == digests[1] and digests[0] != digests[2]


def test_a_run_does_not_depend_on_the_ones_before_it(tmp_path: Path) -> None:
    first = write_run(run(PRESSED), tmp_path / "a", report=False)
    run({"engine.preset": "sglang"})
    second = write_run(run(PRESSED), tmp_path / "b", report=False)
    for name in ("requests.parquet", "tokens.parquet", "steps.parquet", "timeline.parquet"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_progress_counts_up_to_the_whole() -> None:
    seen: list[tuple[float, float]] = []
    run(
        {"traffic.synthetic.requests": 2000},
        stretch=False,
        progress=lambda done, total, words: seen.append((done, total)),
    )
    assert seen and all(total == 2000 for _, total in seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


# --- a recorded hour

TRACE = ROOT.parent / "shared" / "traces" / "AzureLLMInferenceTrace_conv.csv.gz"


@pytest.mark.shared
def test_an_hour_of_recorded_conversations() -> None:
    if not TRACE.is_file():
        pytest.skip("the Azure conversation trace of 2023 is not beside the checkout")
    changes = {"traffic.synthetic": None, "traffic.trace": {"path": str(TRACE), "format": "azure"}}
    data = run(changes)
    summary = summarize(data, with_intervals=False)
    assert summary["requests"] == 19_366 and summary["completed"] == 19_365
    (reason,) = summary["refused_reasons"]
    assert "leaves no room for an answer in 8,192" in reason
    assert 3400 < summary["duration"] < 3700 and summary["saturation"]["label"] == "stable"
    assert summary["littles_law"]["error"] < 0.005
