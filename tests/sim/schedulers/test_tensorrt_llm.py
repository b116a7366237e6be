"""TensorRT-LLM's rules (`cpp/tensorrt_llm/batch_manager/{capacityScheduler,microBatchScheduler}.cpp`)."""

from __future__ import annotations

import pytest
from harness import Run, config, random_traffic, requests, run
from invariants import check_moment, check_run

from workloads.traffic import Span, private_content


def contended(preset: str, seed: int, **settings) -> Run:
    made = config(preset, **{"max_num_batched_tokens": 160, **settings})
    return run(
        random_traffic(seed, count=20, gap=0.004, outputs=120), made, capacity=640, max_len=310, watch=check_moment
    )


@pytest.mark.parametrize("preset", ["tensorrt-llm", "tensorrt-llm-chunked", "tensorrt-llm-static"])
def test_guaranteed_no_evict_never_preempts(preset: str) -> None:
    for seed in range(4):
        done = (
            contended(preset, seed)
            if "static" not in preset
            else contended(preset, seed, max_num_batched_tokens=1 << 24)
        )
        check_run(done)
        assert not any(plan.preempted for plan in done.plans)


def test_whole_answers_are_reserved() -> None:
    """Blocks of 32: two requests of 100 + 60 take 5 each, and 9 are not enough for both, however short the answers."""
    rows = [{"input": 100, "output": 3, "declared": 60}, {"input": 100, "output": 3, "declared": 60}]
    for blocks, together in ((9, False), (10, True)):
        done = run(requests(*rows), config("tensorrt-llm"), capacity=32 * blocks, max_len=200)
        assert (len(done.plans[0].chunks) == 2) == together
        check_run(done)


def test_max_utilization_admits_what_fits_now_and_pauses() -> None:
    paused = 0
    for seed in range(4):
        done = contended("tensorrt-llm-max-utilization", seed)
        check_run(done)
        paused += sum(len(plan.preempted) for plan in done.plans)
    assert paused > 5


def test_max_utilization_pauses_whoever_started_last_and_takes_it_back_in_order_of_arrival() -> None:
    rows = [(60, 100), (60, 100), (60, 10)]
    made = config("tensorrt-llm-max-utilization", max_num_seqs=2, depth=1, prefix_caching=False)
    done = run(requests(*rows), made, capacity=256, max_len=200)
    assert [row for plan in done.plans for row, _ in plan.preempted] == [1]
    assert [chunk[0] for plan in done.plans for chunk in plan.chunks] == [0, 1, 1, 2]


def test_a_prompt_is_whole_or_waits() -> None:
    done = run(requests((100, 5), (100, 5), (30, 5)), config("tensorrt-llm", max_num_batched_tokens=160))
    pieces = [[(row, tokens) for row, _, tokens, _, _ in plan.chunks] for plan in done.plans if plan.chunks]
    assert pieces == [[(0, 100)], [(1, 100), (2, 30)]]


@pytest.mark.parametrize("preset", ["tensorrt-llm", "tensorrt-llm-max-utilization"])
def test_a_prompt_longer_than_a_step_is_refused_where_context_is_not_chunked(preset: str) -> None:
    """`_check_arguments` in tensorrt_llm/llmapi/llm.py compares the whole prompt with max_num_tokens."""
    rows = requests((161, 5), (160, 5))
    assert list(run(rows, config(preset, max_num_batched_tokens=160)).refused) == [0]
    assert not run(rows, config("tensorrt-llm-chunked", max_num_batched_tokens=160)).refused


def test_a_paused_sequence_that_outgrew_the_step_comes_back_alone() -> None:
    made = config("tensorrt-llm-max-utilization", depth=1, prefix_caching=False, max_num_batched_tokens=64)
    done = run(requests((60, 100), (60, 100)), made, capacity=256, max_len=200)
    again = [chunk for plan in done.plans for chunk in plan.chunks if chunk[2] > 64]
    assert not done.refused and again, "what was generated is computed again with the prompt"
    assert all(not plan.decoding for plan in done.plans if any(chunk[2] > 64 for chunk in plan.chunks))


def test_what_the_gate_keeps_back_is_noted() -> None:
    """Two sequences of 32 tokens declare 288 more each: half a pool of 1,280 is theirs, and little of it used."""
    rows = requests(*[{"input": 32, "output": 20, "declared": 288} for _ in range(2)])
    done = run(rows, config("tensorrt-llm"), capacity=1280, max_len=320)
    most = max(sample.kept_back for sample in done.engine.recorder.samples)
    assert 640 - 2 * 64 <= most <= 640 - 2 * 32, "the first samples hold a block or two of each"
    hopeful = run(rows, config("tensorrt-llm-max-utilization"), capacity=1280, max_len=320)
    assert {sample.kept_back for sample in hopeful.engine.recorder.samples} == {0}


def test_prompts_run_beside_decodes() -> None:
    done = contended("tensorrt-llm", 1)
    mixed = [plan for plan in done.plans if plan.chunks and plan.decoding]
    assert len(mixed) > 5
    assert all(sum(chunk[2] for chunk in plan.chunks) + len(plan.decoding) <= 160 for plan in mixed)


def test_chunks_are_whole_units_but_for_the_last() -> None:
    """32 tokens a unit; generations are charged first."""
    rows = [(20, 60), {"input": 200, "output": 3, "at": 0.05}, {"input": 100, "output": 3, "at": 0.05}]
    done = run(requests(*rows), config("tensorrt-llm-chunked", max_num_batched_tokens=90, depth=1))
    pieces = [(row, tokens, past) for plan in done.plans for row, _, tokens, past, _ in plan.chunks if row]
    assert pieces == [(1, 64, 0), (1, 64, 64), (1, 72, 128), (2, 64, 0), (2, 36, 64)], "17 tokens of budget are no unit"


def test_a_prompt_that_is_just_being_computed_is_waited_for() -> None:
    """Block reuse: the second of two equal prompts is held back one step and then hits; a third, other one passes it."""
    shared = {"prompt": [Span(-1, 0, 160)], "output": 5}
    other = {"prompt": [Span(private_content(2), 0, 40)], "output": 5}
    done = run(requests(shared, shared, other), config("tensorrt-llm", depth=1))
    pieces = [[(row, tokens, past) for row, _, tokens, past, _ in plan.chunks] for plan in done.plans[:2]]
    assert pieces == [[(0, 160, 0), (2, 40, 0)], [(1, 32, 128)]]
    done = run(requests(shared, shared), config("tensorrt-llm", depth=1, hold_shared=False))
    assert [chunk[2] for chunk in done.plans[0].chunks] == [160, 160]


def test_waiting_for_a_prefix_holds_nobody_up_for_ever() -> None:
    for seed in range(4):
        done = contended("tensorrt-llm", seed)
        check_run(done)
        assert not done.stuck


def test_the_static_policy_starts_a_batch_only_when_nothing_runs() -> None:
    done = contended("tensorrt-llm-static", 0, max_num_batched_tokens=1 << 24)
    running: set[int] = set()
    for plan in done.plans:
        running = {row for row in running if done.finished[row] > plan.at}
        assert not (plan.chunks and running)
        running |= {chunk[0] for chunk in plan.chunks}
    assert any(len(plan.chunks) > 1 for plan in done.plans)
