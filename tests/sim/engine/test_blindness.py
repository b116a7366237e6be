"""A scheduler never sees how long an answer truly is: not by looking around, and not through what it is told."""

from __future__ import annotations

import random
import types
from collections import deque
from dataclasses import fields, is_dataclass

import pytest
from harness import Run, config, random_traffic, requests, run
from random_scheduler import NAME as RANDOM

from workloads.traffic import Traffic

PRESETS = (
    "static",
    "orca",
    "vllm-v0",
    "vllm@0.8",
    "vllm",
    "sglang",
    "sglang-mixed",
    "tensorrt-llm",
    "tensorrt-llm-chunked",
    "lightllm",
)
TRUTH = 100_003  # a prime that nothing else is


def inside(thing: object):
    """Everything one attribute, item, closure or bound object away."""
    if isinstance(thing, dict):
        yield from thing.keys()
        yield from thing.values()
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        yield from thing
    elif isinstance(thing, types.MethodType):
        yield thing.__self__
        yield thing.__func__
    elif isinstance(thing, types.FunctionType):
        yield from (cell.cell_contents for cell in thing.__closure__ or ())
        yield from thing.__defaults__ or ()
    elif is_dataclass(thing):
        yield from (getattr(thing, one.name) for one in fields(thing))
    elif not isinstance(thing, type | types.ModuleType | str | bytes | int | float):
        for kind in type(thing).__mro__:
            slots = getattr(kind, "__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if hasattr(thing, slot):
                    yield getattr(thing, slot)
        yield from vars(thing).values() if hasattr(thing, "__dict__") else ()


def reachable(start: object) -> dict[int, object]:
    """Every object that can be reached from `start`, by id."""
    found: dict[int, object] = {}
    stack = [start]
    while stack:
        thing = stack.pop()
        if id(thing) not in found:
            found[id(thing)] = thing
            stack += inside(thing)
    return found


def watched(engine, look) -> None:
    """Have `look(step)` called whenever the scheduler is about to plan."""
    plan = engine.scheduler.plan

    def wrapped(step):
        look(step)
        plan(step)

    engine.scheduler.plan = wrapped


@pytest.mark.parametrize("policy", ["fcfs", "priority", "lpm"])
@pytest.mark.parametrize("preset", PRESETS)
def test_the_true_length_cannot_be_reached_from_a_step(preset: str, policy: str) -> None:
    rows = [{"input": 30 + number, "output": TRUTH, "declared": 150_000, "n": 1 + number % 2} for number in range(5)]
    served = Run(requests(*rows), config(preset, policy=policy), capacity=1 << 21, max_len=200_000)
    looks = []

    def look(step):
        things = reachable(step)
        assert len(things) > 60, "there is more to see than that"
        assert id(served.engine.executor) not in things
        assert TRUTH not in [thing for thing in things.values() if type(thing) is int]
        looks.append(len(things))

    watched(served.engine, look)
    served.serve(plans=12)
    assert len(looks) >= 12


def test_looking_around_finds_the_truth_where_a_policy_may_know_it() -> None:
    """The search is worth something: an oracle's truth is found."""
    rows = [{"input": 30, "output": TRUTH, "declared": 150_000}] * 3
    for oracle in (
        {"policy": "shortest-job"},
        {"allocator": "contiguous", "slab": "exact", "prefix_caching": False, "victim": "none"},
    ):
        served = Run(
            requests(*rows), config("vllm@0.8", gate="optimistic", **oracle), capacity=1 << 20, max_len=200_000
        )
        found = []
        watched(
            served.engine,
            lambda step, found=found: found.append(TRUTH in [t for t in reachable(step).values() if type(t) is int]),
        )
        served.serve(plans=3)
        assert any(found)


def generated_by(done: Run, time: float) -> dict[int, int]:
    """Tokens that each row had by some time."""
    return {row: sum(at <= time for at in times) for row, times in done.tokens().items()}


@pytest.mark.parametrize("preset", [*PRESETS, RANDOM])
def test_a_longer_truth_changes_nothing_before_it_matters(preset: str) -> None:
    """Truths are drawn anew for whoever has not finished at some plan; all plans up to it stay as they were."""
    made = config(name=RANDOM, prefill_wait_steps=3) if preset == RANDOM else config(preset, max_num_seqs=6)
    for seed in range(4):
        traffic = random_traffic(seed, count=20, gap=0.004, outputs=60)
        traffic.max_tokens += 60
        first = run(traffic, made, capacity=700)
        cut = len(first.plans) // 2
        time = first.plans[cut].ends[-1]
        had = generated_by(first, time)
        chance = random.Random(seed)
        truths = traffic.output_tokens.copy()
        for row in range(len(traffic)):
            if had.get(row, 0) < truths[row]:
                truths[row] = had.get(row, 0) + 2 + chance.randrange(60)  # one more may be in flight
        other = Traffic(
            traffic.arrival, traffic.input_tokens, truths, traffic.max_tokens, traffic.spans, priority=traffic.priority
        )
        second = run(other, made, capacity=700)
        assert [plan.decision for plan in second.plans[: cut + 1]] == [plan.decision for plan in first.plans[: cut + 1]]
        assert first.results() != second.results()
