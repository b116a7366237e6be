"""Queueing theory where it applies, and faults that users of other simulators have reported."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from harness import AffineCost, ConstantCost, Run, config, random_traffic, requests, run
from invariants import check_run

from workloads.traffic import Span, SpanTable, Traffic, private_content


def poisson(count: int, rate: float, inputs: int, outputs: int, seed: int = 0) -> Traffic:
    at = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    return Traffic(at, np.full(count, inputs), np.full(count, outputs), max_tokens=np.full(count, outputs))


SERVICE = 0.01


def waits_of_one_seat(traffic: Traffic) -> np.ndarray:
    """How long each request waited for the only seat of an engine whose every answer takes one step."""
    made = config("vllm@0.8", max_num_seqs=1, prefix_caching=False)
    left = run(traffic, made, cost=ConstantCost(SERVICE), stretch=True).engine.recorder.departures.array()
    order = np.argsort(left["row"])
    return left["admitted"][order] - traffic.arrival


@pytest.mark.parametrize("load", [0.3, 0.9, 1.1])
def test_one_seat_and_one_token_is_a_single_server_queue(load: float) -> None:
    """Lindley's recursion: the next waits for what is left of the one before it."""
    traffic = poisson(1500, load / SERVICE, 10, 1, seed=3)
    wait, expected = 0.0, [0.0]
    for gap in np.diff(traffic.arrival):
        wait = max(0.0, wait + SERVICE - gap)
        expected.append(wait)
    np.testing.assert_allclose(waits_of_one_seat(traffic), expected, rtol=0, atol=1e-9)


def test_its_mean_wait_is_that_of_m_d_1() -> None:
    """Load / (2 (1 − load)) × service time (Pollaczek-Khinchine)."""
    for load in (0.3, 0.6):
        wait = waits_of_one_seat(poisson(20_000, load / SERVICE, 10, 1, seed=1)).mean()
        assert wait == pytest.approx(load / (2 * (1 - load)) * SERVICE, rel=0.05)


def test_littles_law() -> None:
    """Mean number in the system = arrival rate × mean time in it, counted at the events themselves."""
    for preset in ("vllm", "sglang", "orca"):
        traffic = random_traffic(4, count=150, gap=0.03)
        done = run(traffic, config(preset), capacity=4000, stretch=True)
        assert len(done.finished) == 150
        events = sorted([(at, 1) for at in traffic.arrival] + [(time, -1) for time in done.finished.values()])
        area = here = 0
        for (time, change), (later, _) in itertools.pairwise(events):
            here += change
            area += here * (later - time)
        end = max(done.finished.values())
        mean_time = sum(time - traffic.arrival[row] for row, time in done.finished.items()) / 150
        assert area / end == pytest.approx(150 / end * mean_time, rel=1e-9)


