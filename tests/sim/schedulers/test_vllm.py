"""vLLM v1's rules (`vllm/v1/core/sched/scheduler.py`), one by one."""

from __future__ import annotations

import pytest
from harness import Run, config, random_traffic, requests, run
from invariants import check_run

from sim.presets import preset_config
from workloads.traffic import Span, private_content

V1 = "vllm@0.8"


def chunks_of(done: Run, row: int) -> list[tuple[int, int]]:
    """(tokens, past) of every prefill piece of a row."""
    return [(tokens, past) for plan in done.plans for r, _, tokens, past, _ in plan.chunks if r == row]


def admissions(done: Run) -> list[tuple[int, list[int]]]:
    """For every plan its number and the rows that were let in, again or for the first time."""
    here: set[int] = set()
    told = []
    for number, plan in enumerate(done.plans):
        here -= {row for row, time in done.finished.items() if time <= plan.at}
        here -= {row for row, _ in plan.preempted}
        fresh = [chunk[0] for chunk in plan.chunks if chunk[0] not in here]
        here |= set(fresh)
        told.append((number, fresh))
    return told


def crowded(seed: int, **settings) -> Run:
    """More answers than the pool holds."""
    made = config(V1, gate="optimistic", **{"max_num_seqs": 16, "max_num_batched_tokens": 64, **settings})
    return run(random_traffic(seed, count=25, gap=0.004, outputs=150), made, capacity=480, max_len=320)


def test_decodes_come_first_and_a_prompt_takes_the_rest_of_the_budget() -> None:
    done = run(
        requests((20, 40), (20, 40), {"input": 200, "output": 3, "at": 0.05}), config(V1, max_num_batched_tokens=64)
    )
    assert chunks_of(done, 2) == [(62, 0), (62, 62), (62, 124), (14, 186)]
    pieces = [plan for plan in done.plans if any(chunk[0] == 2 for chunk in plan.chunks)]
    assert all(plan.decoding == [(0, 0), (1, 0)] for plan in pieces)


def test_chunks_are_not_aligned_to_blocks() -> None:
    done = run(requests((20, 30), {"input": 100, "output": 3, "at": 0.05}), config(V1, max_num_batched_tokens=64))
    assert chunks_of(done, 1) == [(63, 0), (37, 63)]


def test_a_long_prompt_can_be_held_to_a_threshold() -> None:
    made = config(V1, max_num_batched_tokens=64, long_prefill_token_threshold=24)
    done = run(requests((70, 5), (70, 5)), made)
    assert done.plans[0].chunks == [(0, 0, 24, 0, False), (1, 0, 24, 0, False)]
    assert [tokens for tokens, _ in chunks_of(done, 0)] == [24, 24, 22]


def test_a_sequence_samples_when_all_that_is_known_is_computed() -> None:
    done = run(requests((100, 5)), config(V1, max_num_batched_tokens=64))
    assert [chunk[4] for plan in done.plans for chunk in plan.chunks] == [False, True]
    assert done.tokens()[0][0] == done.plans[1].ends[-1]
    assert len(done.plans) == 2 + 4


def test_the_head_of_the_queue_blocks_those_behind_it() -> None:
    """Row 1 finds no memory before row 0 is gone; row 2 would fit and waits."""
    done = run(requests((100, 60), (120, 10), (10, 10)), config(V1, gate="full-prompt"), capacity=224, max_len=200)
    order = [row for _, fresh in admissions(done) for row in fresh]
    assert order == [0, 1, 2]
    assert done.finished[0] <= min(done.tokens()[2])


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    seen = 0
    for seed in range(8):
        done = crowded(seed)
        check_run(done)
        for number, fresh in admissions(done):
            if done.plans[number].preempted:
                seen += 1
                assert not fresh
    assert seen > 10


def test_other_engines_may_admit_in_such_a_step() -> None:
    found = [
        number
        for seed in range(8)
        for done in [crowded(seed, admit_after_preemption=True, requeue="tail")]
        for number, fresh in admissions(done)
        if fresh and done.plans[number].preempted
    ]
    assert found


def test_the_victim_is_whoever_was_admitted_last() -> None:
    preemptions = 0
    for seed in range(8):
        done = crowded(seed)
        running: list[int] = []
        for number, fresh in admissions(done):
            plan = done.plans[number]
            running = [row for row in running if done.finished[row] > plan.at]
            for row, _ in plan.preempted:
                assert running.pop() == row
                preemptions += 1
            running += fresh
    assert preemptions > 20


def test_a_victim_goes_to_the_head_of_the_queue() -> None:
    rows = [(60, 100), (60, 100), (60, 10)]
    done = run(requests(*rows), config(V1, gate="optimistic", max_num_seqs=2), capacity=240, max_len=200)
    order = [row for _, fresh in admissions(done) for row in fresh]
    assert order == [0, 1, 1, 2], "row 1 comes back before row 2, which has waited all the time"


def test_a_preempted_sequence_computes_all_that_it_knew_but_what_it_finds_cached() -> None:
    for caching in (False, True):
        made = config(V1, gate="optimistic", max_num_seqs=2, prefix_caching=caching)
        done = run(requests((60, 100), (60, 100)), made, capacity=240, max_len=200)
        (first, _), (again, hit) = chunks_of(done, 1)
        left = next(each for each in done.departures() if each["row"] == 1)
        dropped = next(plan for plan in done.plans if plan.preempted)
        assert first == 60
        assert again + hit == 60 + sum(time <= dropped.at for time in done.tokens()[1])
        assert (hit > 0) == caching
        assert left["recomputed"] > 0 and left["preemptions"] == 1


