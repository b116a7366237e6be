"""Gates by hand: what each counts on, and what a cached prefix is worth to it."""

from __future__ import annotations

import pytest
from harness import config, requests, run

from sim.config import SchedulerConfig
from sim.engine.sequence import Sequence
from sim.engine.state import EngineState
from sim.kv.base import NO_HIT
from sim.kv.paged import PagedAllocator
from sim.schedulers import GATES, make_gate
from sim.schedulers.queue import FirstCome
from workloads.traffic import Span, private_content


def crowd(blocks: int, *rows: tuple[int, int], idle: int = 0) -> EngineState:
    """Sequences of (prompt, declared) that decode, all prompts beginning with content -1; `idle` tokens of -2 are cached."""
    state = EngineState(SchedulerConfig(), PagedAllocator(blocks * 16, 16), FirstCome())
    pool = state.allocator
    for row, (prompt, declared) in enumerate(rows):
        seq = Sequence(row, (Span(-1, 0, prompt),), prompt, declared)
        assert pool.admit(seq, NO_HIT, prompt)
        seq._computed = prompt
        pool.computed(seq, prompt)
        seq._known = prompt + 1
        state.seat(seq)
        state.cohort.join(seq)
    if idle:
        old = Sequence(90, (Span(-2, 0, idle),), idle, 5)
        assert pool.admit(old, NO_HIT, idle)
        old._computed = idle
        pool.release(old)
    return state


def asks(state: EngineState, gate: str, *spans: Span, declared: int = 10, **settings) -> bool:
    """Whether a prompt of these spans would be let in with its first 16 tokens beyond the hit."""
    seq = Sequence(50, spans, sum(span.length for span in spans), declared)
    hit = state.allocator.lookup(seq)
    return make_gate(SchedulerConfig(gate=gate, **settings)).admits(seq, hit, hit.tokens + 16, state)


def own(tokens: int) -> Span:
    return Span(private_content(50), 0, tokens)


def test_every_gate_has_a_name_and_a_word() -> None:
    assert all(make_gate(SchedulerConfig(gate=gate)) is not None and text for gate, text in GATES.items())
    assert len({type(make_gate(SchedulerConfig(gate=gate))) for gate in GATES}) == len(GATES)


def test_optimistic_lets_everybody_try() -> None:
    assert asks(crowd(4, (60, 10)), "optimistic", own(5000))


@pytest.mark.parametrize("tokens, fits", [(64, True), (65, False)])
def test_full_prompt_wants_all_known_tokens_to_fit(tokens: int, fits: bool) -> None:
    assert asks(crowd(10, (96, 10)), "full-prompt", own(tokens)) == fits


def test_full_prompt_gives_credit_for_what_is_in_use_and_none_for_what_is_only_cached() -> None:
    """Ten blocks: six in use. A prompt of 7 blocks that shares those six needs one; one that shares two idle ones needs all."""
    assert asks(crowd(10, (96, 10)), "full-prompt", Span(-1, 0, 96), own(64))
    assert not asks(crowd(10, (96, 10)), "full-prompt", Span(-1, 0, 96), own(65))
    assert asks(crowd(10, (96, 10), idle=32), "full-prompt", Span(-2, 0, 32), own(32))
    assert not asks(crowd(10, (96, 10), idle=32), "full-prompt", Span(-2, 0, 32), own(33))


def test_the_watermark_gives_no_credit_at_all() -> None:
    assert asks(crowd(100, (96, 10)), "watermark", own(93 * 16), watermark=0.01)
    assert not asks(crowd(100, (96, 10)), "watermark", own(94 * 16), watermark=0.01)
    assert not asks(crowd(100, (96, 10)), "watermark", Span(-1, 0, 96), own(93 * 16), watermark=0.01)


@pytest.mark.parametrize("declared, fits", [(32, True), (33, False)])
def test_reserve_output_leaves_everybody_room_to_finish(declared: int, fits: bool) -> None:
    """20 blocks. The running one has 6 and needs 10 at its limit; the candidate of 8 blocks may declare two more."""
    state = crowd(20, (96, 64))
    assert asks(state, "reserve-output", own(128), declared=declared) == fits


def test_reserve_output_gives_credit_for_a_prefix_in_use() -> None:
    state = crowd(20, (96, 64))
    assert asks(state, "reserve-output", Span(-1, 0, 96), own(128), declared=32)
    assert not asks(state, "reserve-output", Span(-1, 0, 96), own(128), declared=33)


def test_samples_are_reserved_for_as_well() -> None:
    for gate in ("reserve-output", "max-length"):
        state = crowd(20, (16, 16))
        seq = Sequence(50, (own(60),), 60, 4)
        assert make_gate(SchedulerConfig(gate=gate)).admits(seq, NO_HIT, 60, state)
        seq.siblings = tuple(Sequence(50, (own(60),), 60, 4, sample=sample) for sample in range(1, 5))
        assert not make_gate(SchedulerConfig(gate=gate)).admits(seq, NO_HIT, 60, state), "five times four blocks"


def test_how_many_prompts_may_be_part_way_at_once() -> None:
    for most in (1, 2, 3):
        made = config("vllm@0.8", max_partial_prefills=most, long_prefill_token_threshold=24)
        done = run(requests(*[(100, 3)] * 4), made)
        part_way: set[int] = set()
        highest = 0
        for plan in done.plans:
            for row, _, _, _, samples in plan.chunks:
                part_way = part_way - {row} if samples else part_way | {row}
            highest = max(highest, len(part_way))
        assert highest == most
