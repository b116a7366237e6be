"""Workloads on models with recurrent layers: what is settled, what is refused, and that they run on every preset."""

from __future__ import annotations

import re

import pytest
from simulate import run, workload

from experiments.resolve import resolve
from reports.metrics import summarize
from sim.presets import NEWEST, PRESETS
from workloads.errors import InputError

SMALL = {
    "model": "Qwen/Qwen3.5-4B",
    "engine.max_model_len": 8192,
    "traffic.synthetic.requests": 40,
    "traffic.synthetic.input_tokens": {"distribution": "uniform", "low": 50, "high": 3000},
    "traffic.synthetic.output_tokens": {"distribution": "uniform", "low": 1, "high": 100},
}


@pytest.mark.parametrize("preset", [*PRESETS, *NEWEST])
def test_every_preset_serves_them(preset: str) -> None:
    traffic = {"traffic.max_tokens": "exact"}
    done = run(SMALL | traffic | {"engine.preset": preset})
    assert summarize(done, with_intervals=False)["completed"] == 40


def test_what_follows_is_told() -> None:
    found = resolve(workload(SMALL))
    assert (found.engine.kv.block_size, found.engine.kv.prefix_caching, found.budget.state_tokens) == (528, False, 1584)
    assert found.config["engine"]["kv"]["block_size"] == {"value": 528, "source": "derived"}
    told = " ".join(found.warnings)
    for each in (
        "recurrent states take",
        "recurrent layers (Gated DeltaNet",
        "block_size: 16 of the preset became 528",
    ):
        assert each in told


def test_states_bound_the_sequences_of_sglang() -> None:
    found = resolve(workload(SMALL | {"engine.preset": "sglang", "model": "Qwen/Qwen3.5-27B"}))
    assert found.engine.scheduler.max_num_seqs == found.budget.state_slots < 100
    assert any("have room for their recurrent states" in each for each in found.warnings)
    assert found.info["max_num_seqs"] == found.budget.state_slots


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine.kv.block_size": 64}, r"engine.kv.block_size: 64 cannot be.*write 576"),
        (
            {"engine.preset": "tensorrt-llm", "engine.kv.prefix_caching": True},
            "engine.kv.prefix_caching: true cannot be",
        ),
        ({"engine.preset": "vllm-v0", "engine.scheduler.preemption": "swap"}, "not simulated to be swapped"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(workload(SMALL | changes))
    assert re.search(message, str(caught.value))


def test_prefixes_of_vllm_are_shared_where_it_is_asked_to() -> None:
    found = resolve(workload(SMALL | {"engine.kv.prefix_caching": True}))
    assert found.budget.state_tokens == 6 * 528
    assert any("real hits may be shorter" in each for each in found.warnings)


def test_a_larger_block_of_the_users_own_stays() -> None:
    assert resolve(workload(SMALL | {"engine.kv.block_size": 576})).engine.kv.block_size == 576


def test_conversations_are_hit_from_their_states_on_sglang() -> None:
    """Turns of sessions go on from the state at the end of the turn before: most of a prompt is hit, though never inside it."""
    traffic = {
        "engine.preset": "sglang",
        "traffic.max_tokens": "exact",
        "traffic.synthetic.sessions": {"turns": 4, "think": {"distribution": "fixed", "value": 1}},
    }
    hits = {}
    for model in ("Qwen/Qwen3.5-4B", "Qwen/Qwen3-4B"):
        done = run(SMALL | traffic | {"model": model})
        hits[model] = summarize(done, with_intervals=False)["prefix_hit_rate"]
    assert hits["Qwen/Qwen3-4B"] > 0.4
    assert hits["Qwen/Qwen3.5-4B"] == pytest.approx(hits["Qwen/Qwen3-4B"], abs=0.05)


def test_ranks_have_states_of_their_own() -> None:
    one = resolve(workload(SMALL | {"model": "Qwen/Qwen3.5-35B-A3B", "engine.preset": "sglang"}))
    two = resolve(
        workload(SMALL | {"model": "Qwen/Qwen3.5-35B-A3B", "engine.preset": "sglang", "engine.parallel.data": 2})
    )
    assert two.budget.state_slots == two.engine.scheduler.max_num_seqs > 1.5 * one.budget.state_slots
