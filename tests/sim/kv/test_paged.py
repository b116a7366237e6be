"""Paged memory by hand: hits, eviction, copy on write, waste, and what is promised for the future."""

from __future__ import annotations

import pytest

from sim.engine.cohort import Cohort
from sim.engine.sequence import Sequence
from sim.kv.base import NO_HIT
from sim.kv.paged import PagedAllocator
from sim.kv.radix import RadixAllocator
from workloads.traffic import Span, answer_content, private_content

BLOCK = 16


def sequence(row: int, *spans: Span, tokens: int = 0, declared: int = 500) -> Sequence:
    """A sequence with the given spans, or with a prompt of its own of so many tokens."""
    spans = spans or (Span(private_content(row), 0, tokens),)
    return Sequence(row, spans, sum(span.length for span in spans), declared)


def compute(pool, seq: Sequence, tokens: int | None = None) -> int:
    """Admit a sequence and compute its prompt (or so many tokens of it); the hit."""
    hit = pool.lookup(seq) if pool.shares else NO_HIT
    tokens = tokens or seq.known
    assert pool.admit(seq, hit, tokens)
    seq._computed = tokens
    pool.computed(seq, tokens)
    return hit.tokens


def finish(pool, seq: Sequence, answer: int) -> None:
    """Let a computed sequence generate an answer alone and leave."""
    cohort = Cohort(pool.block_size)
    seq._known += 1
    cohort.join(seq)
    for _ in range(answer - 1):
        assert pool.grow_cohort(cohort)
        cohort.advance()
    pool.release(seq)
    cohort.leave(seq)


def test_a_hit_is_whole_blocks_and_never_the_whole_prompt() -> None:
    pool = PagedAllocator(1600, BLOCK)
    compute(pool, sequence(0, Span(-1, 0, 64)))
    expected = {63: 48, 64: 48, 65: 64, 80: 64, 100: 64, 17: 16, 16: 0, 1: 0}
    for length, hit in expected.items():
        assert pool.lookup(sequence(1, Span(-1, 0, length))).tokens == hit, length


def test_two_thirds_of_the_pool_can_be_hit_while_it_is_free() -> None:
    """A freed block keeps its contents until it is used again; taking a hit takes it from what is available."""
    pool = PagedAllocator(10 * BLOCK, BLOCK)
    first = sequence(0, Span(-1, 0, 6 * BLOCK + 1))
    compute(pool, first)
    pool.release(first)
    assert pool.available == 10 * BLOCK
    second, third = (sequence(row, Span(-1, 0, 6 * BLOCK + 1)) for row in (1, 2))
    hit = pool.lookup(second)
    assert (hit.tokens, hit.idle) == (6 * BLOCK, 6 * BLOCK)
    assert pool.admit(second, hit, 6 * BLOCK + 1)
    assert pool.available == 3 * BLOCK
    assert pool.lookup(third).idle == 0
    assert pool.admit(third, pool.lookup(third), 6 * BLOCK + 1)
    assert pool.available == 2 * BLOCK, "what is shared costs nothing more"
    pool.check([second, third])


def test_a_hit_is_counted_out_before_new_blocks_are_counted_in() -> None:
    """Four blocks, all free and all a hit: five are needed, so it must be refused although four of them are hits."""
    pool = PagedAllocator(4 * BLOCK, BLOCK)
    first = sequence(0, Span(-1, 0, 4 * BLOCK))
    compute(pool, first)
    pool.release(first)
    longer = sequence(1, Span(-1, 0, 4 * BLOCK + 5))
    hit = pool.lookup(longer)
    assert hit.tokens == 4 * BLOCK
    assert not pool.admit(longer, hit, 4 * BLOCK + 5)
    pool.check([])
    assert pool.lookup(longer).tokens == 4 * BLOCK, "refusing changes nothing"


