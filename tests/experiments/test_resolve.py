"""From a workload file to everything a run needs: where each value came from, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulate import workload

from experiments.conflicts import DEFAULT, DERIVED, PRESET, USER
from experiments.resolve import Resolved, resolve
from reports.fingerprint import leaves
from sim.config import EngineConfig
from sim.presets import NEWEST, PRESETS
from workloads.errors import InputError

SOURCES = (USER, PRESET, DERIVED, DEFAULT)


def sources(resolved: Resolved) -> dict[str, str]:
    return {key: source for key, _, source in leaves(resolved.config)}


def engine_leaves(config: EngineConfig) -> Iterator[str]:
    for name in config.__dataclass_fields__:
        value = getattr(config, name)
        if hasattr(value, "__dataclass_fields__"):
            yield from (f"engine.{name}.{leaf}" for leaf in value.__dataclass_fields__)
        else:
            yield f"engine.{name}"


@pytest.mark.parametrize("preset", [*PRESETS, *NEWEST])
def test_every_leaf_says_where_it_is_from_and_has_the_value_in_effect(preset: str) -> None:
    resolved = resolve(workload({"engine.preset": preset}))
    told = {key: (value, source) for key, value, source in leaves(resolved.config)}
    assert {source for _, source in told.values()} <= set(SOURCES)
    assert {key for key in told if key.startswith("engine.")} <= set(engine_leaves(resolved.engine))
    for key, (value, source) in told.items():
        if not key.startswith("engine.") or source not in (USER, PRESET):
            continue
        found = resolved.engine
        for part in key.split(".")[1:]:
            found = getattr(found, part)
        assert found == value, key
    stated = {f"engine.scheduler.{name}" for name in PRESETS[NEWEST.get(preset, preset)].scheduler}
    assert all(told[key][1] == PRESET for key in stated & set(told))


def test_what_the_user_wrote_wins_over_the_preset_and_the_preset_over_defaults() -> None:
    resolved = resolve(workload({"engine.preset": "sglang", "engine.scheduler": {"max_num_seqs": 7}}))
    assert (resolved.engine.scheduler.max_num_seqs, resolved.engine.scheduler.requeue) == (7, "tail")
    found = sources(resolved)
    assert found["engine.scheduler.max_num_seqs"] == USER and found["engine.preset"] == USER
    assert found["engine.scheduler.requeue"] == PRESET and found["engine.kv.allocator"] == PRESET
    assert found["engine.scheduler.max_num_batched_tokens"] == DERIVED, "SGLang sizes its chunks by the GPU"
    assert found["engine.scheduler.long_prefill_token_threshold"] == DEFAULT
    assert (
        found["engine.quantization"] == found["engine.max_model_len"] == found["engine.kv.capacity_tokens"] == DERIVED
    )
    assert found["model"] == found["traffic.synthetic.requests"] == USER
    assert found["seed"] == found["load.mode"] == DEFAULT


def test_without_a_preset_it_is_the_newest_vllm() -> None:
    resolved = resolve(workload())
    assert resolved.engine.preset == NEWEST["vllm"]
    assert sources(resolved)["engine.preset"] == PRESET


@pytest.mark.parametrize(
    ("gpu", "tokens", "seqs"), [("h100-sxm", 8192, 1024), ("a100-sxm", 2048, 256), ("l4", 2048, 256)]
)
def test_what_depends_on_the_gpu(gpu: str, tokens: int, seqs: int) -> None:
    """vllm/engine/arg_utils.py: large cards but the A100 get larger budgets."""
    scheduler = resolve(workload({"backend.gpu": gpu})).engine.scheduler
    assert (scheduler.max_num_batched_tokens, scheduler.max_num_seqs) == (tokens, seqs)


def test_derived_values_are_those_in_effect() -> None:
    resolved = resolve(workload({"engine.kv": {"dtype": "fp8"}}))
    values = {key: value for key, value, _ in leaves(resolved.config)}
    assert values["engine.max_model_len"] == resolved.budget.max_model_len == resolved.model.max_position
    assert values["engine.kv.capacity_tokens"] == resolved.budget.kv_tokens == resolved.info["kv_pool_tokens"]
    assert values["engine.quantization"] == "bf16" and values["engine.kv.dtype"] == "fp8"
    assert sources(resolved)["engine.kv.dtype"] == USER


def test_a_pool_smaller_than_the_context_is_told_where_the_engine_starts_all_the_same() -> None:
    resolved = resolve(workload({"model": "llama-3.1-8b", "backend.gpu": "l4", "engine.preset": "sglang"}))
    values = {key: value for key, value, _ in leaves(resolved.config)}
    assert values["engine.max_model_len"] == resolved.budget.kv_tokens < 131072
    assert any("starts all the same" in line and "131,072" in line for line in resolved.warnings)
    assert values["engine.kv.memory_utilization"] == resolved.budget.utilization > 0.8  # automatic


@pytest.mark.parametrize(
    ("changes", "key", "says", "hint"),
    [
        ({"model": "llama-3-70b"}, "engine", "does not fit on h100-sxm", "needs tensor: "),
        ({"model": "llama-3.1-8b", "backend.gpu": "l4"}, "engine.max_model_len", "one request of 131072 tokens",
         "max_model_len: "),
        ({"engine.parallel": {"tensor": 3}}, "engine", "which 3 GPUs cannot share evenly", "tensor may be"),
        ({"engine.parallel": {"expert": 2}}, "engine", "no experts to split", "expert: 1"),
        ({"engine.kv": {"capacity_tokens": 3}}, "engine.kv.capacity_tokens", "less than one block of 16", ""),
        ({"engine.kv": {"memory_utilization": 0}}, "engine.kv.memory_utilization", "between 0 and 1", "0.9"),
        ({"model": "facebook/opt-13b", "engine.max_model_len": 4096}, "engine.max_model_len", "learned positions",
         "at most 2048"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_at_its_key(changes: dict, key: str, says: str, hint: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        resolve(workload(changes))
    assert caught.value.place.key == key and caught.value.place.file == "test.yaml"
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"engine.scheduler": {"policy": "shortest-job"}}, "policy shortest-job is an oracle"),
        ({"engine.preset": "orca", "engine.kv": {"slab": "exact"}}, "slab exact is an oracle"),
    ],
)
def test_oracles_are_labelled(changes: dict, word: str) -> None:
    assert any(warning.startswith(word) for warning in resolve(workload(changes)).warnings)
    assert not any("oracle" in warning for warning in resolve(workload()).warnings)


def test_facts_for_the_metrics() -> None:
    slo = {"slo": {"ttft_ms": 300}, "load": {"mode": "closed", "concurrency": 3}}
    info = resolve(workload({**slo, "engine.parallel": {"tensor": 2}})).info
    assert info["slo"] == {"ttft_ms": 300} and info["load"] == {"mode": "closed", "concurrency": 3}
    assert info["gpus"] == 2 and info["kv_bytes_per_token"] == 131072
    assert resolve(workload()).info["load"] == {"mode": "open"}


def test_traffic_is_made_once_and_declared_by_the_rule() -> None:
    resolved = resolve(workload({"traffic.max_tokens": {"fixed": 10}}))
    assert resolved.traffic is resolved.traffic
    assert set(resolved.traffic.max_tokens.tolist()) == {10}


def test_ranks_of_attention_are_one_engine_with_the_limits_of_each() -> None:
    """The pool and the limits of all; experts over all ranks; dense models have nothing in which ranks would meet."""
    moe = {"model": "mistralai/Mixtral-8x7B-v0.1", "backend.gpu": "h200-sxm", "engine.preset": "vllm"}
    one = resolve(workload({**moe, "engine.parallel": {"tensor": 2}}))
    two = resolve(workload({**moe, "engine.parallel": {"tensor": 2, "data": 2}, "engine.scheduler.max_num_seqs": 8}))
    assert two.engine.scheduler.max_num_seqs == 16 and two.info["gpus"] == 4
    assert two.engine.scheduler.max_num_batched_tokens == 2 * one.engine.scheduler.max_num_batched_tokens
    assert two.config["engine"]["parallel"]["expert"] == {"value": 4, "source": "derived"}
    assert two.config["engine"]["scheduler"]["max_num_seqs"]["value"] == 8
    assert two.budget.kv_tokens > 2 * one.budget.kv_tokens  # each also holds half of the experts only
    assert two.info["kv_bytes_per_token"] == one.info["kv_bytes_per_token"]
    assert any("2 ranks of attention" in sentence for sentence in two.warnings)
    shared = resolve(workload({**moe, "engine.preset": "sglang", "engine.parallel": {"tensor": 2, "data": 2}}))
    assert shared.config["engine"]["scheduler"]["max_num_batched_tokens"]["value"] == 4096  # 8,192 of all ranks
    for wrong, told in (({"data": 2}, "no experts"), ({"data": 2, "pipeline": 2}, "no experts")):
        with pytest.raises(InputError, match=told):
            resolve(workload({"engine.parallel": wrong}))
    with pytest.raises(InputError, match="pipeline stages"):
        resolve(workload({**moe, "engine.parallel": {"tensor": 2, "data": 2, "pipeline": 2}}))


@pytest.mark.parametrize(
    ("parallel", "nodes", "told"),
    [({}, {}, "one GPU is in one node of 8"), ({"tensor": 4}, {}, "4 GPUs are in one node of 8"),
     ({"tensor": 4}, {"backend.gpus_per_node": 2}, ""), ({"pipeline": 2}, {"backend.gpus_per_node": 1}, "")],
)  # fmt: skip
def test_a_network_that_nothing_crosses_is_told(parallel: dict, nodes: dict, told: str) -> None:
    network = {"backend.network": "ethernet-100g", **nodes, "engine.parallel": parallel}
    found = [text for text in resolve(workload(network)).warnings if text.startswith("backend.network")]
    assert len(found) == bool(told) and all(told in text for text in found)
    assert not any(text.startswith("backend.network") for text in resolve(workload()).warnings)
