"""Speculative decoding in the engine: what a step gives, whose memory it takes, and that nothing is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from configurations import CELLS, LARGEST, POOLS, bounded, configurations
from harness import AffineCost, Run, config, random_traffic, requests, run
from hypothesis import given
from hypothesis import strategies as st
from invariants import check_moment, check_run

from backends.sim.acceptance import Acceptance, uniforms
from sim.config import SpeculationConfig
from sim.engine.sequence import Sequence
from workloads.errors import InputError

CELLS = [cell for cell in CELLS if cell[0] != "static"]


def drafts(tokens: int = 3, acceptance: float | tuple[float, ...] = 0.7, most: int = 0) -> SpeculationConfig:
    return SpeculationConfig("ngram", tokens, acceptance, disable_by_batch_size=most)


def tokens_a_step(done: Run, row: int) -> list[int]:
    """How many tokens each step gave a row, which gave any."""
    return list(Counter(done.tokens()[row]).values())


def check_budget(done: Run) -> None:
    """Drafts count for the step's budget, and none reaches past what a sequence may know."""
    budget = done.engine.config.scheduler.max_num_batched_tokens
    for plan in done.plans:
        prompts = sum(chunk[2] for chunk in plan.chunks)
        if any(plan.drafts):
            assert prompts + len(plan.decoding) + sum(plan.drafts) <= budget
        assert all(1 <= got <= 1 + had for had, got in zip(plan.drafts, plan.gained, strict=False))


@pytest.mark.parametrize("scheduler, memory", CELLS)
def test_nothing_is_lost_at_any_moment(scheduler: str, memory: str) -> None:
    @bounded(8)
    @given(
        configurations(scheduler, memory),
        st.integers(0, 10_000),
        st.sampled_from(POOLS),
        st.sampled_from((0.0, 0.004, 0.05)),
        st.booleans(),
        st.sampled_from((drafts(), drafts(1, 1.0), drafts(5, 0.9), drafts(2, (0.9, 0.0)), drafts(4, 0.8, most=3))),
    )
    def check(made, seed, pool, gap, samples, speculation):
        pool = 3 * pool if samples else pool
        traffic = random_traffic(seed, count=18, gap=gap, outputs=80, samples=samples)
        made = replace(made, speculation=speculation)
        done = run(traffic, made, capacity=pool, max_len=LARGEST, watch=check_moment)
        check_run(done)
        check_budget(done)
        assert not done.refused, "everything fits, so everybody is served"

    check()


@pytest.mark.parametrize("scheduler, memory", [cell for cell in CELLS if "contiguous" not in cell[1]])
def test_the_prefix_cache_never_holds_what_was_not_verified(scheduler: str, memory: str) -> None:
    @bounded(6)
    @given(configurations(scheduler, memory), st.integers(0, 1000), st.sampled_from(POOLS))
    def check(made, seed, pool):
        made = replace(made, speculation=drafts(5, 0.6))
        whole = Run(random_traffic(seed, count=18, gap=0.004), made, capacity=pool, max_len=LARGEST)
        allocator, executor = whole.engine.state.allocator, whole.spy
        register = allocator._register if hasattr(allocator, "_register") else allocator.computed

        def spied(seq: Sequence, size: int) -> None:
            answer = executor._lengths.get(seq, 1 << 40) - executor._left.get(seq, 0)
            assert (
                size * (allocator.block_size if register.__name__ == "_register" else 1) <= seq.prompt_tokens + answer
            )
            register(seq, size)

        setattr(allocator, register.__name__, spied)
        whole.serve()

    check()


@pytest.mark.parametrize("depth", [1, 2])
def test_where_no_draft_holds_tokens_come_one_by_one_as_without_and_later(depth: int) -> None:
    traffic = random_traffic(5, count=12, gap=0.01)
    plain = run(traffic, config("vllm", depth=depth))
    vain = run(traffic, config("vllm", depth=depth, speculation=drafts(3, 0.0)))
    for row, times in plain.tokens().items():
        assert len(times) == len(vain.tokens()[row])
        assert vain.tokens()[row][-1] >= times[-1], "the same steps, each with drafts to verify"
        assert set(tokens_a_step(vain, row)) <= {1}
    assert vain.now > plain.now


@pytest.mark.parametrize("tokens", [1, 3])
def test_where_every_draft_holds_each_step_gives_one_more_than_there_were(tokens: int) -> None:
    done = run(requests((10, 42), (10, 9)), config("vllm", depth=1, speculation=drafts(tokens, 1.0)))
    for row, length in enumerate((42, 9)):
        steps = tokens_a_step(done, row)
        assert steps[0] == 1, "the prompt gives one"
        whole, rest = divmod(length - 1, tokens + 1)
        assert steps[1:] == [tokens + 1] * whole + ([rest] if rest else [])


def test_slots_of_rejected_drafts_are_used_again() -> None:
    """A pool that holds the longest sequence and not a block more serves it, whatever is rejected."""
    for rate in (0.0, 0.5, 1.0):
        made = config("vllm", block_size=4, speculation=drafts(5, rate))
        done = run(requests((50, 150)), made, capacity=200, max_len=200, watch=check_moment)
        assert done.finished and not done.engine._preempted and not done.departures()[0]["preemptions"]


