"""How many replicas: the bisection, the bounds that it starts from, and what binds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.planner.candidates import Candidate, candidates, longest_request
from experiments.planner.evaluate import evaluate
from experiments.planner.nothing import other_advice
from experiments.planner.question import Question
from experiments.planner.search import Found, Task, fewest, look, resolved, search
from sim.cost.base import StepShape
from workloads.errors import InputError

H100 = Candidate("h100-sxm", 1, 1, "vllm", "auto", "auto")


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 200), st.integers(1, 200))
def test_the_bisection_finds_the_fewest(truth: int, least: int, guess: int, most: int) -> None:
    least = min(least, truth, most)
    asked: list[int] = []

    def meets(count: int) -> bool:
        asked.append(count)
        return count >= truth

    found = fewest(meets, least, guess, most)
    assert all(least <= count <= most for count in asked)
    if truth > most:
        assert found is None
    else:
        assert truth <= found <= max(truth + 1, truth * 1.04) if found > 32 else found == truth
    assert len(set(asked)) <= 20


def test_bounds_bracket_what_is_simulated(question: Callable[..., Question]) -> None:
    """The floor is a floor, and the guess is near; for models and GPUs of very different sizes."""
    for gpu, tensor, slo in (("h100", 1, "tpot=30ms"), ("l40s", 1, "ttft=1s"), ("a100", 4, "tpot_mean=25ms")):
        asked = question(gpus=[gpu], slo=slo, max_gpus=64)
        candidate = Candidate(asked.gpus[0].name, tensor, 1, "vllm", "auto", "auto")
        found = search(Task(asked, candidate, longest_request(asked), 64 // tensor, "all"))
        assert found.meets, (gpu, found.reason)
        assert found.bounds.least <= found.replicas <= 2 * found.bounds.guess
        assert found.below is None or not found.below.meets
        assert all(good == (count >= found.replicas) for count, good in found.tried.items())


def test_a_lone_request_that_is_too_slow_ends_it(question: Callable[..., Question]) -> None:
    asked = question(slo="tpot_p95=1ms,ttft_p95=1s")
    found = look(asked, H100, longest_request(asked))
    assert found.stage == "lone request" and "TPOT p95" in found.reason and found.bounds.excess > 1
    engine = resolved(asked, H100, longest_request(asked))
    at = evaluate(engine, asked.demand(), asked.limits, 64, 300)
    assert at.figures["p95_tpot_ms"] > 1 and not at.meets, "the simulation says so too, however many replicas"
    assert found.bounds.excess <= at.worst * 1.03


def test_machines_are_those_of_the_traffic(question: Callable[..., Question], traffic: Path) -> None:
    """Its link, network and GPUs a node; its GPU and whatever else its backend says are the plan's to choose."""
    text = traffic.read_text("utf-8").replace("gpu: h100-sxm}", "gpu: l4, network: ethernet-100g, gpus_per_node: 4}")
    traffic.write_text(text, "utf-8")
    asked = question(slo="tpot=10s")
    assert {(each.tensor, each.pipeline) for each in candidates(asked)} == {(1, 1), (2, 1), (4, 1), (4, 2), (4, 4)}
    assert any("network ethernet-100g, gpus_per_node 4" in note for note in asked.notes)

    def step(asked: Question, tensor: int, pipeline: int) -> float:
        engine = resolved(asked, replace(H100, tensor=tensor, pipeline=pipeline), 3072)
        return engine.cost.step_seconds(StepShape(0, 0, ((2048, 0),), 1))

    other = question(slo="tpot=10s", settings=["backend.network=infiniband-xdr"])
    assert step(asked, 4, 2) > 1.02 * step(other, 4, 2), "stages on two nodes"
    assert step(asked, 4, 1) == step(other, 4, 1)
    slow = question(slo="tpot=10s", settings=["backend.link=pcie4"])
    assert step(slow, 4, 1) > 1.1 * step(asked, 4, 1) and not slow.gpus[0].has_fast_link


def test_what_does_not_fit(question: Callable[..., Question]) -> None:
    asked = question(model="llama-3-70b", gpus=["l4"], slo="tpot=10s")
    alone = Candidate("l4", 1, 1, "vllm", "auto", "auto")
    found = search(Task(asked, alone, longest_request(asked), 16, "all"))
    assert found.stage == "memory" and "Llama-3-70B does not fit on l4" in found.reason and not found.tried
    assert not look(asked, replace(alone, tensor=8), longest_request(asked)).stage