def test_a_lone_request_takes_as_long_as_its_steps() -> None:
    cost = AffineCost()
    done = run(requests((100, 5)), config("vllm@0.8"), cost=cost)
    lines = [cost.decode_line(1, context) for context in range(101, 105)]
    steps = [line.intercept + line.slope * context for line, context in zip(lines, range(101, 105), strict=True)]
    expected = cost.base + cost.token * 100 + sum(steps)
    assert done.finished[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("preset", ["vllm@0.8", "vllm", "sglang", "tensorrt-llm", "lightllm", "orca"])
def test_past_capacity_throughput_stays_and_the_queue_grows(preset: str) -> None:
    """At 1.5 and at 3 times what it can do the engine does what it can, within 2 %, and the rest piles up."""
    made = config(preset, max_num_seqs=32)

    def served(rate: float) -> tuple[Run, np.ndarray]:
        outputs = np.random.default_rng(0).integers(16, 49, 1000)  # of unequal length, so that not all end together
        traffic = Traffic(np.arange(1000) / rate, np.full(1000, 64), outputs, max_tokens=outputs)
        done = run(traffic, made, capacity=32 * 160, max_len=160, stretch=True)
        return done, np.sort(list(done.finished.values()))

    def throughput(ends: np.ndarray) -> float:
        return 600 / (ends[800] - ends[200])

    capacity = throughput(served(1e6)[1])
    for factor in (1.5, 3.0):
        done, ends = served(factor * capacity)
        assert throughput(ends) == pytest.approx(capacity, rel=0.02)
        low, high = done.traffic.arrival[[400, 900]]
        here = [(done.traffic.arrival <= time).sum() - (ends <= time).sum() for time in (low, high)]
        assert here[1] - here[0] == pytest.approx((factor - 1) * capacity * (high - low), rel=0.15)


@pytest.mark.parametrize("preset", ["vllm@0.8", "sglang", "lightllm"])
def test_preemption_and_prefix_caching_make_nothing_faster_than_endless_memory(preset: str) -> None:
    """300 at once with room for about 20; what is computed again is charged."""
    traffic = poisson(300, 1e6, 100, 100, seed=1)
    short, ample = (run(traffic, config(preset), capacity=c, max_len=220, stretch=True) for c in (4000, 100_000))
    assert short.now > ample.now
    check_run(short)
    preempted = sum(left["preemptions"] for left in short.departures())
    recomputed = sum(left["recomputed"] for left in short.departures())
    prefilled = sum(chunk[2] for plan in short.plans for chunk in plan.chunks)
    cached = sum(left["cached"] for left in short.departures())
    if preempted:
        assert prefilled >= 300 * 100 - cached
        assert recomputed > 0
    first = sum(chunk[2] for plan in ample.plans for chunk in plan.chunks)
    assert first == 300 * 100
    assert not sum(left["preemptions"] for left in ample.departures())


def test_every_prefilled_token_is_accounted_for() -> None:
    """Prefilled = prompts − cached + recomputed, for all requests together."""
    for preset in ("vllm@0.8", "sglang", "lightllm", "vllm-v0"):
        for seed in range(3):
            traffic = random_traffic(seed, count=25, gap=0.004, outputs=150)
            done = run(traffic, config(preset, conservativeness=0.01, depth=1), capacity=480, max_len=320)
            left = done.departures()
            prefilled = sum(chunk[2] for plan in done.plans for chunk in plan.chunks)
            recomputed, cached, preempted = (
                sum(each[name] for each in left) for name in ("recomputed", "cached", "preemptions")
            )
            beyond = prefilled - (traffic.input_tokens.sum() - cached + recomputed)
            assert 0 <= beyond <= preempted, "but for the newest token of whoever decoded: it was due anyway"
            assert all(each["cached"] < traffic.input_tokens[int(each["row"])] for each in left), (
                "a hit rate below 100 %"
            )


@pytest.mark.parametrize(
    "preset", ["vllm@0.8", "vllm", "vllm-v0", "sglang", "lightllm", "tensorrt-llm-max-utilization"]
)
def test_a_little_too_much_demand_for_memory_costs_a_little(preset: str) -> None:
    """Answers for 101 % of the pool against 90 %: under five times the plans, and no endless going to and fro."""
    rows = [{"input": 100, "output": 100, "declared": 100}] * 40
    made = config(preset, prefix_caching=False, conservativeness=0.01)
    told = {}
    for share in (0.9, 1.01):
        capacity = int(40 * 200 / share)
        told[share] = run(requests(*rows), made, capacity=capacity, max_len=220)
        check_run(told[share])
    assert len(told[1.01].plans) < 5 * len(told[0.9].plans)
    assert told[1.01].now < 5 * told[0.9].now


def test_a_step_costs_no_more_the_longer_the_queue_is() -> None:
    """Plans a request stay the same at twice and four times the overload, and looking at the queue is not part of them."""
    made = config("vllm@0.8", max_num_seqs=16)
    looks = []
    for count in (200, 800):
        done = Run(poisson(count, 1e6, 40, 20), made, capacity=16 * 80, max_len=80, stretch=True)
        queue, calls = done.engine.state.waiting, [0]
        head = queue.head
        queue.head = lambda head=head, calls=calls: (calls.__setitem__(0, calls[0] + 1), head())[1]
        done.serve()
        looks.append((len(done.plans) / count, calls[0] / count))
    assert looks[1] == pytest.approx(looks[0], rel=0.1)


def test_waste_inside_blocks_is_less_than_one_block_a_sequence_over_a_whole_run() -> None:
    def watch(this, moment, now):
        state = this.engine.state
        if moment == "land":
            use = state.allocator.use(state.stored)
            assert use.allocated < 16 * max(1, len(state.running))

    run(random_traffic(2, count=30, gap=0.004), config("vllm@0.8", prefix_caching=False), capacity=1600, watch=watch)


def test_sharing_a_system_prompt_saves_what_it_should() -> None:
    """20 prompts of 160 + 16: with caching the shared part is computed once."""
    prompts = [[Span(-1, 0, 160), Span(private_content(row), 0, 16)] for row in range(20)]
    traffic = Traffic(
        np.zeros(20), np.full(20, 176), np.full(20, 4), max_tokens=np.full(20, 4), spans=SpanTable.build(prompts)
    )
    told = {}
    for caching in (True, False):
        done = run(traffic, config("vllm@0.8", prefix_caching=caching), capacity=4000)
        told[caching] = sum(chunk[2] for plan in done.plans for chunk in plan.chunks)
    assert told == {True: 160 + 20 * 16, False: 20 * 176}
