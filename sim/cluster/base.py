"""What a router is, and what it may know.

A router stands between clients and replicas, as an HTTP proxy does. It sees requests as they come, keeps count of what it has
sent and what came back, and may ask replicas how long their queues are. How long an answer will be nobody tells it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from workloads.traffic import Span


class Incoming(NamedTuple):
    """A request, as a router sees it.

    Attributes:
        number: 0, 1, 2, … in the order of the traffic.
        time: seconds, when it was sent.
        session: the number of the session's first request; its own where it has no session.
        input_tokens: length of the prompt.   max_tokens: what the client declared as the limit of the answer.
        prompt: what the prompt is made of; two prompts share a prefix as far as their spans agree.
        priority: smaller is more urgent.
    """

    number: int
    time: float
    session: int
    input_tokens: int
    max_tokens: int
    prompt: tuple[Span, ...]
    priority: int


class Load:
    """What a router knows of one replica.

    Attributes:
        requests: sent there and not yet answered in full.
        tokens: prompts and declared limits of these.
        running, waiting: lengths of the replica's own queues, as it tells them; 0 unless the router asks for them.
    """

    __slots__ = ("requests", "running", "tokens", "waiting")

    def __init__(self) -> None:
        self.requests = self.tokens = self.running = self.waiting = 0


class Router:
    """Base of all routers; a plug-in overrides `route`.

    It must be deterministic: chance comes from `chance`, which depends on the seed and on nothing else.

    Args:
        replicas: how many there are.   seed: of the workload.

    Attributes:
        looks: whether `route` reads `loads`. One that does not is told nothing, and the run is faster.
        asks: whether it reads `running` and `waiting` of them.
    """

    looks = True
    asks = False

    def __init__(self, replicas: int, seed: int) -> None:
        self.replicas = replicas
        self.seed = seed

    def resize(self, replicas: int) -> None:
        """There are so many replicas from now on: new ones come last, and the last ones go first."""
        self.replicas = replicas

    def route(self, request: Incoming, loads: Sequence[Load]) -> int:
        """Which replica is to have the request, 0 … `replicas` - 1. Called once for each, in the order of sending."""
        raise NotImplementedError


def chance(seed: int, purpose: str, *numbers: int) -> int:
    """64 random bits that depend on the arguments only, not on what was drawn before."""
    name = "/".join(map(str, (seed, purpose, *numbers)))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


class Rotation:
    """Picks the best of several replicas; of equals the one that comes next in turn, so that idle ones share the work."""

    def __init__(self) -> None:
        self._next = 0

    def least(self, costs: Sequence[Any]) -> int:
        """The place of the smallest cost."""
        size, start = len(costs), self._next
        best = min(costs)
        place = start
        while costs[place % size] != best:
            place += 1
        place %= size
        self._next = (place + 1) % size
        return place