def test_drafts_need_memory_before_they_are_verified() -> None:
    """One decodes beside one that holds most of the pool: with drafts it is taken back earlier."""
    traffic = requests((60, 30), (60, 30))
    plain = run(traffic, config("vllm", block_size=1, depth=1), capacity=150, max_len=100)
    made = config("vllm", block_size=1, depth=1, speculation=drafts(8, 0.0))
    known = {}
    for name, done in (("plain", plain), ("drafts", run(traffic, made, capacity=150, max_len=100))):
        plan = next(plan for plan in done.plans if plan.preempted)
        known[name] = plan.context
    assert known["drafts"] < known["plain"]


def test_what_holds_does_not_depend_on_who_else_is_there() -> None:
    """Alone, in a crowd, preempted and swapped: the same places of an answer hold."""
    made = config("vllm", max_num_seqs=8, speculation=drafts(4, 0.6))
    traffic = random_traffic(8, count=20, gap=0.0, outputs=100)
    crowd = run(traffic, made, capacity=700, max_len=LARGEST)
    calm = run(traffic, replace(made, scheduler=replace(made.scheduler, max_num_seqs=1)), max_len=LARGEST)
    assert sum(left["preemptions"] for left in crowd.departures()) > 0
    unmoved = [int(left["row"]) for left in crowd.departures() if not left["preemptions"]]
    assert len(unmoved) > 5
    for row in unmoved:
        assert tokens_a_step(crowd, row)[1:] == tokens_a_step(calm, row)[1:]


def test_the_share_that_holds_is_the_one_asked_for() -> None:
    """Over many places: a first draft holds at its rate, a second at its own where the first did, and so on."""
    rates = (0.8, 0.5, 0.25)
    seq = Sequence(7, (), 10, 1 << 20)
    held = np.array(Acceptance(rates, seed=3).held(seq, 200_000))
    reached = [np.mean(held >= depth) for depth in (1, 2, 3)]
    assert reached == pytest.approx([0.8, 0.4, 0.1], abs=0.01)
    other = np.array(Acceptance(rates, seed=4).held(seq, 200_000))
    assert 0.2 < np.mean(held != other) < 0.8


def test_draws_are_uniform_and_independent() -> None:
    one, two = uniforms(0, 0, 0, 100_000), uniforms(0, 1, 0, 100_000)
    for draws in (one, two):
        assert np.histogram(draws, 10, (0, 1))[0] / len(draws) == pytest.approx([0.1] * 10, abs=0.01)
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.02 and abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.02
    assert uniforms(0, 0, 0, 5).tolist() == one[:5].tolist(), "a longer answer begins with the same draws"


def test_the_mean_of_tokens_a_step_is_that_of_the_closed_form() -> None:
    """(1 − a^(k+1)) / (1 − a), Leviathan et al. 2023."""
    rate, tokens = 0.7, 4
    done = run(requests(*[(10, 400)] * 60), config("vllm", max_num_seqs=64, speculation=drafts(tokens, rate)),
               capacity=60_000, max_len=600, cost=AffineCost())  # fmt: skip
    counted = done.engine.recorder.drafts
    steps = sum(often for (drafted, _), often in counted.items() if drafted == tokens)
    held = sum(often * accepted for (drafted, accepted), often in counted.items() if drafted == tokens)
    assert 1 + held / steps == pytest.approx((1 - rate ** (tokens + 1)) / (1 - rate), rel=0.01)


def test_above_a_batch_size_nothing_is_drafted() -> None:
    traffic = random_traffic(2, count=20, gap=0.0, outputs=80)
    done = run(traffic, config("vllm", max_num_seqs=20, speculation=drafts(3, 0.9, most=4)), max_len=LARGEST)
    sizes = {len(plan.decoding): max(plan.drafts) for plan in done.plans if plan.drafts}
    assert max(sizes) > 4 and any(sizes[size] for size in sizes)
    assert all((size <= 4) == bool(most) for size, most in sizes.items() if size != 1)


@pytest.mark.parametrize("depth", [1, 2])
def test_cancelling_midway_leaks_nothing(depth: int) -> None:
    def watch(whole: Run, moment: str, now: float) -> None:
        if moment == "launch" and len(whole.plans) % 7 == 3:
            alive = whole.engine.unfinished_rows()
            if len(alive) > 3:
                whole.cancel(alive[len(whole.plans) % len(alive)])
        check_moment(whole, moment, now)

    made = config("vllm", depth=depth, block_size=4, speculation=drafts(4, 0.7))
    done = run(random_traffic(3, count=25, gap=0.004), made, capacity=900, max_len=LARGEST, watch=watch)
    assert done.cancelled
    check_run(done)


def test_a_static_batch_does_not_speculate() -> None:
    made = config(name="static", gate="max-length", victim="none", prefix_caching=False, speculation=drafts())
    with pytest.raises(InputError, match="static batch"):
        run(requests((5, 5)), made)
