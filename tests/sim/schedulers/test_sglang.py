"""SGLang's rules (`python/sglang/srt/managers/{scheduler,schedule_policy,schedule_batch}.py`)."""

from __future__ import annotations

import pytest
from harness import ConstantCost, Run, config, random_traffic, requests, run
from invariants import check_run

from sim.config import SchedulerConfig
from sim.engine.sequence import Sequence
from sim.engine.state import EngineState
from sim.kv.base import NO_HIT
from sim.kv.radix import RadixAllocator
from sim.schedulers.gates import Ratio
from sim.schedulers.queue import FirstCome
from sim.schedulers.victims import FewestOutputs
from workloads.traffic import Span, private_content


def contended(seed: int, preset: str = "sglang", capacity: int = 480, **settings) -> Run:
    made = config(preset, **{"max_num_batched_tokens": 64, "conservativeness": 0.001, "depth": 1, **settings})
    traffic = random_traffic(seed, count=25, gap=0.004, outputs=150)
    return run(traffic, made, capacity=capacity, max_len=320)


def test_prefill_comes_first_and_alone() -> None:
    for seed in range(4):
        done = contended(seed)
        check_run(done)
        assert not any(plan.chunks and plan.decoding for plan in done.plans)


def test_mixed_chunks_run_beside_decodes() -> None:
    for seed in range(3):
        done = contended(seed, "sglang-mixed")
        check_run(done)
        mixed = [plan for plan in done.plans if plan.chunks and plan.decoding]
        assert len(mixed) > 10
        assert all(sum(chunk[2] for chunk in plan.chunks) + len(plan.decoding) <= 64 for plan in mixed)


@pytest.mark.parametrize("preset", ["sglang", "sglang-mixed"])
def test_one_prompt_at_a_time_is_part_way(preset: str) -> None:
    for seed in range(4):
        open_prompts: set[int] = set()
        for plan in contended(seed, preset, capacity=4000).plans:
            for row, _, _, _, samples in plan.chunks:
                open_prompts = open_prompts - {row} if samples else open_prompts | {row}
            assert len(open_prompts) <= 1


def test_the_prompt_that_is_part_way_goes_first() -> None:
    done = run(requests((100, 3), (100, 3), (100, 3)), config("sglang", max_num_batched_tokens=64, depth=1))
    chunks = [[(row, tokens) for row, _, tokens, _, _ in plan.chunks] for plan in done.plans if plan.chunks]
    assert chunks == [[(0, 64)], [(0, 36), (1, 28)], [(1, 64)], [(1, 8), (2, 56)], [(2, 44)]]


# --- retraction


def test_the_victim_has_the_fewest_outputs_and_then_the_longest_prompt() -> None:
    retractions = 0
    for seed in range(8):
        done = contended(seed, capacity=600)
        given: dict[int, int] = {}
        prompts = done.traffic.input_tokens
        for before, plan in zip([None, *done.plans], done.plans, strict=False):
            batch = {row for row, _ in before.decoding} if before else set()
            batch = {row for row in batch if done.finished[row] > plan.at}
            for row, _ in plan.preempted:
                retractions += 1
                if row in batch and len(batch) > 1:
                    assert (given[row], -prompts[row]) == min((given[other], -prompts[other]) for other in batch)
                batch.discard(row)
            for row, _ in plan.decoding:
                given[row] = given.get(row, 0) + 1
            for row, _, _, _, samples in plan.chunks:
                given[row] = given.get(row, 0) + samples
    assert retractions > 5


