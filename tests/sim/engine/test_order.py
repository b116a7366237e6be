"""First come, first served; nobody waits while there is room; a refusal that stands is an honest one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from configurations import HOPEFUL, LARGEST, POOLS, RESERVING, bounded, configurations
from harness import Run, config, random_traffic, run
from hypothesis import given
from hypothesis import strategies as st

from sim.schedulers import make_gate

PRESETS = ("static", "orca", "vllm-v0", "vllm@0.8", "vllm", "sglang", "sglang-mixed", "tensorrt-llm", "lightllm")


def first_admissions(done: Run) -> list[int]:
    """Rows in the order in which they first got memory."""
    order: dict[int, None] = {}
    for plan in done.plans:
        for chunk in plan.chunks:
            order.setdefault(chunk[0])
    return list(order)


@pytest.mark.parametrize("scheduler", ["static", "continuous", "chunked-prefill"])
@pytest.mark.parametrize("memory", ["paged", "radix", "contiguous power-of-two"])
def test_first_come_first_served(scheduler: str, memory: str) -> None:
    @bounded(8)
    @given(configurations(scheduler, memory, policies=("fcfs",)), st.integers(0, 10_000), st.sampled_from(POOLS))
    def check(made, seed, pool):
        done = run(random_traffic(seed, count=20, gap=0.002), made, capacity=pool, max_len=LARGEST, stretch=True)
        order = first_admissions(done)
        assert order == sorted(order), "a younger request was started before an older one"

    check()


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_serve_in_order_of_arrival(preset: str) -> None:
    for seed in range(4):
        traffic = random_traffic(seed, count=30, gap=0.001)
        made = config(preset, max_num_seqs=8, hold_shared=False)
        order = first_admissions(run(traffic, made, capacity=700, stretch=True))
        assert order == sorted(order)


def test_priority_comes_before_arrival() -> None:
    traffic = random_traffic(1, count=30, gap=0.0)
    order = first_admissions(run(traffic, config("vllm@0.8", policy="priority", max_num_seqs=4), capacity=4000))
    ranks = [(traffic.priority[row], row) for row in order]
    assert ranks == sorted(ranks)
    assert order != sorted(order)


def test_the_shortest_job_comes_first_where_an_oracle_tells() -> None:
    traffic = random_traffic(1, count=30, gap=0.0)
    order = first_admissions(run(traffic, config("vllm@0.8", policy="shortest-job", max_num_seqs=4), capacity=4000))
    lengths = [min(traffic.output_tokens[row], traffic.max_tokens[row]) for row in order]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_engine_never_rests_while_a_request_is_here(preset: str) -> None:
    """From arrival to departure of anybody, step follows step without a gap (static batching waits only when told to)."""
    for seed in range(4):
        done = run(random_traffic(seed, count=25, gap=0.05), config(preset), capacity=700)
        busy = [(plan.start, plan.ends[-1]) for plan in done.plans]
        for (_, end), (start, _) in itertools.pairwise(busy):
            if start > end:
                here = [row for row in done.finished if done.traffic.arrival[row] < start and done.finished[row] > end]
                assert not here, f"rows {here} waited from {end} to {start}"
        assert not done.stuck


@pytest.mark.parametrize("gate", [gate for gate in (*HOPEFUL, *RESERVING) if gate != "ratio"])
@pytest.mark.parametrize("allocator", ["paged", "radix"])
def test_nobody_waits_while_there_is_room(gate: str, allocator: str) -> None:
    """Whenever a step only decodes although somebody waits, the head of the queue could not have been let in."""
    made = config(
        "vllm@0.8", gate=gate, allocator=allocator, block_size=16 if allocator == "paged" else 1, max_num_seqs=6
    )
    asked = []

    def watch(this, moment, now):
        state, plan = this.engine.state, this.plans[-1] if this.plans else None
        if moment != "launch" or not state.waiting or plan.chunks or plan.preempted or plan.swapped != (0, 0):
            return
        head, allocator = state.waiting.head(), state.allocator
        hit = allocator.lookup(head)
        tokens = min(head.known, hit.tokens + made.scheduler.max_num_batched_tokens - plan.rows)
        asked.append(head)
        if state.seats > 0 and make_gate(made.scheduler).admits(head, hit, tokens, state):
            assert not allocator.admit(head, hit, tokens), f"{head} was left waiting though there is room"

    for seed in range(4):
        run(random_traffic(seed, count=25, gap=0.002, outputs=90), made, capacity=500, max_len=300, watch=watch)
    assert len(asked) > 50


def test_a_smaller_later_request_does_not_pass_a_blocked_head() -> None:
    traffic = random_traffic(0, count=40, gap=0.0, inputs=250, outputs=40)
    for preset in ("vllm@0.8", "tensorrt-llm", "lightllm"):
        made = config(preset, hold_shared=False, prefix_caching=False)
        order = first_admissions(run(traffic, made, capacity=400, max_len=300))
        assert order == sorted(order)


def test_the_order_of_equal_arrivals_is_the_order_of_rows() -> None:
    traffic = random_traffic(9, count=30, gap=0.0)
    made = config("vllm@0.8", max_num_seqs=3)
    made = replace(made, scheduler=replace(made.scheduler, policy="priority"))
    traffic.priority[:] = 1
    assert first_admissions(run(traffic, made)) == list(range(30))