def test_eviction_takes_what_was_used_longest_ago_and_its_end_first() -> None:
    pool = PagedAllocator(8 * BLOCK, BLOCK)
    old, young = sequence(0, Span(-1, 0, 4 * BLOCK)), sequence(1, Span(-2, 0, 4 * BLOCK))
    for seq in (old, young):
        compute(pool, seq)
    for seq in (old, young):
        pool.release(seq)
    other, more = sequence(2, tokens=2 * BLOCK), sequence(3, tokens=3 * BLOCK)
    compute(pool, other)
    asked = {content: pool.lookup(sequence(9, Span(content, 0, 100))).tokens // BLOCK for content in (-1, -2)}
    assert asked == {-1: 2, -2: 4}
    compute(pool, more)
    asked = {content: pool.lookup(sequence(9, Span(content, 0, 100))).tokens // BLOCK for content in (-1, -2)}
    assert asked == {-1: 0, -2: 3}
    pool.check([other, more])


def test_blocks_in_use_are_never_evicted() -> None:
    pool = PagedAllocator(8 * BLOCK, BLOCK)
    first = sequence(0, Span(-1, 0, 6 * BLOCK))
    compute(pool, first)
    assert not pool.admit(sequence(1, tokens=3 * BLOCK), NO_HIT, 3 * BLOCK)
    assert not pool.grow(first, 9 * BLOCK)
    assert pool.lookup(sequence(2, Span(-1, 0, 200))).tokens == 6 * BLOCK


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    pool = PagedAllocator(1600, BLOCK)
    seq = sequence(0, tokens=50)
    compute(pool, seq)
    finish(pool, seq, 31)
    assert seq.known == 81 and seq.computed == 80
    seq._computed = 0
    assert pool.lookup(seq).tokens == 80


def test_the_next_turn_hits_prompt_and_answer() -> None:
    pool = PagedAllocator(1600, BLOCK)
    first = sequence(0, tokens=40)
    compute(pool, first)
    finish(pool, first, 30)  # 70 tokens known, 69 computed
    turn = sequence(1, Span(private_content(0), 0, 40), Span(answer_content(0), 0, 30), Span(private_content(1), 0, 20))
    assert pool.lookup(turn).tokens == 64


def test_forking_shares_whole_blocks_and_copies_the_last_partial_one() -> None:
    pool = PagedAllocator(100 * BLOCK, BLOCK)
    cohort = Cohort(BLOCK)
    parent = sequence(0, tokens=3 * BLOCK + 5)
    compute(pool, parent)
    parent._known += 1
    cohort.join(parent)
    children = [Sequence(0, parent.prompt, parent.prompt_tokens, 500, sample=sample) for sample in (1, 2)]
    for child in children:
        copies = pool.fork(parent, child)
        assert copies == [(pool.table(parent)[3], pool.table(child)[3])]
        child._known, child._computed = parent.known, parent.computed
        cohort.join(child)
    tables = [pool.table(seq) for seq in (parent, *children)]
    assert tables[0][:3] == tables[1][:3] == tables[2][:3]
    assert len({table[3] for table in tables}) == 3
    assert pool.total * BLOCK - pool.available == 6 * BLOCK
    pool.check([parent, *children])
    pool.release(parent)
    cohort.leave(parent)
    pool.check(children)
    assert pool.total * BLOCK - pool.available == 5 * BLOCK, "only the parent's own last block is free"


def test_forking_after_a_whole_block_copies_nothing() -> None:
    pool = PagedAllocator(2 * BLOCK, BLOCK)
    parent, child = sequence(0, tokens=2 * BLOCK), sequence(0, tokens=2 * BLOCK)
    compute(pool, parent)
    assert pool.available == 0
    assert pool.fork(parent, child) == []


def test_a_fork_without_room_changes_nothing() -> None:
    pool = PagedAllocator(2 * BLOCK, BLOCK)
    parent, child = sequence(0, tokens=BLOCK + 3), sequence(0, tokens=BLOCK + 3)
    compute(pool, parent)
    assert pool.fork(parent, child) is None
    pool.check([parent])


@pytest.mark.parametrize("block", [1, 8, 16, 32])
def test_waste_is_less_than_a_block_a_sequence(block: int) -> None:
    pool = PagedAllocator(4096, block)
    seqs = [sequence(row, tokens=17 + 13 * row) for row in range(12)]
    for seq in seqs:
        compute(pool, seq)
        use = pool.use(sum(s.computed for s in seqs))
        assert 0 <= use.allocated < block * len(seqs)
    assert use.live == sum(seq.computed for seq in seqs)
    assert use.holes == 0, "nothing is lost between blocks"


@pytest.mark.parametrize("make", [lambda: PagedAllocator(23 * BLOCK, BLOCK), lambda: RadixAllocator(300)])
def test_stable_steps_is_exact_as_far_as_memory_goes(make) -> None:
    """Taking as many steps as were promised works one by one, and for the paged pool the next one fails."""
    for rows in range(1, 5):
        pool, cohort = make(), Cohort(make().block_size)
        for row in range(rows):
            seq = sequence(row, tokens=20 + 3 * row)
            compute(pool, seq)
            seq._known += 1
            cohort.join(seq)
        assert pool.grow_cohort(cohort)
        steps = pool.stable_steps(cohort)
        for _ in range(steps - 1):
            cohort.advance()
            assert pool.grow_cohort(cohort)
        cohort.advance()
        assert not pool.grow_cohort(cohort)


@pytest.mark.parametrize("pool", [PagedAllocator(40 * BLOCK, BLOCK), RadixAllocator(640)])
def test_replaying_is_the_same_as_stepping(pool) -> None:
    other = type(pool)(640, BLOCK) if isinstance(pool, PagedAllocator) else RadixAllocator(640)
    pools, cohorts, members = (pool, other), [], []
    for each in pools:
        cohort, seqs = Cohort(each.block_size), [sequence(row, tokens=9 + 5 * row) for row in range(4)]
        for seq in seqs:
            compute(each, seq)
            seq._known += 1
            cohort.join(seq)
        cohorts.append(cohort)
        members.append(seqs)
    for steps in (1, 2, 16, 17, 31):
        assert pools[0].grow_cohort(cohorts[0])
        pools[0].replay(cohorts[0], steps - 1)
        cohorts[0].advance(steps)
        for _ in range(steps):
            assert pools[1].grow_cohort(cohorts[1])
            cohorts[1].advance()
        stored = sum(seq.computed for seq in members[0])
        assert pools[0].use(stored) == pools[1].use(stored)
        for each, seqs in zip(pools, members, strict=True):
            each.check(seqs)


@pytest.mark.parametrize(
    "make, whole", [(lambda: PagedAllocator(4 * BLOCK, BLOCK), 2 * BLOCK), (lambda: RadixAllocator(64), 32)]
)
def test_a_grant_does_not_outlive_those_it_was_given_to(make, whole: int) -> None:
    """A token is granted to the only member, which then is preempted in favour of a prompt; the counter stands still.

    Whoever joins next at this counter was granted nothing and has to ask for its own memory.
    """
    pool = make()
    cohort = Cohort(pool.block_size)
    victim, prompt = sequence(0, tokens=5), sequence(1, tokens=whole)
    compute(pool, victim)
    victim._known += 1
    cohort.join(victim)
    assert pool.grow_cohort(cohort)
    pool.release(victim)
    cohort.leave(victim)
    compute(pool, prompt)
    prompt._known += 1
    cohort.join(prompt)
    pool.check([prompt])
    assert pool.grow(prompt, prompt.known)
    cohort.advance()
    pool.check([prompt])
    assert pool.capacity - pool.available >= prompt.computed


def test_what_can_never_fit_is_told_beforehand() -> None:
    pool = PagedAllocator(100, BLOCK)  # six blocks: 96 tokens
    assert pool.capacity == 96
    assert pool.fits(sequence(0, tokens=50, declared=47)) is None, "the last token's keys and values are never needed"
    reason = pool.fits(sequence(0, tokens=50, declared=48))
    assert "112" in reason and "96" in reason


def test_without_caching_nothing_is_kept() -> None:
    pool = PagedAllocator(1600, BLOCK, prefix_caching=False)
    seq = sequence(0, Span(-1, 0, 100))
    compute(pool, seq)
    assert pool.lookup(sequence(1, Span(-1, 0, 100))).tokens == 0
    pool.release(seq)
    assert pool.use(0).cached == 0
