"""Cancelling at random moments: memory is back at once, everybody else still finishes."""

from __future__ import annotations

import random

import pytest
from configurations import LARGEST, POOLS, bounded, configurations
from harness import ConstantCost, Run, config, holders, random_traffic, requests, run
from hypothesis import given
from hypothesis import strategies as st
from invariants import check_moment, check_run

KINDS = [
    ("chunked-prefill", "paged"),
    ("chunked-prefill", "radix"),
    ("continuous", "contiguous power-of-two"),
    ("static", "paged"),
]


def handed_out(this: Run, row: int) -> list[float]:
    """Times of a row's tokens in the plans that have come back, told from the plans alone."""
    times = []
    for plan in this.plans:
        times += [end for end in plan.ends if end <= this.now] if (row, 0) in plan.decoding else []
        if plan.ends[-1] <= this.now:
            times += [
                plan.ends[-1]
                for number, sample, *_, samples in plan.chunks
                if (number, sample, samples) == (row, 0, True)
            ]
    return times


@pytest.mark.parametrize("scheduler, memory", KINDS)
def test_everybody_else_still_finishes(scheduler: str, memory: str) -> None:
    total = []

    @bounded(12)
    @given(configurations(scheduler, memory), st.integers(0, 10_000), st.sampled_from(POOLS), st.booleans())
    def check(made, seed, pool, stretch):
        chance = random.Random(seed)
        had: dict[int, list[float]] = {}

        def watch(this, moment, now):
            if chance.random() < 0.1 and this.submitted:
                row = chance.choice(this.submitted)
                here = [
                    seq for seq in [*holders(this.engine), *this.engine.state.waiting] if seq.row == row and seq.alive
                ]
                before = handed_out(this, row)
                gone = this.cancel(row)
                assert gone or not here
                if gone:
                    had[row] = before
                    assert row not in this.engine.unfinished_rows()
                    assert all(seq.row != row for seq in [*holders(this.engine), *this.engine.state.waiting])
            check_moment(this, moment, now)

        traffic = random_traffic(seed, count=20, gap=0.004, outputs=80)
        done = run(traffic, made, capacity=pool, max_len=LARGEST, watch=watch, stretch=stretch)
        check_run(done)
        total.extend(done.cancelled)
        tokens = done.tokens()
        assert all(len(tokens.get(row, [])) <= done.expected_tokens(row) for row in done.cancelled)
        if made.scheduler.streaming:  # else answers are kept to the end of their batch
            assert {row: tokens.get(row, []) for row in had if traffic.n[row] == 1} == {
                row: had[row] for row in had if traffic.n[row] == 1
            }

    check()
    assert len(total) > 20


@pytest.mark.parametrize("preset", ["vllm@0.8", "vllm", "sglang", "lightllm", "tensorrt-llm", "orca"])
def test_all_memory_is_back_at_once(preset: str) -> None:
    """Of a decoding, a half-prefilled and a waiting request."""

    def watch(this, moment, now):
        if moment == "land" and not this.cancelled and len(this.plans) >= 6 and len(this.submitted) == 3:
            while this.engine.in_flight:
                this.now = this.engine.land(this.engine.collect())
            for row in range(3):
                this.cancel(row)
            use = this.engine.state.allocator.use(this.engine.state.stored)
            assert use.live == use.allocated == 0
            assert use.free + use.cached == use.capacity
            assert this.engine.idle

    rows = [(20, 90), {"input": 180, "output": 40, "at": 0.01}, {"input": 200, "output": 30, "at": 0.011}]
    made = config(preset, max_num_batched_tokens=64 if "chunk" in config(preset).scheduler.name else 1 << 20)
    done = run(requests(*rows), made, capacity=448, max_len=256, watch=watch)
    assert done.cancelled == [0, 1, 2]


def test_a_cancelled_request_makes_room_for_the_next() -> None:
    """The head of the queue is blocked for memory; once the one before it is gone it starts with the next plan."""
    seen = []

    def watch(this, moment, now):
        if moment == "land" and len(this.plans) == 20:
            seen.append(this.engine.state.blocked)
            this.cancel(0)

    done = run(
        requests((100, 100), (150, 10)), config("vllm@0.8", gate="full-prompt"), capacity=240, max_len=230, watch=watch
    )
    assert seen == [True]
    first = next(number for number, plan in enumerate(done.plans) if any(chunk[0] == 1 for chunk in plan.chunks))
    assert first == 20


def test_a_swapped_request_gives_its_host_memory_back() -> None:
    made = config("vllm@0.8", preemption="swap")

    def watch(this, moment, now):
        for seq in list(this.engine.state.swapped):
            if moment == "land" and this.now - seq.arrival > 0.2:
                assert this.cancel(seq.row)

    done = run(random_traffic(2, count=15, gap=0.0, outputs=150), made, capacity=330, max_len=300, watch=watch)
    assert done.cancelled
    check_run(done)


def test_a_batch_is_handed_out_when_its_last_member_is_cancelled() -> None:
    def watch(this, moment, now):
        if moment == "land" and len(this.plans) == 8:
            this.cancel(1)

    done = run(requests((20, 3), (20, 50)), config("static"), max_len=200, capacity=1000, watch=watch)
    assert list(done.finished) == [0]
    check_run(done)


@pytest.mark.parametrize(
    "preset",
    ["vllm@0.8", "sglang"],
)
def test_a_cancelled_answer_keeps_what_was_handed_out_and_nothing_more(preset: str) -> None:
    """Row 0 has five tokens, the fifth of which comes with the fifth plan; a client sees none that come after it has gone."""
    for at in range(1, 9):
        gone = []

        def watch(this, moment, now, at=at, gone=gone):
            if moment == "launch" and len(this.plans) == at and this.cancel(0):
                gone.append(now)

        rows = [{"input": 20, "output": 5, "declared": 50}, (20, 20)]
        done = run(requests(*rows), config(preset), watch=watch, cost=ConstantCost(0.1))
        tokens = done.tokens().get(0, [])
        assert len(tokens) <= 5
        assert all(time <= gone[0] for time in tokens if gone)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("depth", [1, 2])
def test_what_was_handed_out_around_a_preemption(depth: int, preemption: str) -> None:
    """Of sequences that lost their memory and were cancelled at some moment after that, and of those that went on to the end."""
    gone = 0
    for seed in range(24):
        chance, had = random.Random(seed), {}

        def watch(this, moment, now, chance=chance, had=had):
            for seq in list(this.engine.state.running):
                if seq.preemptions and seq.alive and chance.random() < 0.05:
                    before = handed_out(this, seq.row)
                    if this.cancel(seq.row):
                        had[seq.row] = before

        made = config(
            depth=depth, preemption=preemption, gate="optimistic", max_num_batched_tokens=64, requeue=("head", "tail")[seed % 2],
            victim=("last-admitted", "fewest-outputs")[seed % 3 > 0], admit_after_preemption=seed % 4 > 1,
        )  # fmt: skip
        done = run(
            random_traffic(seed, count=20, gap=0.004, outputs=80), made, capacity=270, max_len=220, watch=watch,
            stretch=seed % 5 > 1,
        )  # fmt: skip
        check_run(done)
        tokens = done.tokens()
        assert {row: tokens.get(row, []) for row in had} == had, seed
        for row in done.finished:
            assert tokens[row] == handed_out(done, row)[: done.expected_tokens(row)], (seed, row)
        gone += len(had)
    assert gone > 100