def test_candidates_split_as_links_allow(question: Callable[..., Question]) -> None:
    slow, fast = candidates(question(gpus=["l4"])), candidates(question(max_gpus=16))
    assert {each.tensor for each in slow} == {1, 2, 4, 8}
    assert {(1, 2), (1, 4), (2, 2)} <= {(each.tensor, each.pipeline) for each in slow}, "stages where links are slow"
    assert {(each.tensor, each.pipeline) for each in fast} == {(1, 1), (2, 1), (4, 1), (8, 1), (8, 2)}
    assert all(each.gpus <= 2 for each in candidates(question(gpus=["l4"], max_gpus=2)))
    fixed = candidates(question(settings=["engine.parallel.tensor=2", "engine.quantization=fp8"]))
    assert {(each.tensor, each.quantization) for each in fixed} == {(2, "fp8")}
    auto = candidates(question(gpus=["h100", "a100"], quantizations=["auto"], max_gpus=1))
    assert [(each.gpu, each.quantization, each.kv_dtype) for each in auto] == [
        ("h100-sxm", "auto", "auto"), ("h100-sxm", "fp8", "auto"), ("h100-sxm", "fp8", "fp8-e4m3"),
        ("h100-sxm", "awq-int4", "auto"), ("a100-sxm", "auto", "auto"), ("a100-sxm", "int8-w8a8", "auto"),
        ("a100-sxm", "awq-int4", "auto"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "slo", "binds"),
    [
        (["engine.kv.capacity_tokens=4096"], "ttft=1s", "KV memory"),
        (["traffic.synthetic.input_tokens=2000", "traffic.synthetic.output_tokens=1"], "e2e=1s", "compute"),
        (["traffic.synthetic.input_tokens=10", "traffic.synthetic.output_tokens=300"], "tpot=50ms", "memory bandwidth"),
    ],
)
def test_what_binds(settings: list[str], slo: str, binds: str, question: Callable[..., Question]) -> None:
    asked = question(slo=slo, settings=settings)
    at = evaluate(resolved(asked, H100, 2048), asked.demand(), asked.limits, 4, 400)
    assert at.binds == binds


def test_bursts_queue(question: Callable[..., Question]) -> None:
    """On the average the engine is idle; in a burst the first tokens come late."""
    burst = "traffic.synthetic.arrivals={process: on-off, rate: 1, on: 1s, off: 20s}"
    asked = question(slo="ttft=100ms", settings=[burst, "traffic.synthetic.input_tokens=1500"])
    at = evaluate(resolved(asked, H100, 2048), asked.demand(), asked.limits, 1, 600)
    assert not at.overloaded and not at.meets and at.binds == "queueing"


def test_small_shares_are_pooled_for_the_percentiles(question: Callable[..., Question]) -> None:
    asked = question(slo="ttft_p99=1s", max_gpus=1, requests=100)
    engine, demand = resolved(asked, H100, 4096), asked.demand()
    assert len(demand.traffic) == 500
    at = evaluate(engine, demand, asked.limits, 50, 1000)
    assert at.requests >= 400, "ten requests of a replica say nothing of a p99"
    assert at.figures["p99_ttft_ms"] is not None
    tiny = question(slo="ttft_p99=1s", settings=["traffic.synthetic.requests=60"], max_gpus=1, requests=10)
    with pytest.raises(InputError, match="60 requests, and the SLO's percentiles need 100"):
        evaluate(engine, tiny.demand(), tiny.limits, 1, 1000)


def test_overload_is_never_averaged_away(question: Callable[..., Question]) -> None:
    """A run so short that its latencies would still pass."""
    asked = question(slo="e2e_mean=1000s", rate=2000.0)
    at = evaluate(resolved(asked, H100, 4096), asked.demand(), asked.limits, 1, 2000)
    assert at.worst < 1 and at.overloaded and not at.meets and "queue grows" in at.reason


def test_in_a_closed_loop_clients_are_shared(question: Callable[..., Question]) -> None:
    asked = question(slo="tpot=12ms", settings=["load={mode: closed, concurrency: 100}"])
    found = search(Task(asked, H100, longest_request(asked), 16, "all"))
    assert found.meets and found.replicas > 1
    assert 0.7 * 100 / found.replicas <= found.at.batch * 1.3 and found.at.batch <= 100 / found.replicas + 1


def test_advice_names_what_was_left_out_only(question: Callable[..., Question]) -> None:
    def about_weights(*names: str, **options: object) -> list[str]:
        asked = question(slo="tpot=9s", **options)
        found = [Found(replace(H100, quantization=name)) for name in names]
        return [sentence for sentence in other_advice(asked, found) if "weights" in sentence]

    assert about_weights("auto", quantizations=["none"]) == [
        "quantized weights were not looked at: --quantization auto"
    ]
    assert about_weights("auto", "fp8", quantizations=["auto"]) == []
    assert about_weights("auto", model="gpt-oss-20b", quantizations=["auto"]) == [
        "other weights than the model's own mxfp4 were not looked at: --quantization names some"
    ]
    assert about_weights("bf16", quantizations=["auto"], settings=["engine.quantization=bf16"]) == [
        "other weights were not looked at: engine.quantization is fixed as bf16"
    ]


def test_ranks_that_the_workload_sets_count_as_gpus(question: Callable[..., Question]) -> None:
    asked = question(gpus=["h200"], slo="tpot=80ms", max_gpus=16)
    parallel = asked.workload.engine.parallel.model_copy(update={"data": 4})
    engine = asked.workload.engine.model_copy(update={"parallel": parallel})
    fixed = candidates(replace(asked, workload=asked.workload.model_copy(update={"engine": engine})))
    assert {each.gpus for each in fixed} == {4, 8, 16} and all(" DP4" in each.describe() for each in fixed)


def test_bounds_know_that_a_step_gives_several_tokens(question: Callable[..., Question]) -> None:
    """A TPOT that no engine meets with a token a step is met with several, and the number found lies within the bounds."""
    drafts = ("method=eagle", "num_speculative_tokens=3", "acceptance=0.8")
    plain = question(slo="tpot=5ms", max_gpus=64)
    assert look(plain, H100, longest_request(plain)).stage == "lone request"
    asked = question(slo="tpot=5ms", max_gpus=64, settings=[f"engine.speculation.{each}" for each in drafts])
    found = search(Task(asked, H100, longest_request(asked), 64, "all"))
    assert found.meets, found.reason
    assert found.bounds.least <= found.replicas <= 2 * found.bounds.guess
