"""Orca (OSDI '22) and LightLLM (`lightllm/server/router`): maximum lengths reserved; the future peak, prefills now and then."""

from __future__ import annotations

import pytest
from harness import ConstantCost, Run, config, random_traffic, requests, run
from invariants import check_moment, check_run
from test_sglang import state_with

from sim.engine.sequence import Sequence
from sim.kv.base import NO_HIT
from sim.schedulers.gates import FuturePeak, MaxLength
from workloads.traffic import Span, private_content


def candidate(prompt: int, declared: int) -> Sequence:
    return Sequence(50, (Span(private_content(50), 0, prompt),), prompt, declared)


# --- Orca


@pytest.mark.parametrize("slab", ["max-length", "power-of-two", "exact"])
def test_orca_never_preempts_and_joins_prompts_to_decodes(slab: str) -> None:
    for seed in range(3):
        made = config("orca", slab=slab)
        done = run(
            random_traffic(seed, count=25, gap=0.004, outputs=80), made, capacity=1024, max_len=256, watch=check_moment
        )
        check_run(done)
        assert not any(plan.preempted for plan in done.plans)
        assert any(plan.chunks and plan.decoding for plan in done.plans)
        assert all(chunk[4] for plan in done.plans for chunk in plan.chunks), "prompts are whole"


@pytest.mark.parametrize("slab, at_once", [("max-length", 4), ("power-of-two", 8), ("exact", 12)])
def test_how_many_run_at_once_depends_on_the_slab(slab: str, at_once: int) -> None:
    """Of 60 + 25 tokens, declared 40, in 1024 slots: slabs of 256, of 128 (100 rounded up) or of 85."""
    rows = [{"input": 60, "output": 25, "declared": 40}] * 20
    done = run(requests(*rows), config("orca", slab=slab), capacity=1024, max_len=256)
    assert len(done.plans[0].chunks) == at_once
    check_run(done)


def test_gate_max_length_adds_up_declared_lengths() -> None:
    state, _ = state_with((100, 20, 300), (200, 5, 100), pool=1000)  # 400 and 300 at their limits
    gate = MaxLength()
    assert gate.admits(candidate(100, 200), NO_HIT, 100, state)
    assert not gate.admits(candidate(100, 201), NO_HIT, 100, state)


# --- LightLLM


def test_the_future_peak_by_hand() -> None:
    """Running: 40 tokens left of 100 + 11 known, 10 left of 51. Candidate: 20 left, 60 known.

    By tokens left: (40, 111), (20, 60), (10, 51). Peaks: 40·1 + 111 = 151; 20·2 + 171 = 211; 10·3 + 222 = 252.
    """
    for pool, fits in ((252, False), (253, True)):
        state, _ = state_with((100, 11, 51), (50, 1, 11), pool=pool)
        assert FuturePeak().admits(candidate(60, 20), NO_HIT, 60, state) == fits
    state, _ = state_with(pool=252)
    assert FuturePeak().admits(candidate(200, 52), NO_HIT, 200, state), "alone, all of the pool may be filled"


def test_nobody_is_ever_preempted_if_all_answers_were_declared_well() -> None:
    for seed in range(3):
        traffic = random_traffic(seed, count=25, gap=0.004, outputs=150)
        done = run(traffic, config("lightllm"), capacity=480, max_len=320, watch=check_moment)
        check_run(done)
        assert not any(plan.preempted for plan in done.plans)


def lightllm(*rows, **settings) -> Run:
    return run(requests(*rows), config("lightllm", depth=1, **settings), cost=ConstantCost(0.01))


def decodes_before_prefills(done: Run) -> list[int]:
    """How many decode steps lie before each prefill step."""
    counts, decodes = [], 0
    for plan in done.plans:
        if plan.chunks:
            counts.append(decodes)
        decodes += not plan.chunks
    return counts


def test_new_prompts_are_looked_for_every_six_decode_steps() -> None:
    rows = [(20, 60), *[{"input": 20, "output": 60, "at": 0.035 + 0.1 * k} for k in range(3)]]
    told = decodes_before_prefills(lightllm(*rows))
    assert told[0] == 0
    assert all(steps % 6 == 0 for steps in told)
    assert len(set(told)) == 4, "each came at a time of its own"


def test_after_a_prefill_the_next_is_tried_at_once() -> None:
    """Rows 1 and 2 arrive during the prefill of row 0 and are not kept waiting; row 3 arrives later and is."""
    rows = [(20, 60), *[{"input": 20, "output": 60, "at": 0.005}] * 2, {"input": 20, "output": 60, "at": 0.035}]
    done = lightllm(*rows)
    assert [[chunk[0] for chunk in plan.chunks] for plan in done.plans[:2]] == [[0], [1, 2]]
    assert decodes_before_prefills(done) == [0, 0, 6]


def test_an_idle_engine_does_not_wait() -> None:
    done = lightllm((20, 4), {"input": 20, "output": 4, "at": 1.003})
    assert done.plans[-4].start == 1.003
    assert done.plans[-4].chunks


def test_a_prompt_part_way_goes_on_at_once() -> None:
    done = lightllm((20, 60), {"input": 150, "output": 5, "at": 0.035}, max_num_batched_tokens=64)
    assert decodes_before_prefills(done) == [0, 6, 6, 6]


def test_out_of_memory_the_last_is_paused_and_comes_back_first() -> None:
    """Declared too short by half a gate: `optimistic` in place of the peak."""
    made = config("lightllm", depth=1, gate="optimistic", max_num_seqs=2, prefix_caching=False)
    done = run(requests((60, 100), (60, 100), (60, 10)), made, capacity=240, max_len=200)
    assert [row for plan in done.plans for row, _ in plan.preempted][:1] == [1]
    order = [chunk[0] for plan in done.plans for chunk in plan.chunks]
    assert order.index(2) > max(k for k, row in enumerate(order) if row == 1)
    check_run(done)
