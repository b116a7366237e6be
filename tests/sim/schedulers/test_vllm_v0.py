"""vLLM v0's rules (`vllm/core/scheduler.py`, `vllm/core/block_manager.py`): prefill first, watermark, swapping."""

from __future__ import annotations

import pytest
from harness import AffineCost, Run, config, random_traffic, requests, run
from invariants import check_run

from sim.cost.base import StepShape


def contended(seed: int, **settings) -> Run:
    made = config("vllm-v0", max_num_seqs=12, **settings)
    return run(random_traffic(seed, count=25, gap=0.004, outputs=150), made, capacity=480, max_len=320)


def test_a_step_is_all_prompts_or_all_decodes() -> None:
    for seed in range(4):
        done = contended(seed)
        check_run(done)
        assert not any(plan.chunks and plan.decoding for plan in done.plans)
        assert any(plan.decoding for plan in done.plans)


def test_prompts_stop_the_decodes_while_any_can_be_let_in() -> None:
    done = run(
        requests((20, 30), *[{"input": 20, "output": 5, "at": 0.05 + k / 100} for k in range(4)]), config("vllm-v0")
    )
    waited = [done.tokens()[0][k + 1] - done.tokens()[0][k] for k in range(29)]
    assert max(waited) > 1.8 * min(waited), "a prefill step lies between two tokens of row 0"
    for row in range(1, 5):
        step = next(plan for plan in done.plans if any(chunk[0] == row for chunk in plan.chunks))
        assert step.start - done.traffic.arrival[row] < 2 * min(waited), "the very next step takes the new prompt"


def test_prompts_are_whole_and_as_many_as_the_budget_has_room_for() -> None:
    made = config("vllm-v0", max_num_batched_tokens=100)
    done = run(requests(*[(40, 5)] * 5), made)
    assert [[chunk[2] for chunk in plan.chunks] for plan in done.plans if plan.chunks] == [[40, 40], [40, 40], [40]]


def test_a_prompt_longer_than_the_budget_is_refused() -> None:
    done = run(requests((101, 5), (100, 5)), config("vllm-v0", max_num_batched_tokens=100))
    assert list(done.refused) == [0]
    assert "max_num_batched_tokens" in done.refused[0]


@pytest.mark.parametrize("blocks, together", [(49, True), (50, False)])
def test_one_per_cent_of_the_pool_stays_free(blocks: int, together: bool) -> None:
    """Beside a prompt of 50 blocks out of 100 one of 49 leaves a block, which is 1 %; one of 50 leaves none."""
    made = config("vllm-v0", max_num_batched_tokens=1 << 16)
    done = run(requests((50 * 16, 5), (blocks * 16, 5)), made, capacity=100 * 16, max_len=2000)
    assert (len(done.plans[0].chunks) == 2) == together


def test_what_leaves_less_than_the_watermark_even_alone_is_let_in_alone() -> None:
    """vLLM drops such a prompt (`NEVER`) though it would fit; here it waits until it is alone."""
    done = run(requests((20, 40), (1590, 5), (20, 5)), config("vllm-v0"), capacity=1600, max_len=1600)
    check_run(done)
    assert not done.refused
    big = next(plan for plan in done.plans if any(chunk[0] == 1 for chunk in plan.chunks))
    assert big.start >= done.finished[0]


def test_a_recompute_victim_goes_to_the_head() -> None:
    made = config("vllm-v0", max_num_seqs=2)
    done = run(requests((60, 100), (60, 100), (60, 10)), made, capacity=240, max_len=200)
    firsts = [chunk[0] for plan in done.plans for chunk in plan.chunks]
    assert firsts == [0, 1, 1, 2]


def test_swapped_sequences_come_back_before_anybody_waiting_is_let_in() -> None:
    swaps = 0
    for seed in range(6):
        done = contended(seed, preemption="swap")
        check_run(done)
        out: set[int] = set()
        for before, plan in zip([None, *done.plans], done.plans, strict=False):
            resumed = {row for row, _ in plan.decoding} & out
            out -= resumed
            assert not (plan.chunks and out), "somebody was let in while others were swapped out"
            if resumed:
                assert plan.swapped[1] > 0 and not plan.preempted, "nobody comes back in a step that preempted"
                assert before is not None
            out |= {row for row, _ in plan.preempted}
            swaps += len(plan.preempted)
    assert swaps > 10


def test_a_swapped_sequence_computes_nothing_twice() -> None:
    for seed in range(4):
        done = contended(seed, preemption="swap")
        assert all(left["recomputed"] == 0 for left in done.departures())
        moved_out, moved_in = (sum(plan.swapped[side] for plan in done.plans) for side in (0, 1))
        assert moved_out == moved_in > 0


def test_without_room_on_the_host_a_victim_is_recomputed() -> None:
    made = config("vllm-v0", max_num_seqs=12, preemption="swap")
    done = run(random_traffic(0, count=25, gap=0.004, outputs=150), made, capacity=480, max_len=320, host_tokens=150)
    check_run(done)
    assert sum(plan.swapped[0] for plan in done.plans) > 0
    assert sum(left["recomputed"] for left in done.departures()) > 0
    room = 150
    for plan in done.plans:
        room += plan.swapped[1] - plan.swapped[0]
        assert room >= 0


def test_swapping_costs_time() -> None:
    done = contended(0, preemption="swap")
    moved = [plan for plan in done.plans if plan.swapped != (0, 0) and not plan.chunks and plan.rows]
    assert moved
    for plan in moved:
        alone = AffineCost().step_seconds(StepShape(plan.rows, plan.context))
        assert plan.ends[0] - plan.start == pytest.approx(alone + 1e-6 * sum(plan.swapped))
