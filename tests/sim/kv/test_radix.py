"""The radix tree by hand: matching, splitting, locking, which leaf goes first."""

from __future__ import annotations

import pytest
from test_paged import compute, finish, sequence

from sim.engine.cohort import Cohort
from sim.engine.sequence import Sequence
from sim.kv.radix import RadixAllocator
from sim.kv.radix_tree import agree, cut
from workloads.traffic import Span, answer_content, private_content


def own(row: int, tokens: int) -> Span:
    return Span(private_content(row), 0, tokens)


def test_a_prefix_is_shared_to_the_token() -> None:
    pool = RadixAllocator(1000)
    compute(pool, sequence(0, Span(-1, 0, 57), own(0, 20)))
    for length, hit in ((57, 56), (58, 57), (100, 57), (1, 0)):
        asked = sequence(1, Span(-1, 0, min(length, 57)), *([own(1, length - 57)] if length > 57 else []))
        assert pool.lookup(asked).tokens == hit


def test_a_match_that_ends_inside_a_node_splits_it() -> None:
    pool = RadixAllocator(1000)
    first, second = sequence(0, Span(-1, 0, 100)), sequence(1, Span(-1, 0, 40), own(1, 10))
    compute(pool, first)
    assert compute(pool, second) == 40
    assert sorted(len(node.slots) for node in pool.tree.nodes()) == [10, 40, 60]
    pool.check([first, second])
    assert pool.capacity - pool.available == 110


def test_looking_changes_nothing() -> None:
    pool = RadixAllocator(1000)
    compute(pool, sequence(0, Span(-1, 0, 100)))
    for length in (3, 40, 99):
        pool.lookup(sequence(1, Span(-1, 0, length), own(1, 5)))
    assert [len(node.slots) for node in pool.tree.nodes()] == [100]


def test_two_that_compute_the_same_at_once_end_with_one_copy() -> None:
    pool = RadixAllocator(1000)
    first, second = sequence(0, Span(-1, 0, 50), own(0, 7)), sequence(1, Span(-1, 0, 50), own(1, 9))
    for seq in (first, second):
        assert pool.admit(seq, pool.lookup(seq), seq.known)
        seq._computed = seq.known
    assert pool.available == 1000 - 57 - 59
    pool.computed(first, 57)
    pool.computed(second, 59)
    assert pool.available == 1000 - 50 - 7 - 9
    pool.check([first, second])


def test_the_leaf_used_longest_ago_goes_first_and_whole() -> None:
    pool = RadixAllocator(100)
    old, young = sequence(0, own(0, 30)), sequence(1, own(1, 30))
    for seq in (old, young):
        compute(pool, seq)
    pool.release(young)
    pool.release(old)  # `old` came first but was used until later
    compute(pool, sequence(2, own(2, 45)))
    assert pool.lookup(sequence(0, own(0, 30), own(5, 1))).tokens == 30
    assert pool.lookup(sequence(1, own(1, 30), own(5, 1))).tokens == 0
    assert len(pool._free) == 100 - 45 - 30, "all 30 went though 5 were needed"


def test_a_shared_beginning_outlives_its_leaves() -> None:
    """Leaves go before what they hang from, and what was in use longest of all goes last."""
    pool = RadixAllocator(100)
    head, with_head, short = (
        sequence(5, Span(-1, 0, 40)),
        sequence(0, Span(-1, 0, 40), own(0, 10)),
        sequence(1, own(1, 20)),
    )
    for seq in (head, with_head, short):
        compute(pool, seq)
    pool.release(head)
    pool.release(short)
    pool.release(with_head)
    taker = sequence(2, own(2, 55))  # needs 25 more than the 30 that are empty
    compute(pool, taker)
    assert pool.lookup(sequence(3, Span(-1, 0, 40), own(3, 1))).tokens == 40
    pool.check([taker])


def test_what_is_in_use_cannot_be_evicted() -> None:
    pool = RadixAllocator(100)
    head, user = sequence(0, Span(-1, 0, 60)), sequence(1, Span(-1, 0, 60), own(1, 10))
    compute(pool, head)
    compute(pool, user)
    pool.release(head)
    assert pool.available == 30
    other = sequence(2, own(2, 31))
    assert not pool.admit(other, pool.lookup(other), 31)
    assert pool.admit(other, pool.lookup(other), 30)
    pool.check([user, other])
    pool.release(user)
    assert pool.available == 70


def test_a_hit_on_what_is_idle_is_counted_out_of_what_is_available() -> None:
    pool = RadixAllocator(100)
    first = sequence(0, Span(-1, 0, 80))
    compute(pool, first)
    pool.release(first)
    second = sequence(1, Span(-1, 0, 80), own(1, 30))
    hit = pool.lookup(second)
    assert (hit.tokens, hit.idle) == (80, 80)
    assert not pool.admit(second, hit, 110), "80 idle and 20 empty are 100, and 110 are needed"
    assert pool.admit(second, hit, 100)


def test_a_finished_answer_is_kept_but_for_its_last_token() -> None:
    pool = RadixAllocator(1000)
    seq = sequence(0, own(0, 20))
    compute(pool, seq)
    finish(pool, seq, 10)
    turn = sequence(1, own(0, 20), Span(answer_content(0), 0, 10), own(1, 5))
    assert pool.lookup(turn).tokens == 29


def test_decoding_slots_get_their_numbers_late_and_once() -> None:
    pool, cohort = RadixAllocator(200), Cohort(1)
    seqs = [sequence(row, own(row, 10 + row)) for row in range(4)]
    for seq in seqs:
        compute(pool, seq)
        seq._known += 1
        cohort.join(seq)
    for step in range(20):
        assert pool.grow_cohort(cohort)
        cohort.advance()
        if step % 5 == 0:
            pool.check(seqs)
    for seq in seqs:
        pool.settle(seq)
    slots = [slot for seq in seqs for slot in seq.blocks]
    assert len(slots) == len(set(slots)) == sum(seq.computed for seq in seqs)


def test_samples_fork_from_the_tree() -> None:
    pool, cohort = RadixAllocator(100), Cohort(1)
    parent = sequence(0, own(0, 30))
    compute(pool, parent)
    parent._known += 1
    cohort.join(parent)
    child = Sequence(0, parent.prompt, 30, 50, sample=1)
    assert pool.fork(parent, child) == [], "all of the prompt is in the tree, nothing is copied"
    child._known, child._computed = parent.known, parent.computed
    cohort.join(child)
    pool.check([parent, child])
    assert pool.available == 70


@pytest.mark.parametrize("at", [0, 1, 5, 7, 12])
def test_cutting_spans(at: int) -> None:
    spans = [Span(1, 4, 5), Span(2, 0, 7)]
    head, tail = cut(spans, at)
    assert sum(s.length for s in head) == at
    assert sum(s.length for s in head) + sum(s.length for s in tail) == 12
    flat = [(s.content, s.offset + k) for s in [*head, *tail] for k in range(s.length)]
    assert flat == [(1, 4 + k) for k in range(5)] + [(2, k) for k in range(7)]


def test_agreement_of_spans_that_are_cut_differently() -> None:
    assert agree([Span(1, 0, 3), Span(1, 3, 9)], [Span(1, 0, 10), Span(2, 0, 4)]) == 10
    assert agree([Span(1, 0, 3)], [Span(1, 1, 3)]) == 0
    assert agree([Span(1, 0, 3), Span(2, 0, 2)], [Span(1, 0, 3), Span(2, 1, 2)]) == 3