def state_with(*rows: tuple[int, int, int], prefilling: tuple[int, int, int] | None = None, pool: int = 2000):
    """A state in which sequences of (prompt, generated, declared) decode, and perhaps another is part-way; and all of them."""
    state = EngineState(SchedulerConfig(), RadixAllocator(pool, prefix_caching=False), FirstCome())
    made = []
    for row, (prompt, generated, declared) in enumerate(rows):
        seq = Sequence(row, (Span(private_content(row), 0, prompt),), prompt, declared)
        assert state.allocator.admit(seq, NO_HIT, prompt + generated - 1)
        seq._known, seq._computed = prompt + generated, prompt + generated - 1
        state.seat(seq)
        state.cohort.join(seq)
        made.append(seq)
    if prefilling:
        prompt, computed, declared = prefilling
        seq = Sequence(99, (Span(private_content(99), 0, prompt),), prompt, declared)
        assert state.allocator.admit(seq, NO_HIT, computed)
        seq._computed = computed
        state.seat(seq)
        state.prefilling.append(seq)
        made.append(seq)
    return state, made


def test_ties_between_victims() -> None:
    rule = FewestOutputs()
    state, seqs = state_with((100, 5, 50), (200, 5, 50), (300, 6, 50))
    assert rule.choose(state) is seqs[1], "as few outputs and the longer prompt"
    state, seqs = state_with((100, 5, 50), (100, 5, 50))
    assert rule.choose(state) is seqs[1], "all equal: the end of the batch"
    state, seqs = state_with((100, 5, 50), (50, 2, 50), prefilling=(500, 100, 50))
    assert rule.choose(state) is seqs[1], "the prompt part-way is not of the batch that is retracted from"
    state, seqs = state_with((100, 5, 50), prefilling=(500, 100, 50))
    assert rule.choose(state) is seqs[1], "but the last one that decodes is kept"


def test_retraction_goes_on_until_twenty_steps_are_free_and_keeps_one() -> None:
    rows = [{"input": 30 + 3 * k, "output": 100, "at": 0.03 * k} for k in range(12)]
    made = config("sglang", depth=1, conservativeness=0.001, prefix_caching=False)
    done = run(requests(*rows), made, capacity=480, max_len=200, cost=ConstantCost(0.01))
    check_run(done)
    tokens, prompts, several = done.tokens(), done.traffic.input_tokens, 0
    for plan in (plan for plan in done.plans if plan.preempted):
        had = [(row, sum(time <= plan.at for time in tokens[row])) for row, _ in [*plan.decoding, *plan.preempted]]
        held = {row: prompts[row] + generated - 1 for row, generated in had}
        enough = []
        for row, _ in plan.preempted:
            del held[row]
            enough.append(480 - sum(held.values()) >= 20 * len(held))
        assert held, "at least one is kept"
        assert enough == [False] * (len(enough) - 1) + [True] or len(held) == 1
        several += len(enough) > 1
    assert several


def test_retracted_sequences_go_to_the_tail() -> None:
    rows = [
        {"input": 60, "output": 100},
        {"input": 60, "output": 100, "at": 0.1},
        {"input": 60, "output": 10, "at": 0.2},
    ]
    made = config("sglang", depth=1, conservativeness=0.001, max_num_seqs=2, prefix_caching=False)
    done = run(requests(*rows), made, capacity=240, max_len=200, cost=ConstantCost(0.01))
    order = [chunk[0] for plan in done.plans for chunk in plan.chunks]
    assert order == [0, 1, 2, 1], "row 2 waited while row 1 ran, and comes before it now"


# --- the reserved share


def test_the_share_decays_over_six_hundred_decode_steps() -> None:
    gate, (state, _) = Ratio(), state_with((100, 1, 50))
    told = []
    for steps in (0, 300, 600, 2000):
        state.cohort.tick = steps
        told.append(gate.ratio(state))
    assert told == pytest.approx([0.7, 0.399, 0.098, 0.098])
    gate = Ratio(conservativeness=0.5)
    state.cohort.tick = 0
    assert gate.ratio(state) == pytest.approx(0.35)
    assert Ratio(conservativeness=3.0).ratio(state) == 1.0


def test_a_retraction_sets_the_share_from_what_was_seen() -> None:
    """(sum of outputs + 20 for each) / sum of declared, of those that are left."""
    gate, (state, _) = Ratio(), state_with((100, 30, 200), (100, 50, 300))
    gate.preempted(state)
    assert gate.ratio(state) == pytest.approx((30 + 50 + 40) / 500)
    state.cohort.advance(10)
    assert gate.ratio(state) == pytest.approx(120 / 500 - 10 * (0.7 - 0.098) / 600)


