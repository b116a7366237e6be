"""Replicas that come and go: the cluster of `experiments.cluster` under an autoscaler.

The autoscaler looks every `interval`. A replica that it asks for takes requests after `start_up`, with an empty cache; it is
always the last one that goes: one that has not started yet at once, another when it has served what it has. GPUs are paid for
from when a replica is asked for until it is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import simpy

from experiments.cluster import LAND, LOOK, Inbox, Member, Routing, Service
from experiments.cluster_records import assemble
from experiments.driver import NEVER
from experiments.resolve import Resolved
from experiments.runner import Progress
from reports.run_data import RunData
from sim.cluster import Demand, make_autoscaler
from workloads.errors import InputError
from workloads.registry import plugins_from
from workloads.traffic import Request, Traffic

_MANY = 1 << 20  # replicas that there may ever be


def run_scaled(resolved: Resolved, *, stretch: bool = True, progress: Progress | None = None) -> RunData:
    """Run a workload on replicas that come and go; arguments and result as of `experiments.runner.run`."""
    traffic = resolved.traffic
    began = time.perf_counter()
    with plugins_from(resolved.workload.folder):
        scaled = Scaled(resolved, traffic, stretch, progress)
        end, complete = scaled.serve()
    return assemble(resolved, traffic, scaled, end, complete, time.perf_counter() - began)


@dataclass(slots=True)
class Life:
    """A replica's time: asked for, taking requests from, and until when; infinity for what did not happen."""

    asked: float
    ready: float
    last: float = NEVER


class Scaled(Service):
    """Replicas, the router, the autoscaler, and the load.

    Attributes:
        place: int64, the replica of every row of the traffic, counted from the first that there was; -1 until it is routed.
        lives: of every replica that there was.
        history: (time, ready, starting, leaving) whenever one of them changed.
    """

    def __init__(self, resolved: Resolved, traffic: Traffic, stretch: bool, progress: Progress | None) -> None:
        super().__init__(resolved, traffic, progress)
        self.listens = True
        section = resolved.workload.cluster
        self.rule, self._resolved, self._stretch = section.autoscale, resolved, stretch
        self.policy = make_autoscaler(self.rule.policy, self.rule.min, self.rule.max, self.rule.arguments)
        front = resolved.cost.front_end
        self._work, self._delay = front.request_work + front.input_token * traffic.input_tokens, front.base
        self.place, self.queued = np.full(len(traffic), -1), np.full(len(traffic), np.nan)
        self.lives: list[Life] = []
        self.history: list[tuple[float, int, int, int]] = []
        self._ready: list[Member] = []
        self._starting: list[Member] = []
        self._leaving: list[Member] = []
        self._came = self._looked = 0.0
        for _ in range(section.started):
            self._ready.append(self._member(0.0, 0.0))
        self.routing = Routing(
            section.model_copy(update={"replicas": section.started}), resolved.workload.seed, traffic
        )
        self._note(0.0)
        self._look_at(self.rule.interval)

    @property
    def order(self) -> int:
        return _MANY

    def _member(self, asked: float, ready: float) -> Member:
        number = len(self.replicas)
        member = Member(self, number, Inbox(self._work, self._delay, self.queued), self._resolved, self._stretch)
        self.replicas.append(member)
        self.lives.append(Life(asked, ready))
        return member

    def _note(self, now: float) -> None:
        self._leaving = [member for member in self._leaving if not self._done(member)]
        counts = (len(self._ready), len(self._starting), len(self._leaving))
        if not self.history or self.history[-1][1:] != counts:
            self.history.append((now, *counts))

    @staticmethod
    def _done(member: Member) -> bool:
        return not member.engine.unfinished_rows() and member.driver.next_time() == NEVER

    # --- requests

    def _route(self, request: Request, sent: float, now: float) -> None:
        self._came += 1
        member = self._ready[self.routing.route(request, sent, now, self._ready)]
        self.place[request.row] = member.number
        member.mail(request, sent, now)

    def returned(self, row: int, out: float, now: float, tell: Callable[[int, float], None], place: int) -> None:
        """An answer, or a refusal, is with the client at `out`; it is `now`."""
        self.routing.returned(row, out)
        self.answered(row, out, now, tell)

    # --- replicas

    def _look_at(self, when: float) -> None:
        self.clock.at(when, LOOK * self.order + self.order - 1).callbacks.append(self._scale)

    def _scale(self, event: simpy.Event) -> None:
        now = self.clock.now
        if self.source.next_time() == NEVER and all(self._done(member) for member in self.replicas):
            self._note(now)
            return
        there = len(self._ready) + len(self._starting)
        wanted = self._wanted(now)
        for _ in range(wanted - there):
            self._start(now)
        for _ in range(there - wanted):
            self._stop(now)
        self._note(now)
        self._look_at(now + self.rule.interval)

    def _wanted(self, now: float) -> int:
        """What the autoscaler asks for, within bounds."""
        wanted = self.policy.desired(self._demand(now))
        if isinstance(wanted, bool) or not isinstance(wanted, int | np.integer):
            raise InputError(
                f"autoscaler {self.rule.policy} asks for {wanted!r} replicas at {now:g} s",
                hint="desired(seen) gives a whole number",
            )
        return min(max(int(wanted), self.rule.min), self.rule.max)

    def _demand(self, now: float) -> Demand:
        queues = [member.queues(now) for member in self._ready]
        used = [_stored(member, now) / member.engine.state.allocator.capacity for member in self._ready]
        rate = self._came / (now - self._looked)
        self._came, self._looked = 0.0, now
        return Demand(
            now, len(self._ready), len(self._starting), sum(running for running, _ in queues),
            sum(waiting for _, waiting in queues), float(np.mean(used)), rate,
        )  # fmt: skip

    def _start(self, now: float) -> None:
        ready = now + self.rule.start_up
        member = self._member(now, ready)
        self._starting.append(member)
        # it takes part once it is ready: what comes at that very time may go to it
        self.clock.at(ready, LAND * self.order + member.number).callbacks.append(lambda _: self._begin(member))

    def _begin(self, member: Member) -> None:
        if member not in self._starting:
            return  # it was told to go before it had started
        self._starting.remove(member)
        self._ready.append(member)
        self.routing.resize(len(self._ready))
        self.clock.process(member._process(self.clock))
        self._note(self.clock.now)

    def _stop(self, now: float) -> None:
        """The newest goes."""
        if self._starting:
            member = self._starting.pop()
            self.lives[member.number].ready = NEVER
        else:
            member = self._ready.pop()
            self.routing.resize(len(self._ready))
            self._leaving.append(member)
        self.lives[member.number].last = now


def _stored(member: Member, now: float) -> int:
    """Tokens of KV that running sequences have, steps counted in that have ended in a stretch that is under way."""
    engine = member.engine
    stored = engine.state.stored
    for plan, ticket, _ in engine._flights:
        ended = int(np.searchsorted(ticket.ends, now, "right"))
        counted = 0 if plan.stretched or engine.config.depth == 1 else 1
        stored += plan.rows * (ended - counted) if plan.cohort is not None else 0
    return stored
