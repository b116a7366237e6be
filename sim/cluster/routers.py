"""Routers that look at requests and loads, but not at what prompts have in common. Each says whose rule it follows."""

from __future__ import annotations

from collections.abc import Sequence

from sim.cluster.base import Incoming, Load, Rotation, Router, chance


class RoundRobin(Router):
    """Takes turns, whatever the load (the default of nginx, Kubernetes and vLLM's production-stack: `roundrobin`)."""

    looks = False
    _next = 0

    def route(self, request: Incoming, loads: Sequence[Load]) -> int:
        """The one after the last."""
        place = self._next % self.replicas
        self._next = (place + 1) % self.replicas
        return place


class RandomChoice(Router):
    """Any replica, each equally likely (Envoy's and SGLang's `random`)."""

    looks = False

    def route(self, request: Incoming, loads: Sequence[Load]) -> int:
        """Drawn anew for each request."""
        return chance(self.seed, "router", request.number) % self.replicas


class LeastRequests(Router):
    """The replica with the fewest requests unanswered, running and waiting together (nginx's `least_conn`).

    Counted by the router itself: what it sent less what came back. Among equals it takes turns.
    """

    def __init__(self, replicas: int, seed: int) -> None:
        super().__init__(replicas, seed)
        self._rotation = Rotation()

    def route(self, request: Incoming, loads: Sequence[Load]) -> int:
        """The fewest requests."""
        return self._rotation.least([load.requests for load in loads])


class LeastTokens(LeastRequests):
    """The replica with the fewest tokens unanswered: prompts, which are known, and limits that clients declared.

    The active blocks in the cost of NVIDIA Dynamo's KV router, as far as a proxy can count them by itself: a request counts
    in full from when it is sent until its answer is complete.
    """

    def route(self, request: Incoming, loads: Sequence[Load]) -> int:
        """The fewest tokens."""
        return self._rotation.least([load.tokens for load in loads])


class ShortestQueue(LeastRequests):
    """Asks the replicas: the fewest waiting, then the fewest running (vLLM's `num_requests_waiting` and `num_requests_running`).

    As `queue-scorer` of the Kubernetes Gateway API inference extension and llm-d. A real one asks every so often and is behind
    by that much; this one is told the truth, except for requests that the replica's front end has not passed on yet.
    """

    asks = True

    def route(self, request: Incoming, loads: Sequence[Load]) -> int:
        """The shortest queue."""
        return self._rotation.least([(load.waiting, load.running) for load in loads])


class PowerOfTwo(Router):
    """Two replicas at random, and of these the one with fewer requests unanswered (as Envoy and SGLang do).

    Mitzenmacher, "The power of two choices in randomized load balancing", 2001.
    """

    def route(self, request: Incoming, loads: Sequence[Load]) -> int:
        """The better one of two different replicas; the first drawn, if they are equal."""
        if self.replicas == 1:
            return 0
        first = chance(self.seed, "router", request.number) % self.replicas
        step = 1 + chance(self.seed, "router second", request.number) % (self.replicas - 1)
        second = (first + step) % self.replicas
        return second if loads[second].requests < loads[first].requests else first


class SessionHash(Router):
    """All turns of a session to one replica, chosen by a hash of the session (vLLM's production-stack: `session`).

    Later turns find what earlier ones computed. Who has no session is a session of one request. Loads are not looked at.
    """

    looks = False

    def route(self, request: Incoming, loads: Sequence[Load]) -> int:
        """The session's replica."""
        return chance(self.seed, "router session", request.session) % self.replicas
