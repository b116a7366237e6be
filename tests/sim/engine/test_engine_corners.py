"""Rare moments of the engine, each built by hand: parallel samples, plans in flight, plug-ins that do odd things."""

from __future__ import annotations

from collections import Counter

import pytest
from harness import ConstantCost, Run, config, random_traffic, requests, run
from invariants import check_counts, check_memory, check_moment, check_run

from sim.engine.step import PlanError
from sim.schedulers.base import Scheduler


class Scripted(Scheduler):
    """Does what its script says: one function a plan, the last one from then on."""

    def __init__(self, config, *script) -> None:
        super().__init__(config)
        self._script = list(script)

    def plan(self, step) -> None:
        (self._script.pop(0) if len(self._script) > 1 else self._script[0])(step)


def scripted(traffic, settings, *script, **options) -> Run:
    """A run whose scheduler follows a script."""
    made = Run(traffic, settings, **options)
    made.engine.scheduler = Scripted(settings.scheduler, *script)
    return made


def usual(step) -> None:
    """Decode, go on, admit."""
    step.decode()
    for seq in step.prefilling:
        step.extend(seq, 1 << 30)
    while step.waiting and step.admit(step.waiting.head()):
        pass


# --- parallel samples


def test_parallel_samples_share_their_prompt_and_end_together() -> None:
    one, three = requests((64, 10)), requests({"input": 64, "output": 10, "n": 3})
    made = config("vllm@0.8")
    single, triple = run(one, made, watch=check_moment), run(three, made, watch=check_moment)
    check_run(triple)
    assert len(triple.tokens()[0]) == 3 * len(single.tokens()[0])
    assert Counter(triple.tokens()[0]).most_common()[0][1] == 3
    assert [chunk[2] for plan in triple.plans for chunk in plan.chunks] == [64], "the prompt is computed once"
    assert max(len(plan.decoding) for plan in triple.plans) == 3


def test_the_memory_of_a_shared_prompt_counts_once() -> None:
    made, most = config("vllm@0.8", block_size=16), []

    def watch(this, moment, now):
        use = this.engine.state.allocator.use(this.engine.state.stored)
        most.append(use.live + use.allocated)
        check_moment(this, moment, now)

    run(requests({"input": 160, "output": 16, "n": 3}), made, watch=watch)
    assert max(most) == 160 + 3 * 16, "the prompt's ten blocks once, and a block of answer for each"


@pytest.mark.parametrize("allocator, block", [("paged", 16), ("radix", 1)])
def test_samples_that_find_no_memory_wait_and_still_finish(allocator: str, block: int) -> None:
    made = config("vllm@0.8", allocator=allocator, block_size=block, prefix_caching=False)
    rows = [(90, 60), {"input": 100, "output": 50, "n": 3}, (60, 30)]
    check_run(run(requests(*rows), made, capacity=256, max_len=200, watch=check_moment))


def test_samples_of_one_token_that_cannot_fork_are_not_forgotten() -> None:
    made = config("orca", slab="max-length")
    done = run(requests({"input": 10, "output": 1, "n": 3}), made, capacity=400, max_len=300)
    check_run(done)


def test_samples_take_seats_before_they_fork() -> None:
    made = config("vllm@0.8", max_num_seqs=4, max_num_batched_tokens=64)
    rows = [{"input": 200, "output": 20, "n": 3}, *[(10, 30)] * 6]
    check_run(run(requests(*rows), made, watch=lambda this, moment, now: check_counts(this)))


@pytest.mark.parametrize("depth", [1, 2])
def test_all_samples_get_their_first_token_with_the_prompt(depth: int) -> None:
    made = config("vllm@0.33", depth=depth)
    done = run(requests((30, 40), {"input": 64, "output": 10, "n": 3, "at": 0.05}), made)
    prompt = next(plan for plan in done.plans if any(chunk[0] == 1 for chunk in plan.chunks))
    times = done.tokens()[1]
    assert times[:3] == [prompt.ends[-1]] * 3


def test_samples_that_can_never_be_held_together_are_refused_at_once() -> None:
    """Gate `reserve-output` wants room for all samples; one request behind must not wait until everything has drained."""
    made = config("vllm@0.8", gate="reserve-output")
    done = run(requests((100, 100), {"input": 100, "output": 60, "n": 3}, (20, 20)), made, capacity=256, max_len=250)
    assert list(done.refused) == [1]
    assert not done.stuck, "it was found out only when nothing ran any more"


def test_what_a_reserving_gate_can_never_admit_is_refused_at_once() -> None:
    """The last token's KV is never needed, but GUARANTEED_NO_EVICT reserves for it: 16 blocks where 15 exist."""
    made = config("vllm@0.8", gate="reserve-output", victim="none")
    done = run(requests((40, 60), (200, 41), (20, 20)), made, capacity=240, max_len=250)
    assert list(done.refused) == [1]
    assert not done.stuck


# --- cancelling


@pytest.mark.parametrize("depth, row", [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)])
def test_cancelling_while_a_plan_is_in_flight(depth: int, row: int) -> None:
    """Row 0 decodes, row 1 is in the middle of its prompt, row 2 is in the last piece of its prompt."""
    made = config("vllm@0.8", depth=depth, max_num_batched_tokens=64)
    traffic = requests((20, 30), {"input": 180, "output": 5, "at": 0.03}, {"input": 10, "output": 5, "at": 0.03})

    def watch(this, moment, now):
        plan = this.plans[-1] if this.plans else None
        if moment != "launch" or this.cancelled or not (plan.decoding and plan.chunks):
            return
        if row == 0 or any(chunk[0] == row and chunk[4] == (row == 2) for chunk in plan.chunks):
            assert this.cancel(row)
            check_memory(this)

    done = run(traffic, made, watch=watch)
    assert done.cancelled == [row]
    check_run(done)


