"""The block pool by hand: who is taken next, what a partial hit leaves, who shares how much."""

from __future__ import annotations

from array import array

from sim.kv.block_pool import BlockPool, Run


def run_of(pool: BlockPool, count: int, key: int | None) -> Run:
    """Take blocks and name them."""
    run = Run(pool.take(count), key)
    if key is not None:
        pool.index[key] = run
    return run


def test_free_blocks_are_taken_longest_free_first() -> None:
    pool = BlockPool(6)
    a, b, c = run_of(pool, 2, 1), run_of(pool, 2, 2), run_of(pool, 2, 3)
    for run in (b, a, c):
        pool.give_back(run, 2)
    assert (pool.count, pool.cached) == (6, 6)
    pool.take(3)
    assert set(pool.index) == {1, 3}, "b is gone whole"
    assert (len(a.blocks), len(c.blocks)) == (1, 2), "then a lost its last block"
    assert (pool.count, pool.cached) == (3, 3)


def test_the_end_of_a_run_goes_before_its_beginning() -> None:
    pool = BlockPool(4)
    run = run_of(pool, 4, 7)
    blocks = list(run.blocks)
    pool.give_back(run, 4)
    assert pool.free_blocks() == blocks[::-1]
    assert list(pool.take(1)) == blocks[3:]
    assert list(run.blocks) == blocks[:3]


def test_a_hit_in_the_middle_leaves_the_rest_its_place_in_the_queue() -> None:
    pool = BlockPool(8)
    old, young = run_of(pool, 4, 1), run_of(pool, 4, 2)
    pool.give_back(old, 4)
    pool.give_back(young, 4)
    pool.join(old, 2)  # blocks 2 and 3 of `old` stay where they are: first in the queue
    assert (pool.count, pool.cached) == (6, 6)
    pool.take(2)
    assert (len(old.blocks), len(young.blocks)) == (2, 4)
    pool.take(1)
    assert len(young.blocks) == 3, "what is in use is never taken"


def test_what_is_given_back_again_is_the_youngest() -> None:
    pool = BlockPool(6)
    a, b = run_of(pool, 3, 1), run_of(pool, 3, 2)
    pool.give_back(a, 3)
    pool.give_back(b, 3)
    pool.join(a, 1)
    pool.give_back(a, 1)
    pool.take(2)
    assert len(a.blocks) == 1, "its unused end kept its place"
    pool.take(3)
    assert 2 not in pool.index and 1 in pool.index, "its beginning was used later than b"


def test_three_users_of_different_depth() -> None:
    pool = BlockPool(6)
    run = run_of(pool, 5, 1)
    pool.join(run, 3)
    pool.join(run, 1)
    pool.join(run, 3)
    assert (run.users, pool.count) == (4, 1)
    pool.give_back(run, 5)
    assert (run.used, pool.count) == (3, 3), "the deepest has left: what only it used is free"
    pool.give_back(run, 3)
    assert (run.used, pool.count) == (3, 3), "another uses as much"
    pool.give_back(run, 3)
    assert (run.used, pool.count) == (1, 5)
    pool.give_back(run, 1)
    assert (run.used, run.users, pool.count, pool.cached) == (0, 0, 6, 5)


def test_unnamed_blocks_are_free_but_not_cached() -> None:
    pool = BlockPool(4)
    run = Run(pool.take(3), None)
    pool.give_back(run, 3)
    assert (pool.count, pool.cached) == (4, 0)
    assert sorted(pool.free_blocks()) == [0, 1, 2, 3]


def test_blocks_are_handed_out_once_each() -> None:
    pool = BlockPool(50)
    taken = array("i")
    while pool.count:
        taken += pool.take(min(7, pool.count))
    assert sorted(taken) == list(range(50))
