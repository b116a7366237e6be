"""Several engines behind a router: who gets which request."""

from __future__ import annotations

import inspect
from typing import Any

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

__all__ = ["GROUP", "ROUTERS", "Incoming", "Load", "Router", "make_router", "options_of"]


def options_of(kind: type[Router]) -> dict[str, Any]:
    """The keyword options of a router's constructor, with their defaults."""
    parameters = inspect.signature(kind).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def make_router(name: str, replicas: int, seed: int, options: dict[str, Any] | None = None) -> Router:
    """The router called `name`, a built-in, an installed one or `module:Class`.

    Raises:
        InputError: there is none of that name, or it cannot be loaded.
    """
    from workloads.registry import resolve

    return resolve("router", name, ROUTERS, GROUP)(replicas, seed, **(options or {}))
