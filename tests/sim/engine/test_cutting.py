"""A stretch that was launched before it was known that something comes, and cut, is what it would have been."""

from __future__ import annotations

import pytest
from configurations import CELLS, LARGEST, POOLS, bounded, configurations
from harness import NEVER, AffineCost, Run, config, random_traffic, run
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.cutting import cut, next_end


class Surprised(Run):
    """Nobody tells the engine when the next request comes, until it does."""

    def serve(self) -> Surprised:
        engine, arrivals = self.engine, [*self.traffic.arrival.tolist(), NEVER]
        told = 0
        while True:
            while arrivals[len(self.submitted)] <= self.now:
                self._submit(len(self.submitted), arrivals)
            told = max(told, len(self.submitted))
            while engine.in_flight < engine.config.depth and engine.launch(self.now, NEVER):
                pass
            if engine.in_flight:
                while arrivals[told] <= next_end(engine):
                    cut(engine, arrivals[told])
                    told += 1
                expected = next_end(engine)
                self.now = engine.land(engine.collect())
                assert self.now == expected
                continue
            if not engine.state.idle and engine.wake_at is None and (stuck := engine.refuse_stuck()):
                self.refused[stuck[0]] = stuck[1]
                continue
            wake = min(arrivals[len(self.submitted)], engine.wake_at or NEVER)
            if wake == NEVER:
                return self
            self.now = max(self.now, wake)


@pytest.mark.parametrize("scheduler, memory", CELLS)
def test_cutting_a_stretch_gives_what_stepping_gives(scheduler: str, memory: str) -> None:
    @bounded(8)
    @given(
        configurations(scheduler, memory),
        st.integers(0, 10_000),
        st.sampled_from(POOLS),
        st.sampled_from((0.004, 0.03, 0.1)),
        st.booleans(),
    )
    def check(made, seed, pool, gap, samples):
        pool = 3 * pool if samples else pool
        traffic = random_traffic(seed, count=18, gap=gap, outputs=120, samples=samples)
        options = {"capacity": pool, "max_len": LARGEST, "cost": AffineCost(band=97)}
        one_by_one = run(traffic, made, **options)
        surprised = Surprised(traffic, made, stretch=True, **options).serve()
        mine, theirs = one_by_one.results(), surprised.results()
        assert [name for name in mine if mine[name] != theirs[name]] == []
        assert one_by_one.tokens() == surprised.tokens()
        assert one_by_one.engine.state.allocator.use(0) == surprised.engine.state.allocator.use(0)

    check()


@pytest.mark.parametrize("depth", [1, 2])
def test_stretches_are_as_long_as_with_all_arrivals_known(depth: int) -> None:
    traffic = random_traffic(3, count=60, gap=0.3, inputs=50, outputs=2000)
    options = {"capacity": 60_000, "max_len": 4000, "cost": AffineCost(band=1009), "stretch": True}
    made = config("vllm", depth=depth)
    told, surprised = run(traffic, made, **options), Surprised(traffic, made, **options).serve()
    assert told.results() == surprised.results()
    assert len(surprised.plans) <= len(told.plans)
