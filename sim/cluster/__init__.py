"""Several engines behind a router: who gets which request."""

from __future__ import annotations

import inspect
from typing import Any

from sim.cluster.autoscalers import SIGNALS, Autoscaler, Demand, Hpa
from sim.cluster.base import Incoming, Load, Router
from sim.cluster.prefix import Prefix
from sim.cluster.routers import (
    LeastRequests,
    LeastTokens,
    PowerOfTwo,
    RandomChoice,
    RoundRobin,
    SessionHash,
    ShortestQueue,
)

GROUP = "twinserve.routers"
SCALERS = "twinserve.autoscalers"
AUTOSCALERS: dict[str, type[Autoscaler]] = {"hpa": Hpa}
ROUTERS: dict[str, type[Router]] = {
    "round-robin": RoundRobin,
    "random": RandomChoice,
    "least-requests": LeastRequests,
    "least-tokens": LeastTokens,
    "shortest-queue": ShortestQueue,
    "power-of-two": PowerOfTwo,
    "session": SessionHash,
    "prefix": Prefix,
}

__all__ = [
    "AUTOSCALERS", "GROUP", "ROUTERS", "SCALERS", "SIGNALS", "Autoscaler", "Demand", "Incoming", "Load", "Router",
    "make_autoscaler", "make_router", "options_of",
]  # fmt: skip


def options_of(kind: type[Router | Autoscaler]) -> dict[str, Any]:
    """The keyword options of a router's or an autoscaler's constructor, with their defaults."""
    parameters = inspect.signature(kind).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def make_router(name: str, replicas: int, seed: int, options: dict[str, Any] | None = None) -> Router:
    """The router called `name`, a built-in, an installed one or `module:Class`.

    Raises:
        InputError: there is none of that name, or it cannot be loaded.
    """
    from workloads.registry import resolve

    return resolve("router", name, ROUTERS, GROUP)(replicas, seed, **(options or {}))


def make_autoscaler(name: str, least: int, most: int, options: dict[str, Any] | None = None) -> Autoscaler:
    """The autoscaler called `name`, a built-in, an installed one or `module:Class`.

    Raises:
        InputError: there is none of that name, or it cannot be loaded.
    """
    from workloads.registry import resolve

    return resolve("autoscaler", name, AUTOSCALERS, SCALERS)(least, most, **(options or {}))
