"""Static batching: a batch starts together, is paid for to its end, and is handed out together if not streamed."""

from __future__ import annotations

import pytest
from harness import AffineCost, Run, config, random_traffic, requests, run
from invariants import check_moment, check_run

from sim.cost.base import StepShape


def batches(done: Run) -> list[list]:
    """Plans by batch; each begins with a prefill."""
    found: list[list] = []
    for plan in done.plans:
        if plan.chunks:
            found.append([])
        found[-1].append(plan)
    return found


def static(traffic, **settings) -> Run:
    done = run(
        traffic, config("static", **{"max_num_seqs": 4, **settings}), capacity=4000, max_len=300, watch=check_moment
    )
    check_run(done)
    return done


def test_nothing_joins_a_batch_and_nothing_leaves_it() -> None:
    done = static(random_traffic(0, count=25, gap=0.01))
    for batch in batches(done):
        first, *decodes = batch
        assert not first.decoding
        assert all(not plan.chunks for plan in decodes)
        assert {plan.rows for plan in decodes} <= {len(first.chunks)}, "finished rows are computed along"
        longest = max(done.expected_tokens(chunk[0]) for chunk in first.chunks)
        assert len(decodes) == longest - 1


def test_all_prompts_are_as_wide_as_the_longest() -> None:
    done = static(requests((10, 4), (70, 9), (33, 2)))
    assert done.plans[0].widths == (70, 70, 70)
    assert [plan.context for plan in done.plans[1:]] == [3 * (70 + k) for k in range(1, 9)]


def test_a_step_costs_what_its_padded_shape_costs() -> None:
    done, cost = static(requests((10, 4), (70, 9))), AffineCost()
    first, second = done.plans[:2]
    assert first.ends[0] - first.start == pytest.approx(cost.step_seconds(StepShape(chunks=((70, 0), (70, 0)))))
    line = cost.decode_line(2, 142)
    assert second.ends[0] - second.start == pytest.approx(line.intercept + line.slope * 142)


def test_without_padding_every_row_is_its_own_length() -> None:
    done = static(requests((10, 4), (70, 9)), pad=False)
    assert done.plans[0].widths == (10, 70)
    assert [(plan.rows, plan.context) for plan in done.plans[1:]] == [
        (2, 82),
        (2, 84),
        (2, 86),
        *[(1, 74 + k) for k in range(5)],
    ]


def test_parallel_samples_are_rows_of_the_batch_too() -> None:
    done = static(requests({"input": 20, "output": 9, "n": 3}, (20, 4)))
    assert {plan.rows for plan in done.plans[1:]} == {4}
    assert [plan.context for plan in done.plans[1:]] == [4 * (20 + k) for k in range(1, 9)]


def test_the_share_of_the_rows_that_is_waste() -> None:
    """Half the answers have 10 tokens, half have 40: of 39 decode steps of 4 rows 96 of 156 row-steps give a token."""
    done = static(requests(*[(20, 10), (20, 40)] * 8))
    assert [len(batch[0].chunks) for batch in batches(done)] == [4] * 4
    computed = sum(plan.rows for plan in done.plans)
    useful = sum(len(plan.decoding) for plan in done.plans)
    assert useful == 4 * 2 * (9 + 39)
    assert 1 - useful / computed == pytest.approx(1 - 96 / 156)


def test_memory_is_held_to_the_end_of_the_batch() -> None:
    held = []

    def watch(this, moment, now):
        if moment == "land":
            use = this.engine.state.allocator.use(this.engine.state.stored)
            held.append(use.live + use.allocated)

    run(requests((20, 3), (20, 30)), config("static"), capacity=4000, max_len=300, watch=watch)
    assert set(held[:-1]) == {600}


def test_a_batch_is_whoever_waits_when_the_last_has_ended() -> None:
    rows = [
        {"input": 20, "output": 30, "at": 0.0},
        *[{"input": 20, "output": 5, "at": 0.02 + k / 1000} for k in range(6)],
    ]
    done = static(requests(*rows))
    assert [[chunk[0] for chunk in batch[0].chunks] for batch in batches(done)] == [[0], [1, 2, 3, 4], [5, 6]]


def test_an_incomplete_batch_waits_as_long_as_it_may() -> None:
    rows = [{"input": 20, "output": 5, "at": at} for at in (1.0, 1.05, 1.3)]
    done = static(requests(*rows), batch_wait=0.2)
    assert [(batch[0].start, len(batch[0].chunks)) for batch in batches(done)] == [(1.2, 2), (1.5, 1)]


def test_a_full_batch_does_not_wait() -> None:
    rows = [{"input": 20, "output": 5, "at": at} for at in (1.0, 1.01, 1.02, 1.03)]
    done = static(requests(*rows), batch_wait=10.0)
    assert [batch[0].start for batch in batches(done)] == [1.03]


@pytest.mark.parametrize("streaming", [False, True])
def test_answers_are_handed_out_at_the_end_of_the_batch_unless_streamed(streaming: bool) -> None:
    done = static(requests((20, 5), (20, 50)), streaming=streaming)
    assert (done.finished[0] == done.finished[1]) == (not streaming)
    assert done.engine.held_back == (not streaming)
    handed = done.engine.recorder.deliveries.array()
    assert handed["time"].tolist() == ([] if streaming else [done.now, done.now])


@pytest.mark.parametrize("allocator, block", [("paged", 16), ("radix", 1)])
def test_static_batches_over_other_memories(allocator: str, block: int) -> None:
    extra = {"allocator": allocator, "block_size": block, "gate": "reserve-output", "victim": "none"}
    for seed in range(3):
        static(random_traffic(seed, count=20, gap=0.01), **extra)