def test_a_cancelled_answer_has_no_tokens_after_its_end() -> None:
    """Row 0 has all it declared in a plan in flight when it is cancelled."""
    for at in range(2, 12):

        def watch(this, moment, now, at=at):
            if moment == "launch" and len(this.plans) == at:
                this.cancel(0)

        done = run(requests((20, 6), (20, 20)), config("vllm@0.33"), watch=watch, cost=ConstantCost(0.1))
        assert len(done.tokens().get(0, [])) <= 6, f"cancelled after plan {at}"


def test_cancelling_twice_or_too_late_is_no_harm() -> None:
    done = Run(requests((20, 6)), config("vllm@0.8")).serve()
    assert not done.engine.cancel(0, done.now)
    assert not done.engine.cancel(99, done.now)


# --- plans in flight


def test_whoever_only_waits_for_its_last_plan_is_not_preempted() -> None:
    """Both reach their declared end together; the pool is full to the last block when the older one needs another."""
    for inputs in range(90, 130):
        rows = [(inputs, 60), (40, 12), (33, 14), (50, 9)]
        check_run(
            run(requests(*rows), config("vllm@0.33", gate="optimistic"), capacity=240, max_len=230, watch=check_moment)
        )


def test_two_stays_that_end_at_the_same_counter_are_one_end() -> None:
    """Preempted and computed again beside one decode step: the declared end comes at the same counter as before."""
    made = config("vllm@0.8", depth=2, stops_ahead=True)

    def drop(step):
        step.preempt(next(seq for seq in step.state.running if seq.row == 1))
        usual(step)

    script = [usual, usual, usual, usual, drop, usual]
    check_run(scripted(requests((20, 30), (20, 12)), made, *script).serve())


def test_preempted_and_swapped_back_with_no_plan_in_between() -> None:
    made = config("vllm@0.8", depth=2, preemption="swap")
    away, back = [], []

    def rest(step):
        step.wake_at = step.now + 1e-3

    def out(step):
        away.append(step.preempt(next(seq for seq in step.state.cohort.members if seq.row == 1)))
        step.decode()

    def again(step):
        step.decode()
        back.append(step.swap_in(step.state.swapped[0]))

    done = scripted(requests((20, 20), (20, 20)), made, usual, usual, usual, rest, rest, out, again, usual).serve()
    assert len(away) == 1 and back == [True]
    check_run(done)


def test_finished_in_flight_preempted_and_admitted_again() -> None:
    """Row 1's last token is in flight when the next plan preempts it, and admits it again at once."""
    made = config("vllm@0.8", depth=2, stops_ahead=False, admit_after_preemption=True)

    def bounce(step):
        victim = next((seq for seq in step.state.cohort.members if seq.row == 1 and seq.generated == 4), None)
        if victim:
            step.preempt(victim)
        usual(step)

    check_run(scripted(requests((20, 20), (20, 4)), made, bounce).serve())


# --- plug-ins


def test_a_plug_in_may_preempt_and_plan_nothing_else() -> None:
    made = config("vllm@0.8", requeue="tail")

    def drop(step):
        step.preempt(next(seq for seq in step.state.cohort.members if seq.row == 1))

    def decode(step):
        step.decode()

    check_run(scripted(requests((20, 30), (20, 12)), made, usual, usual, drop, *[decode] * 14, usual).serve())


def test_a_plug_in_may_go_on_with_prompts_after_admitting() -> None:
    made = config("vllm@0.8", max_num_batched_tokens=64)

    def late(step):
        step.decode()
        while step.waiting and step.admit(step.waiting.head(), most=20):
            pass
        for seq in step.prefilling:
            if seq not in step.admitted and seq.place == "device":
                step.extend(seq, 16)

    for seed in range(20):
        traffic = random_traffic(seed, count=14, gap=0.003)
        try:
            done = scripted(traffic, made, late, capacity=330, max_len=240, watch=check_moment).serve()
        except PlanError as error:
            assert "cannot be preempted in it" in str(error)
        else:
            check_run(done)


def test_swapping_in_without_decoding_is_refused_or_safe() -> None:
    made = config("vllm@0.8", preemption="swap", block_size=4)

    def out(step):
        step.preempt(next(seq for seq in step.state.cohort.members if seq.row == 1))
        step.decode()

    def only_in(step):
        if step.state.swapped:
            step.swap_in(step.state.swapped[0])
        else:
            usual(step)

    for more in range(4):
        script = [usual, out, *[lambda step: step.decode()] * more, only_in]
        try:
            done = scripted(requests((20, 30), (21, 12)), made, *script, watch=check_moment).serve()
        except PlanError:
            continue
        check_run(done)


@pytest.mark.parametrize("twice", ["decode", "extend", "preempt"])
def test_a_plug_in_that_asks_twice_is_told(twice: str) -> None:
    made = config("vllm@0.8", max_num_batched_tokens=64)

    def plan(step):
        if twice == "decode" and step.state.cohort.size:
            step.decode()
            step.decode()
        elif twice == "extend" and step.prefilling:
            step.extend(step.prefilling[0], 5)
            step.extend(step.prefilling[0], 5)
        elif twice == "preempt" and step.state.running:
            seq = next(iter(step.state.running))
            step.preempt(seq)
            step.preempt(seq)
        else:
            usual(step)

    with pytest.raises(PlanError):
        scripted(requests((200, 5)), made, plan).serve()