def test_a_hit_is_capped_one_short_and_rounded_down_to_blocks() -> None:
    """The same prompt of 64 again: three blocks of 16 are taken, the last one is computed anew."""
    prompt = [Span(-1, 0, 64)]
    done = run(requests({"prompt": prompt, "output": 3}, {"prompt": prompt, "output": 3, "at": 1.0}), config(V1))
    assert chunks_of(done, 1) == [(16, 48)]
    longer = [Span(-1, 0, 64), Span(private_content(1), 0, 1)]
    done = run(requests({"prompt": prompt, "output": 3}, {"prompt": longer, "output": 3, "at": 1.0}), config(V1))
    assert chunks_of(done, 1) == [(1, 64)]


def test_blocks_can_be_hit_as_soon_as_they_are_scheduled() -> None:
    prompt = [Span(-1, 0, 64)]
    done = run(requests({"prompt": prompt, "output": 3}, {"prompt": prompt, "output": 3}), config(V1))
    assert done.plans[0].chunks == [(0, 0, 64, 0, True), (1, 0, 16, 48, True)]


def test_a_half_computed_prompt_can_be_hit_as_far_as_it_is_scheduled() -> None:
    rows = [{"prompt": [Span(-1, 0, 160)], "output": 3}, {"prompt": [Span(-1, 0, 64)], "output": 3}]
    done = run(requests(*rows), config(V1, max_num_batched_tokens=100, long_prefill_token_threshold=80))
    assert done.plans[0].chunks == [(0, 0, 80, 0, False), (1, 0, 16, 48, True)]


def test_where_blocks_count_only_once_computed_a_prompt_under_way_is_no_hit() -> None:
    """A request that arrives in the middle of the pass gets nothing; one that arrives after it gets all."""
    prompt = [Span(-1, 0, 64)]
    rows = [{"prompt": prompt, "output": 3}] * 2 + [{"prompt": prompt, "output": 3, "at": 1.0}]
    done = run(requests(*rows), config(V1, register="computed"))
    assert [chunks_of(done, row) for row in range(3)] == [[(64, 0)], [(64, 0)], [(16, 48)]]


def test_hits_are_counted_once_whether_a_prompt_is_cut_or_not() -> None:
    prompt = [Span(-1, 0, 200)]
    rows = [{"prompt": prompt, "output": 3}, {"prompt": [*prompt, Span(0, 0, 50)], "output": 3, "at": 1.0}]
    for budget in (8192, 64, 33):
        done = run(requests(*rows), config(V1, max_num_batched_tokens=budget))
        cached = {left["row"]: left["cached"] for left in done.departures()}
        assert cached == {0: 0, 1: 192}
        assert sum(tokens for tokens, _ in chunks_of(done, 1)) == 250 - 192


def test_under_priority_the_least_urgent_gives_way() -> None:
    rows = [{"input": 60, "output": 100, "priority": p} for p in (1, 2, 0)]
    made = config(V1, gate="optimistic", policy="priority", victim="lowest-priority")
    done = run(requests(*rows), made, capacity=256, max_len=200)
    assert next(row for plan in done.plans for row, _ in plan.preempted) == 1
    assert next(iter(done.finished)) == 2


def test_the_full_prompt_must_fit_since_2026_though_only_a_chunk_is_allocated() -> None:
    rows = [(100, 60), {"input": 150, "output": 5, "at": 0.02}]
    for gate, starts_early in (("optimistic", True), ("full-prompt", False)):
        made = config(V1, gate=gate, max_num_batched_tokens=64)
        done = run(requests(*rows), made, capacity=240, max_len=230)
        first = next(plan for plan in done.plans if any(chunk[0] == 1 for chunk in plan.chunks))
        assert (first.start < done.finished[0]) == starts_early


def test_the_watermark_is_left_free_unless_nothing_runs() -> None:
    made = config(V1, gate="full-prompt", watermark=0.5)
    done = run(requests((200, 3), (20, 3)), made, capacity=256, max_len=220)
    assert done.plans[0].chunks == [(0, 0, 200, 0, True)], "alone it may take nearly all"
    assert not any(chunk[0] == 1 for plan in done.plans if plan.start < done.finished[0] for chunk in plan.chunks)


@pytest.mark.parametrize("preset, extra", [("vllm@0.8", 0), ("vllm@0.33", 0), ("sglang", 1), ("tensorrt-llm", 1)])
def test_who_is_sure_to_stop_is_not_planned_again_by_vllm(preset: str, extra: int) -> None:
    """With two plans in flight others compute every sequence once too often."""
    traffic = requests((20, 7), (30, 12))
    done = run(traffic, config(preset))
    decodes = sum(len(plan.decoding) for plan in done.plans)
    assert decodes == 6 + 11 + extra * 2


def test_an_answer_that_ends_of_itself_is_computed_once_too_often_by_all_that_plan_ahead() -> None:
    traffic = requests({"input": 20, "output": 7, "declared": 50}, {"input": 30, "output": 12, "declared": 50})
    told = {name: sum(len(p.decoding) for p in run(traffic, config(name)).plans) for name in ("vllm@0.8", "vllm@0.33")}
    assert told == {"vllm@0.8": 17, "vllm@0.33": 19}


def test_budgets_follow_the_card() -> None:
    h100, a10 = preset_config("vllm", device_memory=85e9), preset_config("vllm", device_memory=24e9)
    a100 = preset_config("vllm", device_memory=85e9, is_a100=True)
    budgets = [(c.scheduler.max_num_batched_tokens, c.scheduler.max_num_seqs) for c in (h100, a10, a100)]
    assert budgets == [(8192, 1024), (2048, 256), (2048, 256)]
    for gb, chunk in {24: 2048, 48: 4096, 85: 8192, 141: 8192, 192: 16384}.items():
        assert preset_config("sglang", device_memory=gb * 1e9).scheduler.max_num_batched_tokens == chunk
