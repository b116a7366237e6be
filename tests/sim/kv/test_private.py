"""`PrivateAllocator`: a footprint makes an allocator."""

from __future__ import annotations

import pytest
from harness import config, random_traffic, run
from invariants import check_moment, check_run

from sim.kv.base import PrivateAllocator

NAME = "test_private:Pages"


class Pages(PrivateAllocator):
    """Pages of 16 tokens."""

    def footprint(self, tokens: int) -> int:
        return -(-tokens // 16) * 16


class Doubling(PrivateAllocator):
    """Slabs that double."""

    def footprint(self, tokens: int) -> int:
        return max(16, 1 << (max(tokens, 1) - 1).bit_length())


@pytest.mark.parametrize("gate", ["optimistic", "full-prompt", "reserve-output", "future-peak"])
@pytest.mark.parametrize("depth", [1, 2])
def test_pages_of_ones_own_are_the_paged_allocator_without_prefixes(gate: str, depth: int) -> None:
    for seed in range(3):
        runs = []
        for allocator, block in ((NAME, 1), ("paged", 16)):
            made = config("vllm@0.8", gate=gate, depth=depth, allocator=allocator, block_size=block, prefix_caching=False,
                          max_num_batched_tokens=64)  # fmt: skip
            done = run(random_traffic(seed, count=25), made, capacity=640, max_len=310, watch=check_moment)
            check_run(done)
            runs.append([(plan.rows, plan.context, sorted(plan.chunks), plan.ends) for plan in done.plans])
        assert runs[0] == runs[1]


def test_slabs_that_double_keep_every_invariant() -> None:
    for seed in range(4):
        made = config(
            "vllm@0.8", allocator="test_private:Doubling", block_size=1, prefix_caching=False, preemption="recompute"
        )
        traffic = random_traffic(seed, count=20, outputs=100, samples=seed > 1)
        check_run(run(traffic, made, capacity=1600, max_len=310, watch=check_moment))
