"""What `make_engine` refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness import AffineCost, config

from backends.sim.executor import SimExecutor
from sim.build import make_engine
from workloads.errors import InputError


@pytest.mark.parametrize("depth", [0, 3])
def test_more_than_two_plans_in_flight_are_refused(depth: int) -> None:
    made = replace(config("vllm@0.8"), depth=depth)
    with pytest.raises(InputError, match=f"depth {depth} cannot be"):
        make_engine(made, SimExecutor(AffineCost(), depth), capacity=1000, max_len=100)


@pytest.mark.parametrize(("engine", "executor"), [(1, 2), (2, 1)])
def test_an_executor_of_another_depth_is_refused(engine: int, executor: int) -> None:
    made = config("vllm@0.8", depth=engine)
    with pytest.raises(InputError, match=f"made for depth {executor}, the engine for depth {engine}"):
        make_engine(made, SimExecutor(AffineCost(), executor), capacity=1000, max_len=100)
    assert make_engine(made, SimExecutor(AffineCost(), engine), capacity=1000, max_len=100).idle
