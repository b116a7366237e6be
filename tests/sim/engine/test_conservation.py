"""Conservation, causality and exact token counts, on every scheduler over every memory and on a random plug-in."""

from __future__ import annotations

import pytest
from configurations import CELLS, LARGEST, POOLS, bounded, configurations
from harness import random_traffic, run
from hypothesis import given
from hypothesis import strategies as st
from invariants import check_moment, check_run

GAPS = (0.0, 0.004, 0.05)


@pytest.mark.parametrize("scheduler, memory", CELLS)
def test_nothing_is_lost_at_any_moment(scheduler: str, memory: str) -> None:
    @bounded(8)
    @given(
        configurations(scheduler, memory),
        st.integers(0, 10_000),
        st.sampled_from(POOLS),
        st.sampled_from(GAPS),
        st.booleans(),
    )
    def check(made, seed, pool, gap, samples):
        pool = 3 * pool if samples else pool  # all samples of a request must find room together
        traffic = random_traffic(seed, count=18, gap=gap, outputs=80, samples=samples)
        done = run(traffic, made, capacity=pool, max_len=LARGEST, watch=check_moment)
        check_run(done)
        assert not done.refused, "everything fits, so everybody is served"

    check()
