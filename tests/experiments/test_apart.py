"""Prefill apart from decode: nothing is lost on the way, times add up by hand, and nothing hangs on how it is simulated."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from simulate import run, workload
from test_cluster import LOADS, SHARED, same

from experiments import runner
from experiments.apart import Apart
from reports.metrics import summarize
from reports.run_data import FINISHED, REFUSED, RunData
from reports.run_folder import read_run, write_run
from sim.cluster import ROUTERS
from sim.cost.base import StepShape
from workloads.errors import InputError

PRESETS = ("vllm", "vllm@0.8", "vllm-v0", "sglang", "tensorrt-llm", "tensorrt-llm-max-utilization", "lightllm")
ALONE = {  # requests that never meet
    "traffic.synthetic": {
        "requests": 5, "arrivals": {"process": "constant", "rate": 0.05},
        "input_tokens": {"distribution": "fixed", "value": 1000},
        "output_tokens": {"distribution": "fixed", "value": 11},
    },
}  # fmt: skip
TIGHT = {"engine.kv": {"capacity_tokens": 4000}, "engine.max_model_len": 2000}


def apart(changes: dict[str, Any] | None = None, prefill: int = 1, decode: int = 1, **options: Any) -> RunData:
    """A run of so many engines of each kind."""
    pools = {"cluster.prefill.replicas": prefill, "cluster.decode.replicas": decode}
    return run({**pools, **(changes or {})}, **options)


# --- what must hold however requests go


@settings(max_examples=25, deadline=None, phases=[Phase.generate])
@given(
    st.sampled_from(PRESETS), st.sampled_from(["pull", "push"]), st.sampled_from(["prefill", "decode"]),
    st.sampled_from(sorted(LOADS)), st.sampled_from(sorted(ROUTERS)), st.integers(1, 3), st.integers(1, 3), st.booleans(),
    st.sampled_from(["1GB/s", "100GB/s"]), st.integers(0, 9),
)  # fmt: skip
def test_nobody_is_lost_and_no_memory_either(
    preset: str, protocol: str, token: str, load: str, router: str, prefill: int, decode: int, tight: bool, link: str,
    seed: int,
) -> None:  # fmt: skip
    resolved = runner.resolve(workload({
        **LOADS[load], "seed": seed, "engine.preset": preset, **(TIGHT if tight else {}),
        "cluster.prefill": {"replicas": prefill, "router": router}, "cluster.decode": {"replicas": decode, "router": router},
        "cluster.transfer": {"protocol": protocol, "first_token": token, "bandwidth": link},
    }))  # fmt: skip
    service = Apart(resolved, resolved.traffic, True, None)
    end, complete = service.serve()
    assert complete
    for member in service.replicas:
        state = member.engine.state
        state.allocator.check([])
        assert state.idle and state.allocator.available == state.allocator.capacity and state.kept_seats == 0
        assert not member.engine.unfinished_rows()
    from experiments.apart_records import assemble

    data = assemble(resolved, service, end, complete, 1.0)
    r = data.requests
    done = r.status == FINISHED
    assert (done | (r.status == REFUSED)).all() and (done.all() or load != "open" or tight)
    assert (r.output_tokens[done] == r.target_tokens[done]).all() and not r.output_tokens[~done].any()
    went = np.isfinite(r.received)
    assert (went[done] == (r.target_tokens[done] > (token == "prefill"))).all()
    order = [r.sent, r.queued, r.admitted, r.prefilled, r.moving, r.received, r.first_token, r.finish]
    for earlier, later in pairwise(order):
        assert (earlier[done & went] <= later[done & went] + 1e-9).all()
    before = r.reserved[went] <= (r.admitted if protocol == "push" else r.moving)[went] + 1e-12
    assert before.all() and (r.handed[went] <= r.reserved[went]).all()
    assert (r.moved_tokens[went] <= r.input_tokens[went]).all()
    t = data.timeline
    assert [int(t.arrivals.sum()), int(t.finished.sum())] == [int(np.isfinite(r.sent).sum()), int(done.sum())]
    assert int(t.output_tokens.sum()) == int(r.output_tokens.sum())
    parts = sum(getattr(t, f"kv_{kind}") for kind in ("used", "cached", "reserved", "internal", "external", "free"))
    np.testing.assert_allclose(parts, data.info["kv_pool_tokens"])
    assert summarize(data, with_intervals=False)["littles_law"]["error"] < 0.03


@pytest.mark.parametrize("protocol", ["pull", "push"])
@pytest.mark.parametrize("preset", ["vllm", "vllm@0.8", "sglang", "tensorrt-llm", "lightllm"])
@pytest.mark.parametrize("load", LOADS)
def test_stretching_changes_nothing(load: str, preset: str, protocol: str) -> None:
    for more in ({}, TIGHT):
        changes = {
            **LOADS[load], **more, "engine.preset": preset, "cluster.decode.router": "shortest-queue",
            "cluster.transfer": {"protocol": protocol, "bandwidth": "2GB/s"},
        }  # fmt: skip
        at_once = apart(changes, 2, 2)
        assert same(at_once, apart(changes, 2, 2, stretch=False)) == []
    assert same(at_once, apart(changes, 2, 2), timeline=True) == [], "and the same again"


# --- times by hand


def test_the_times_of_one_request_add_up() -> None:
    """Llama-3-8B keeps 131,072 bytes a token: 1,000 tokens at 1 GB/s take 131.072 ms, beside a latency of 5 ms."""
    changes = {**ALONE, "engine.preset": "sglang", "engine.host": "none"}
    link = {"protocol": "pull", "bandwidth": "1GB/s", "latency": "5ms", "first_token": "prefill"}
    data = apart({**changes, "cluster.transfer": link})
    r = data.requests
    np.testing.assert_allclose(r.received - r.moving, 0.005 + 1000 * 131072 / 1e9)
    cost = runner.resolve(workload({**changes, "cluster.prefill": {}, "cluster.decode": {}})).cost
    prompt = cost.step_seconds(StepShape(chunks=((1000, 0),), sampled=1))
    np.testing.assert_allclose(r.prefilled - r.admitted, prompt)
    lag = cost.front_end.token_seconds
    np.testing.assert_allclose(r.first_token - r.received, lag, atol=1e-12)
    steps = sum(cost.step_seconds(StepShape(1, 1001 + i, sampled=1)) for i in range(10))
    np.testing.assert_allclose(r.finish - r.first_token, steps + cost.front_end.output_work, rtol=1e-6)
    assert data.info["transfer"]["bytes"] == 5 * 1000 * 131072

    again = apart({**changes, "cluster.transfer": {**link, "first_token": "decode"}}).requests
    one = cost.step_seconds(StepShape(1, 1000, sampled=1))
    np.testing.assert_allclose(again.first_token - again.received - lag, one, rtol=1e-6)
    np.testing.assert_allclose(again.received, r.received)


def test_what_is_sent_meanwhile_need_not_be_waited_for() -> None:
    """A prompt of 16,000 tokens in two chunks of 8,000: half of its KV is left to send at the end, or one layer of 32."""
    changes = {
        **ALONE, "traffic.synthetic.input_tokens.value": 16000, "model": "meta-llama/Llama-3.1-8B",
        "engine.scheduler.max_num_batched_tokens": 8000,
    }  # fmt: skip
    whole = 16000 * 131072 / 100e9
    for overlap, share in (("none", 1), ("chunks", 1 / 2), ("layers", 1 / 32)):
        link = {"protocol": "push", "overlap": overlap, "bandwidth": "100GB/s", "latency": "0s"}
        r = apart({**changes, "cluster.transfer": link}).requests
        np.testing.assert_allclose(r.received - r.moving, whole * share, rtol=1e-6)
    slow = {"protocol": "push", "overlap": "layers", "bandwidth": "1GB/s", "latency": "0s"}
    r = apart({**changes, "cluster.transfer": slow}).requests
    np.testing.assert_allclose(r.received - r.admitted, 16000 * 131072 / 1e9, rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "tensor", "size", "ranks"),
    [
        ("meta-llama/Meta-Llama-3-8B", (1, 2), 131072, 1),  # 8 KV heads: each of two GPUs has its half
        ("meta-llama/Meta-Llama-3-8B", (4, 2), 131072, 2),
        ("deepseek-ai/DeepSeek-V2-Lite", (1, 2), 2 * 27 * 576 * 2, 1),  # MLA: each of two GPUs has all of it
    ],
)
def test_bytes_and_adapters_follow_the_layout(model: str, tensor: tuple[int, int], size: int, ranks: int) -> None:
    pools = runner.resolve(workload({
        "model": model, "cluster.prefill.engine.parallel.tensor": tensor[0], "cluster.decode.engine.parallel.tensor": tensor[1],
        "cluster.transfer.bandwidth": "10GB/s",
    })).pools  # fmt: skip
    assert pools.path.bytes_per_token == size and pools.path.rate == ranks * 10e9


def test_transfers_share_the_adapters_of_an_engine() -> None:
    """Four prompts at once to one decode engine: their KV comes one after another, 131 ms each at 1 GB/s."""
    changes = {
        **ALONE, "traffic.synthetic.requests": 4, "traffic.synthetic.arrivals.rate": 1e6,
        "cluster.transfer": {"bandwidth": "1GB/s", "latency": "0s"},
    }  # fmt: skip
    one = apart(changes, 4, 1).requests
    gaps = np.diff(np.sort(one.received))
    np.testing.assert_allclose(gaps, 0.131072, rtol=1e-6)
    each = apart(changes, 4, 4).requests
    assert np.ptp(each.received) < 0.01


def test_a_full_decode_pool_holds_prompts_back_and_then_prefill() -> None:
    """Decode has room for three requests: others wait for memory there, their prompts keep theirs, and at last prefill waits."""
    changes = {
        **ALONE, "traffic.synthetic.requests": 40, "traffic.synthetic.arrivals.rate": 200,
        "traffic.synthetic.output_tokens.value": 400, "engine.max_model_len": 1500,
        "cluster.prefill.engine.kv.capacity_tokens": 5 * 1024, "cluster.decode.engine.kv.capacity_tokens": 4400,
        "cluster.decode.engine.scheduler.gate": "reserve-output",
        "engine.kv.prefix_caching": False,
    }  # fmt: skip
    data = apart(changes)
    r = data.requests
    assert (r.status == FINISHED).all()
    held = [(r.reserved <= at).sum() - (r.finish <= at).sum() for at in r.reserved]
    assert max(held) == 3
    kept = [(r.prefilled <= at).sum() - (r.received < at).sum() for at in r.prefilled]
    assert max(kept) <= 5
    assert np.median(r.reserved - r.handed) > 1 and np.median(r.admitted - r.queued) > 1


def test_a_queue_between_prompt_and_answer_is_a_queue() -> None:
    """Decode takes four at a time, 10 of 20 a second: it falls behind for as long as requests come. Prefill alone keeps up."""
    changes = {
        **ALONE, "traffic.synthetic.requests": 300, "traffic.synthetic.arrivals.rate": 20,
        "traffic.synthetic.output_tokens.value": 60, "cluster.decode.engine.scheduler.max_num_seqs": 4,
    }  # fmt: skip
    data = apart(changes)
    found = summarize(data, with_intervals=False)
    r = data.requests
    assert found["saturation"]["label"] == "overloaded", found["saturation"]["sentence"]
    assert found["mean_decode_queue_ms"] > 1000 > 50 > found["mean_queue_ms"]
    through = 299 / float(r.finish.max() - r.finish.min())
    assert found["saturation"]["served_per_s"] == pytest.approx(through, rel=0.1)
    free = summarize(apart({**changes, "cluster.decode": {}}), with_intervals=False)
    assert free["saturation"]["label"] == "stable"


def test_caches_of_both_sides_are_used() -> None:
    """Prompts have 200 tokens in common: 12 blocks of 16 of them are computed once, and sent once."""
    r = apart(SHARED).requests
    again = r.cached_tokens > 0
    assert set(r.cached_tokens[again]) == {192} and again.sum() > 100
    assert set((r.input_tokens - r.moved_tokens)[r.moved_tokens > 0]) == {0, 192}
    sglang = apart({**SHARED, "engine.preset": "sglang"}).requests  # its decode servers keep no cache
    assert (sglang.moved_tokens == sglang.input_tokens).all() and (sglang.cached_tokens > 0).sum() > 100


def test_gpus_of_both_kinds_count() -> None:
    resolved = runner.resolve(workload({
        "cluster.prefill": {"replicas": 3, "engine": {"parallel": {"tensor": 2}}},
        "cluster.decode": {"replicas": 2, "engine": {"parallel": {"tensor": 4}, "scheduler": {"max_num_seqs": 100}}},
        "engine.kv.dtype": "fp8",
    }))  # fmt: skip
    assert resolved.info["gpus"] == 3 * 2 + 2 * 4
    assert [resolved.info["pools"][name]["gpus"] for name in ("prefill", "decode")] == [6, 8]
    assert resolved.info["pools"]["decode"]["max_num_seqs"] == 200
    config = resolved.config
    assert config["engine"]["kv"]["dtype"] == {"value": "fp8", "source": "user"}
    assert config["cluster"]["prefill"]["engine"]["parallel"]["tensor"] == {"value": 2, "source": "user"}
    assert config["cluster"]["decode"]["engine"]["parallel"]["tensor"]["value"] == 4
    assert config["cluster"]["transfer"]["protocol"] == {"value": "pull", "source": "derived"}


def test_a_run_folder_knows_its_pools(tmp_path: Path) -> None:
    data = apart(LOADS["closed"], 2, 1)
    back = read_run(write_run(data, tmp_path / "r"))
    assert same(back, data, timeline=True) == []
    np.testing.assert_array_equal(back.requests.decode_replica, data.requests.decode_replica)
    summary = json.loads((tmp_path / "r" / "run.json").read_text())["summary"]
    assert [summary["pools"][name]["gpus"] for name in ("prefill", "decode")] == [2, 1]
    waited = (data.requests.received - data.requests.moving)[np.isfinite(data.requests.received)]
    assert summary["mean_transfer_ms"] == pytest.approx(1e3 * waited.mean())
    assert "<h2>Prefill and decode</h2>" in (tmp_path / "r" / "report.html").read_text()


# --- what cannot be


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cluster": {"prefill": {"replicas": 2}}}, r"cluster\.prefill: engines for prefill alone serve nobody"),
        ({"cluster.replicas": 2}, r"cluster\.replicas: .*each has replicas of its own"),
        ({"cluster.router": "prefix"}, r"cluster\.router: .*write it as cluster\.prefill\.router"),
        ({"cluster.transfer.link": "nvlink9"}, r"cluster\.transfer\.link: .*nvlink"),
        ({"cluster.transfer.bandwidth": 50}, r"cluster\.transfer\.bandwidth: .*50GB/s"),
        ({"cluster.transfer.bandwidth": "0GB/s"}, r"cluster\.transfer\.bandwidth: "),
        ({"cluster.transfer": {"link": "pcie5", "bandwidth": "5GB/s"}}, r"cluster\.transfer\.bandwidth: "),
        ({"cluster.transfer.overlap": "layers"}, r"cluster\.transfer\.overlap: .*protocol: push"),
        ({"cluster.prefill.engine.kv.dtype": "fp8"}, r"KV is sent as it is.*fp8.*bf16"),
        ({"cluster.prefill.engine.stops_ahead": False}, r"cluster\.prefill\.engine\.stops_ahead: has no effect"),
        ({"engine.preset": "static"}, r"static batch computes prompts and answers in one"),
        ({"cluster.decode.engine.kv.allocator": "contiguous"}, r"cluster\.decode\.engine\.kv\.allocator: .*slabs"),
        ({"cluster.decode.engine.parallel.tensor": 3}, r"cluster\.decode\.engine: .*which 3 GPUs cannot share evenly"),
        ({"cluster.decode.engine.scheduler.chunk_unit": 8, "cluster.decode.engine.scheduler.name": "continuous"},
         r"cluster\.decode\.engine\.scheduler\.chunk_unit: has no effect"),
        ({"cluster.prefill.engine.presett": "vllm"}, r"cluster\.prefill\.engine\.presett"),
        ({"backend": {"name": "torch"}}, r"cluster\.prefill: .*simulated only"),
        ({"backend": {"name": "http", "base_url": "http://localhost:1"}}, r"cluster\.prefill: .*simulated only"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_where_it_was_written(changes: dict[str, Any], told: str) -> None:
    base = {} if "cluster" in changes else {"cluster.prefill": {}, "cluster.decode": {}}
    with pytest.raises(InputError, match=told):
        runner.resolve(workload({**base, **changes}))


def test_a_transfer_needs_two_sides() -> None:
    with pytest.raises(InputError, match=r"cluster\.transfer: nothing is transferred"):
        workload({"cluster.transfer.link": "pcie5"})


def test_who_fits_into_one_pool_alone_is_refused_with_the_reason() -> None:
    changes = {
        **SHARED, "cluster.prefill.engine.kv.capacity_tokens": 1000, "cluster.decode.engine.max_model_len": 1200,
        "traffic.synthetic.n": {"1": 9, "2": 1},
    }  # fmt: skip
    r = apart(changes).requests
    reasons = set(r.reason[r.status == REFUSED])
    assert any(text.startswith("prefill pool: needs") for text in reasons)
    assert any("samples" in text for text in reasons)
    assert (r.replica[r.status == REFUSED] == -1).all() and (r.status == FINISHED).sum() > 50
