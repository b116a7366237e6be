"""Sequences that hold blocks for recurrent states besides those of their tokens."""

from __future__ import annotations

import pytest
from configurations import LARGEST, SCHEDULERS, bounded, configurations
from harness import AffineCost, config, random_traffic, run
from hypothesis import given
from hypothesis import strategies as st
from invariants import check_moment, check_run

from sim.engine.sequence import Sequence
from sim.kv.base import NO_HIT
from sim.kv.paged import PagedAllocator
from workloads.traffic import Span, private_content


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_nothing_is_lost_and_stretching_changes_nothing(scheduler: str) -> None:
    @bounded(8)
    @given(configurations(scheduler, "paged"), st.integers(0, 10_000), st.integers(1, 3), st.booleans())
    def check(made, seed, states, samples):
        state_tokens = states * made.kv.block_size
        pool = 330 + 6 * state_tokens
        options = {"capacity": 3 * pool if samples else pool, "max_len": LARGEST, "state_tokens": state_tokens}
        traffic = random_traffic(seed, count=18, gap=0.004, outputs=80, samples=samples)
        done = run(traffic, made, watch=check_moment, **options)
        check_run(done)
        assert not done.refused
        priced = {"cost": AffineCost(band=97), **options}
        one_by_one, at_once = run(traffic, made, **priced), run(traffic, made, stretch=True, **priced)
        assert one_by_one.tokens() == at_once.tokens()

    check()


def alone(row: int, tokens: int) -> Sequence:
    return Sequence(row, (Span(private_content(row), 0, tokens),), tokens, 100)


@pytest.mark.parametrize("caching", [True, False])
def test_states_bound_how_many_fit(caching: bool) -> None:
    pool = PagedAllocator(10 * 16, 16, caching, state_blocks=3)
    first, second, third = (alone(row, 20) for row in range(3))
    assert pool.footprint(20) == 5 * 16
    assert pool.admit(first, NO_HIT, 20) and pool.admit(second, NO_HIT, 20)
    assert pool.available == 0 and not pool.admit(third, NO_HIT, 1)
    assert pool.held(40) == 160 and pool.use(40).live == 40 + 6 * 16
    pool.check([first, second])
    pool.release(first)
    assert pool.available == 80
    assert pool.admit(third, NO_HIT, 20)
    pool.check([second, third])


def test_a_hit_leaves_room_for_the_states_of_its_sequence() -> None:
    pool = PagedAllocator(8 * 16, 16, True, state_blocks=2)
    first = alone(0, 64)
    assert pool.admit(first, NO_HIT, 64)
    first._computed = 64
    pool.computed(first, 64)
    pool.release(first)
    again = Sequence(1, (*first.prompt, Span(private_content(1), 0, 48)), 112, 100)
    hit = pool.lookup(again)
    assert hit.tokens == 64
    assert not pool.admit(again, hit, 112), "4 blocks hit, 3 new ones and 2 of states are more than 8"
    assert pool.admit(again, hit, 96)
    pool.check([again])


def test_what_never_fits_is_refused_with_what_it_needs() -> None:
    pool = PagedAllocator(10 * 16, 16, False, state_blocks=3)
    assert pool.fits(alone(0, 12)) is None
    assert "needs 256 tokens" in pool.fits(alone(0, 100))


def test_a_fork_has_states_of_its_own() -> None:
    pool = PagedAllocator(12 * 16, 16, True, state_blocks=2)
    parent, child = alone(0, 20), alone(0, 20)
    assert pool.admit(parent, NO_HIT, 20)
    parent._computed = child._computed = 20
    copies = pool.fork(parent, child)
    assert len(copies) == 3  # the block that is not full, and two of states
    pool.check([parent, child])
    crowded = PagedAllocator(5 * 16, 16, True, state_blocks=2)
    only = alone(1, 20)
    assert crowded.admit(only, NO_HIT, 20)
    only._computed = 20
    assert crowded.fork(only, alone(1, 20)) is None


def test_throughput_is_bound_by_states() -> None:
    """Short requests on a pool in which the states of four fit: no more than four run at once."""
    made = config("vllm", block_size=32, prefix_caching=False)
    traffic = random_traffic(1, count=20, gap=0.0, inputs=20, outputs=10)
    done = run(traffic, made, capacity=4 * 5 * 32, max_len=64, state_tokens=4 * 32)
    check_run(done)
    assert max(plan.rows for plan in done.spy.plans) <= 4