def test_the_candidate_is_charged_in_full_the_decoding_by_their_share() -> None:
    gate, (state, _) = Ratio(), state_with((100, 11, 111), (200, 1, 201))  # 100 and 200 left: 0.7 × 300 = 210
    free = state.allocator.available
    for left, fits in ((free - 210 - 300 - 1 - 1, True), (free - 210 - 300 - 1, False)):
        candidate = Sequence(7, (Span(private_content(7), 0, 300),), 300, left)
        assert gate.admits(candidate, NO_HIT, 300, state) == fits, "need < memory, need = prompt + answer + a page"


def test_who_was_let_in_in_the_same_pass_is_charged_in_full_too() -> None:
    gate, (state, _) = Ratio(), state_with((100, 11, 111), prefilling=(300, 300, 400))  # 70 shared, 400 in full
    free = state.allocator.available
    for left, fits in ((free - 70 - 400 - 300 - 1 - 1, True), (free - 70 - 400 - 300 - 1, False)):
        candidate = Sequence(7, (Span(private_content(7), 0, 300),), 300, left)
        assert gate.admits(candidate, NO_HIT, 300, state) == fits


def test_more_than_4096_tokens_of_an_answer_are_not_counted_on() -> None:
    gate, (state, _) = Ratio(), state_with((100, 1, 50_001), pool=10_000)
    free = state.allocator.available
    spare = int(free - 0.7 * 4096) - 4096 - 1
    for prompt, fits in ((spare, True), (spare + 2, False)):
        candidate = Sequence(7, (Span(private_content(7), 0, prompt),), prompt, 90_000)
        assert gate.admits(candidate, NO_HIT, prompt, state) == fits


def test_a_refusal_latches_until_somebody_leaves() -> None:
    """Row 2 finds no memory. Row 3, sharing all of its prompt with what row 1 computes, changes nothing of that."""
    shared = [Span(-1, 0, 100)]
    rows = [
        {"input": 100, "output": 40, "declared": 100},
        {"prompt": [Span(-1, 0, 101)], "output": 60, "declared": 150},
        {"prompt": [*shared, Span(4, 0, 20)], "output": 20, "declared": 150},
    ]
    made = config("sglang", depth=1, max_num_batched_tokens=210)
    done = run(requests(*rows), made, capacity=560, max_len=300, cost=ConstantCost(0.1))
    late = next(plan for plan in done.plans if any(chunk[0] == 2 for chunk in plan.chunks))
    assert late.start >= min(done.finished[0], done.finished[1])
    loose = config("lightllm", depth=1, max_num_batched_tokens=210, gate="full-prompt", prefill_wait_steps=0)
    done = run(requests(*rows), loose, capacity=330, max_len=300, cost=ConstantCost(0.1))
    early = next(plan for plan in done.plans if any(chunk[0] == 2 for chunk in plan.chunks))
    assert early.start < min(done.finished.values()), "another engine looks again once the prefix is there"


@pytest.mark.parametrize("victim", ["last-admitted", "lowest-priority"])
def test_a_prompt_that_gave_its_memory_back_lets_the_others_decode_first(victim: str) -> None:
    """Behind an optimistic gate the last prompt does not fit beside two answers: admitted again in the step that took its
    memory, it would keep them from ever ending."""
    made = config(
        "sglang",
        gate="optimistic",
        victim=victim,
        requeue="head",
        max_num_batched_tokens=64,
        admit_after_preemption=True,
        prefix_caching=False,
    )
    rows = [(64, 60), (64, 60), {"input": 150, "output": 5, "at": 0.1}]
    done = run(requests(*rows), made, capacity=272, max_len=240)
    check_run(done)
    thrown_out = [number for number, plan in enumerate(done.plans) if (2, 0) in plan.preempted]
    assert thrown_out, "the case is no longer the one this is about"
    assert all(done.plans[number].decoding and not done.plans[number].chunks for number in thrown_out)
