"""Stepping and stretching give exactly the same; so do two runs, and a run in another process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from configurations import CELLS, LARGEST, POOLS, SCHEDULERS, bounded, configurations
from harness import AffineCost, config, random_traffic, run
from hypothesis import given
from hypothesis import strategies as st
from random_scheduler import NAME as RANDOM

HERE = Path(__file__).parent


@pytest.mark.parametrize("scheduler, memory", CELLS)
def test_stretching_changes_nothing(scheduler: str, memory: str) -> None:
    @bounded(10)
    @given(
        configurations(scheduler, memory),
        st.integers(0, 10_000),
        st.sampled_from(POOLS),
        st.sampled_from((0.0, 0.004, 0.1)),
        st.booleans(),
    )
    def check(made, seed, pool, gap, samples):
        pool = 3 * pool if samples else pool
        traffic = random_traffic(seed, count=18, gap=gap, outputs=120, samples=samples)
        options = {"capacity": pool, "max_len": LARGEST, "cost": AffineCost(band=97)}
        one_by_one, at_once = run(traffic, made, **options), run(traffic, made, stretch=True, **options)
        mine, theirs = one_by_one.results(), at_once.results()
        assert [name for name in mine if mine[name] != theirs[name]] == []
        assert one_by_one.tokens() == at_once.tokens()
        assert one_by_one.engine.state.allocator.use(0) == at_once.engine.state.allocator.use(0)

    check()


def test_long_stretches_summed_by_numpy_are_equal_too() -> None:
    """Hundreds of equal steps across several decode lines; nothing arrives in between."""
    traffic = random_traffic(3, count=6, gap=0.0, inputs=50, outputs=2000)
    options = {"capacity": 60_000, "max_len": 4000, "cost": AffineCost(band=1009)}
    for depth in (1, 2):
        made = config("vllm", depth=depth)
        slow, quick = run(traffic, made, **options), run(traffic, made, stretch=True, **options)
        assert slow.results() == quick.results()
        assert max(plan.repeat for plan in quick.plans) > 200
        assert len(quick.plans) < len(slow.plans) / 20, "stretches save plans"


def test_arrivals_that_cannot_change_the_plan_do_not_stop_a_stretch() -> None:
    traffic = random_traffic(5, count=60, gap=0.002, inputs=60, outputs=300)
    made = config("vllm@0.8", max_num_seqs=4)
    quick = run(traffic, made, stretch=True, max_len=500, capacity=9000)
    slow = run(traffic, made, max_len=500, capacity=9000)
    assert slow.results() == quick.results()
    decodes = [plan for plan in quick.plans if not plan.chunks]
    assert len(decodes) < 2.5 * len(traffic), "one stretch from finish to finish while all seats are taken"


def digest(seed: int) -> str:
    """A run of every scheduler, in one line."""
    total = hashlib.sha256()
    for scheduler in SCHEDULERS:
        for preset in ("vllm", "sglang", "lightllm"):
            extra = {"depth": 1, "gate": "max-length", "victim": "none"} if scheduler == "static" else {}
            made = config(
                preset, name=scheduler, max_num_seqs=8, prefill_wait_steps=seed, **{"stops_ahead": False, **extra}
            )
            done = run(random_traffic(seed, gap=0.004, samples=True), made, capacity=1000, stretch=True)
            total.update(repr((done.results(), [plan.decision for plan in done.plans])).encode())
    return total.hexdigest()


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert digest(11) == digest(11)
    assert digest(11) != digest(12)


def test_a_fresh_process_with_another_hash_seed_gives_the_same_bytes() -> None:
    paths = [str(HERE), str(HERE.parent), str(HERE.parents[2])]
    code = f"import sys; sys.path[:0] = {paths!r}; from test_equivalence import digest; print(digest(11))"
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "4242")
    ]
    assert told == [digest(11)] * 2


def test_the_plug_in_really_does_everything() -> None:
    """The random scheduler is no use unless it decodes, pauses, cuts prompts, preempts, swaps and sleeps."""
    seen = set()
    for seed in range(6):
        made = config(
            name=RANDOM, prefill_wait_steps=seed, preemption="swap", max_num_seqs=8, gate="optimistic", depth=1
        )
        done = run(random_traffic(seed, gap=0.004), made, capacity=500)
        for before, plan in zip(done.plans, done.plans[1:], strict=False):
            seen |= {"preempts"} if plan.preempted else set()
            seen |= {"swaps out"} if plan.swapped[0] else set()
            seen |= {"swaps in"} if plan.swapped[1] else set()
            seen |= {"pauses"} if plan.chunks and not plan.decoding and before.decoding else set()
            seen |= {"mixes"} if plan.chunks and plan.decoding else set()
            seen |= {"cuts"} if any(not chunk[4] for chunk in plan.chunks) else set()
            seen |= {"sleeps"} if plan.start > before.ends[-1] and before.decoding else set()
    assert seen == {"preempts", "swaps out", "swaps in", "pauses", "mixes", "cuts", "sleeps"}
