"""Memory of models with recurrent layers, against what engines print when they start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.config import EngineConfig, KVConfig, ParallelConfig, SchedulerConfig
from sim.hardware import load_gpu
from sim.hardware.gpu import GIB
from sim.memory import memory_budget, size_report
from sim.models import load_model
from sim.presets import preset_config
from sim.state_memory import blocks, fitted, state_bytes, state_pool, state_rule
from workloads.errors import InputError

H100, H200 = load_gpu("h100"), load_gpu("h200")


def started(preset: str, model: str, tensor: int = 1, **kv) -> EngineConfig:
    made = preset_config(preset, device_memory=H100.memory_bytes, max_model_len=8192)
    made = replace(made, kv=replace(made.kv, **kv), parallel=ParallelConfig(tensor=tensor), max_model_len=8192)
    return fitted(load_model(model), made)


@pytest.mark.parametrize(
    ("model", "tensor", "tokens"),
    [
        ("Qwen3.5-4B", 1, 528),  # vllm-project/vllm#40696
        ("Qwen3.5-9B", 1, 528),  # the same heads
        ("Qwen3-Next-80B-A3B", 1, 544),  # by hand: 1,097,728 bytes of state in 16 bit, 2,048 a token
        ("Qwen3-Next-80B-A3B", 4, 272),  # a quarter of the state, half of the KV heads
    ],
)
def test_blocks_of_vllm_are_as_large_as_a_state(model: str, tensor: int, tokens: int) -> None:
    found = blocks(load_model(model), started("vllm", model, tensor))
    assert (found.tokens, found.per_sequence) == (tokens, 3)


def test_groups_of_layers_have_equal_size() -> None:
    """Nemotron-Nano-9B-v2: 27 Mamba layers and 4 of attention make seven groups of four, the last of which is not full."""
    model = load_model("Nemotron-Nano-9B-v2")
    found = blocks(model, started("vllm", model.name))
    assert found.per_sequence == 7
    assert found.bytes_per_token == 4 * 2 * 8 * 128 * 2
    assert found.tokens * 2 * 8 * 128 * 2 >= 128 * 80 * 128 * 4 + 3 * (128 * 80 + 2 * 8 * 128) * 2
    parallel = blocks(load_model("Falcon-H1-7B"), started("vllm", "Falcon-H1-7B"))  # both kinds in every layer
    assert parallel.per_sequence == 1


def test_prefix_caching_of_vllm_keeps_one_state_more() -> None:
    model = load_model("Qwen3.5-4B")
    config = started("vllm", model.name)
    assert not config.kv.prefix_caching
    assert blocks(model, replace(config, kv=replace(config.kv, prefix_caching=True))).per_sequence == 6


def test_states_of_sglang_are_as_it_prints_them() -> None:
    """Qwen3.8-27B, whose layers are those of Qwen3.5-27B: 360 slots (and a spare one) take 0.99 + 50.77 GiB, and let 72 run."""
    model = load_model("Qwen3.5-27B")
    config = started("sglang", model.name)
    each = state_bytes(model, config)
    assert 361 * each / GIB == pytest.approx(0.99 + 50.77, abs=0.01)
    room = int(360.5 * each * 1.9 / 0.9)
    pool = state_pool(model, config, room)
    assert (pool.bytes // each, pool.slots, pool.kept) == (360, 72, 144)
    without = replace(config, kv=replace(config.kv, prefix_caching=False))
    assert state_pool(model, without, room).slots == 360
    few = replace(without, scheduler=replace(without.scheduler, max_num_seqs=48))
    assert state_pool(model, few, room) == (48 * each, 48, 0)


def test_states_of_nemotron_on_four_gpus() -> None:
    """Nemotron-3-Nano at TP 4 on SGLang: 2,211 slots take 24.84 GiB of recurrent states and 0.44 of convolutions."""
    model = load_model("Nemotron-3-Nano-30B-A3B")
    assert 2212 * state_bytes(model, started("sglang", model.name, 4)) / GIB == pytest.approx(24.84 + 0.44, abs=0.02)


@pytest.mark.parametrize(
    ("preset", "allocator", "rule"),
    [
        ("vllm", "paged", "blocks"), ("vllm@0.12", "paged", "blocks"), ("vllm", "radix", "reserved"),
        ("vllm-v0", "paged", "reserved"), ("sglang", "radix", "ratio"), ("sglang", "paged", "ratio"),
        ("tensorrt-llm", "paged", "reserved"), ("static", "contiguous", "reserved"), ("lightllm", "radix", "reserved"),
    ],
)  # fmt: skip
def test_rules(preset: str, allocator: str, rule: str) -> None:
    assert state_rule(started(preset, "Qwen3.5-4B", allocator=allocator)) == rule


def test_budgets_add_up_and_bound_what_runs() -> None:
    model = load_model("Qwen3-Next-80B-A3B")
    for preset in ("vllm", "sglang", "tensorrt-llm"):
        config = started(preset, model.name, 4)
        budget = memory_budget(model, H200, config)
        parts = budget.weight_bytes + budget.activation_bytes + budget.overhead_bytes + budget.kv_bytes
        assert parts + budget.state_bytes + budget.unused_bytes == budget.total_bytes
        assert bool(budget.state_slots) is bool(budget.state_bytes) is not bool(budget.state_tokens)
        short = budget.requests(16)
        if preset == "vllm":
            assert budget.state_tokens == 3 * budget.block_size
            assert short == budget.kv_tokens // (4 * budget.block_size) == budget.blocks // 4
        else:
            assert short == budget.state_slots
        assert budget.batch(16.0) >= short
    reserved = memory_budget(model, H200, started("tensorrt-llm", model.name, 4))
    config = started("tensorrt-llm", model.name, 4)
    fewer = replace(config, scheduler=replace(config.scheduler, max_num_seqs=64))
    assert memory_budget(model, H200, fewer).kv_tokens > reserved.kv_tokens
    assert memory_budget(model, H200, fewer).state_slots == 64


def test_a_context_must_fit_beside_its_states() -> None:
    model = load_model("Qwen3.5-4B")
    config = started("vllm", model.name, capacity_tokens=528 * 4)
    assert memory_budget(model, H100, config).state_tokens == 528 * 3
    with pytest.raises(InputError, match="less than one block of 528 beside the 1584 tokens of a sequence's states"):
        memory_budget(model, H100, replace(config, kv=replace(config.kv, capacity_tokens=528 * 3)))


def test_a_model_that_leaves_no_room_for_states_does_not_fit() -> None:
    model = load_model("Qwen3-Next-80B-A3B")
    with pytest.raises(InputError, match="does not fit"):
        memory_budget(model, H100, started("sglang", model.name, 1))
    rows = size_report(model, H100, started("sglang", model.name), quantizations=("fp8",), tensors=(1, 4))
    assert rows[0].problem and rows[1].requests


def test_models_without_states_are_left_alone() -> None:
    model = load_model("llama-3.1-8b")
    config = EngineConfig(kv=KVConfig(), scheduler=SchedulerConfig(max_num_seqs=64), max_model_len=4096)
    assert fitted(model, config) is config
    budget = memory_budget(model, H100, config)
    assert (budget.state_bytes, budget.state_slots, budget.state_tokens) == (0, 0, 0)
