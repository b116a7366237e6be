"""What a run tells of its admission: memory kept back for declared answers, prompts longer than a step."""

from __future__ import annotations

import pytest
from simulate import workload

from experiments import runner

TRAFFIC = {
    "engine.preset": "tensorrt-llm",
    "engine.kv": {"capacity_tokens": 20_000},
    "traffic.synthetic": {
        "requests": 60,
        "arrivals": {"process": "poisson", "rate": 20},
        "input_tokens": {"distribution": "uniform", "low": 100, "high": 400},
        "output_tokens": {"distribution": "uniform", "low": 20, "high": 100},
    },
}


def warnings(changes: dict) -> tuple[list[str], dict]:
    data = runner.run(runner.resolve(workload({**TRAFFIC, **changes})))
    return [text for text in data.warnings if "kept" in text or "longer than a step" in text], data.info


@pytest.mark.parametrize(
    ("declared", "told"),
    [("context", True), ("exact", False), ({"multiple": 1.5}, False)],
    ids=["context", "exact", "1.5x"],
)
def test_declared_answers_that_never_come_are_named_with_their_figures(declared: object, told: bool) -> None:
    found, info = warnings({"traffic.max_tokens": declared})
    assert bool(found) == told
    if told:
        assert "gate reserve-output kept" in found[0] and "(traffic.max_tokens: context)" in found[0]
        assert f"{100 * info['kv_kept_back_share']:.0f} % of the KV pool" in found[0]
        assert 0.5 < info["kv_kept_back_share"] <= 1.0


def test_a_gate_that_reserves_nothing_has_no_such_figure() -> None:
    found, info = warnings({"traffic.max_tokens": "context", "engine.preset": "vllm"})
    assert not found and "kv_kept_back_share" not in info


def test_prompts_longer_than_a_step_are_counted() -> None:
    small = {"traffic.max_tokens": "exact", "engine.scheduler": {"max_num_batched_tokens": 390}}
    found, _ = warnings(small)
    assert len(found) == 1 and " of 60 prompts are longer than a step (max_num_batched_tokens 390)" in found[0]
    assert not warnings({**small, "engine.preset": "tensorrt-llm-chunked"})[0]


@pytest.mark.parametrize(
    ("declared", "told"),
    [("context", True), ("exact", False), ({"fixed": 100}, False)],
    ids=["context", "exact", "100"],
)
def test_a_gate_that_learns_names_the_answers_that_it_counted_on(declared: object, told: bool) -> None:
    found = learned({"traffic.max_tokens": declared})
    assert bool(found) == told
    if told:
        assert "counts on answers of 4,096 tokens" in found[0] and "(traffic.max_tokens: context;" in found[0]
        assert "max_tokens: exact" in found[0]


@pytest.mark.parametrize(
    "changes",
    [{"engine.kv": {"capacity_tokens": 400_000}}, {"engine.preset": "vllm"}],
    ids=["room for all", "gate that reserves nothing"],
)
def test_a_gate_that_refused_nobody_for_answers_is_not_named(changes: dict) -> None:
    assert not learned({"traffic.max_tokens": "context", **changes})


def test_replicas_tell_it_too() -> None:
    assert len(learned({"traffic.max_tokens": "context", "cluster": {"replicas": 2}})) == 1


def learned(changes: dict) -> list[str]:
    traffic = {**TRAFFIC["traffic.synthetic"], "requests": 120, "arrivals": {"process": "at-once"}}
    base = {**TRAFFIC, "engine.preset": "sglang", "traffic.synthetic": traffic}
    data = runner.run(runner.resolve(workload({**base, **changes})))
    return [text for text in data.warnings if text.startswith("gate ratio")]
