"""Beam search on the paged allocator: beams fork, diverge, copy their last block and die; most of their memory is shared."""

from __future__ import annotations

import random

import pytest

from sim.engine.sequence import Sequence
from sim.kv.base import NO_HIT
from sim.kv.paged import PagedAllocator
from workloads.traffic import Span, private_content

BLOCK = 16


def beam(sample: int, prompt: int) -> Sequence:
    return Sequence(0, (Span(private_content(0), 0, prompt),), prompt, 1000, sample=sample)


def search(
    width: int, prompt: int, steps: int, spread: float, seed: int = 0
) -> tuple[PagedAllocator, list[Sequence], int]:
    """Run a search in which each new beam continues the parent of rank `i` with weight `spread ** i`.

    Returns:
        The allocator, the beams that are left, and how many block copies were made.
    """
    draw = random.Random(seed)
    pool = PagedAllocator(4096 * BLOCK, BLOCK, prefix_caching=False)
    first = beam(0, prompt)
    assert pool.admit(first, NO_HIT, prompt)
    first._computed, first._known = prompt, prompt + 1
    beams, copies, made = [first], 0, 1
    for _ in range(steps):
        weights = [spread**rank for rank in range(len(beams))]
        parents = sorted(draw.choices(range(len(beams)), weights, k=width))
        survivors: list[Sequence] = []
        for rank, old in enumerate(beams):
            for again in range(parents.count(rank)):
                if not again:
                    survivors.append(old)
                    continue
                child = beam(made, prompt)
                made += 1
                child._computed, child._known = old._computed, old._known
                copied = pool.fork(old, child)
                assert copied is not None
                copies += len(copied)
                survivors.append(child)
        for rank, old in enumerate(beams):
            if not parents.count(rank):
                pool.release(old)
        beams = survivors
        for each in beams:
            assert pool.grow(each, each._known)
            each._computed, each._known = each._known, each._known + 1
        pool.check(beams)
    return pool, beams, copies


@pytest.mark.parametrize("spread", [0.3, 1.0])
@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 250])
def test_every_beam_has_its_whole_history_and_nothing_leaks(prompt: int, spread: float) -> None:
    pool, beams, _ = search(4, prompt, 100, spread)
    for each in beams:
        assert len(pool.table(each)) == -(-(prompt + 100) // BLOCK)
    for each in beams:
        pool.release(each)
    pool.check([])
    assert pool.available == pool.capacity


def test_a_full_block_is_never_copied_and_a_partial_one_once_a_fork() -> None:
    pool = PagedAllocator(64 * BLOCK, BLOCK, prefix_caching=False)
    for tokens, copies in ((32, 0), (33, 1), (47, 1)):
        parent, child = beam(0, tokens), beam(1, tokens)
        assert pool.admit(parent, NO_HIT, tokens)
        parent._computed = child._computed = tokens
        copied = pool.fork(parent, child)
        assert len(copied) == copies
        shared = set(pool.table(parent)) & set(pool.table(child))
        assert len(shared) == tokens // BLOCK
        assert all(source in pool.table(parent) and target in pool.table(child) for source, target in copied)
        pool.release(parent)
        pool.check([child])
        pool.release(child)
        pool.check([])


def test_beams_share_most_of_their_memory() -> None:
    """The PagedAttention paper (arXiv 2309.06180, figure 15) saves 37.6-66.3 % of the blocks; how much depends on how soon
    beams have a common parent, so the bounds here are wide."""
    width, prompt, steps = 4, 160, 200
    pool, _, _ = search(width, prompt, steps, spread=0.7)
    used = pool.total - pool.pool.count
    alone = width * -(-(prompt + steps) // BLOCK)
    assert 0.35 <= 1 - used / alone <= 1 - 1 / width
