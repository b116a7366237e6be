"""Queueing theory where it applies: replicas that serve one request at a time, in a time that is always the same."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from simulate import workload

from experiments import runner
from sim.cost.base import DecodeLine, StepShape
from sim.cost.host import FrontEnd

SERVICE = 0.01


class ConstantCost:
    """Every step takes `SERVICE`; front ends take no time."""

    front_end = FrontEnd(0.0, 0.0, 0.0, "none")

    def step_seconds(self, shape: StepShape) -> float:
        return SERVICE

    def decode_line(self, rows: int, context: int) -> DecodeLine:
        return DecodeLine(0, 1 << 60, SERVICE, 0.0)


def traffic_of(process: str, rate: float, requests: int) -> dict:
    """Requests of one token each."""
    arrivals = {"process": process, "rate": rate}
    synthetic = {"requests": requests, "arrivals": arrivals, "input_tokens": 10, "output_tokens": 1}
    return {"traffic": {"max_tokens": "exact", "synthetic": synthetic}}


@cache
def waits(router: str, replicas: int, rate: float, process: str = "poisson", requests: int = 6000) -> np.ndarray:
    """Seconds from sending to the first and only token, less the service: what each request waited."""
    changes = {
        **traffic_of(process, rate, requests),
        "cluster": {"replicas": replicas, "router": router},
        "engine": {"preset": "vllm@0.8", "scheduler": {"max_num_seqs": 1}, "kv": {"prefix_caching": False}},
    }
    r = runner.run(replace(runner.resolve(workload(changes)), cost=ConstantCost())).requests
    return r.finish - r.sent - SERVICE


@pytest.mark.parametrize("load", [0.5, 0.98, 1.25])
def test_turns_at_even_distances(load: float) -> None:
    """Round-robin, constant arrivals: nobody waits up to full load; beyond, each later one waits longer by the same."""
    replicas, count = 4, 400
    found = waits("round-robin", replicas, load * replicas / SERVICE, "constant", count)
    longer = max(SERVICE - SERVICE / load, 0.0)
    np.testing.assert_allclose(found, np.arange(count) // replicas * longer, rtol=0, atol=1e-9)


def test_random_routing_makes_single_server_queues_of_their_own() -> None:
    """A Poisson stream split at random is Poisson streams: each replica is M/D/1 (Pollaczek-Khinchine)."""
    load = 0.6
    found = waits("random", 3, load * 3 / SERVICE, requests=30_000)
    assert found.mean() == pytest.approx(load / (2 * (1 - load)) * SERVICE, rel=0.05)


def test_the_more_a_router_knows_the_less_is_waited() -> None:
    """Join the shortest queue < two choices < random."""
    mean = {
        router: waits(router, 4, 0.8 * 4 / SERVICE).mean()
        for router in ("least-requests", "shortest-queue", "power-of-two", "random")
    }
    assert mean["least-requests"] < mean["power-of-two"] < mean["random"]
    assert mean["shortest-queue"] < mean["power-of-two"]


@pytest.mark.parametrize("router", ["least-requests", "round-robin"])
@pytest.mark.parametrize("load", [0.3, 0.9])
def test_equal_services_make_one_queue_of_all(router: str, load: float) -> None:
    """Where all take as long, the shortest queue and taking turns both serve in order of arrival: M/D/c, by its recursion."""
    found = waits(router, 4, load * 4 / SERVICE)
    free, expected = np.zeros(4), []
    for at in runner.resolve(workload(traffic_of("poisson", load * 4 / SERVICE, 6000))).traffic.arrival:
        first = int(free.argmin())
        begins = max(at, free[first])
        free[first] = begins + SERVICE
        expected.append(begins - at)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
