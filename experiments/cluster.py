"""Several replicas behind a router, in one SimPy environment.

Each replica is the engine of `experiments.runner` with a KV pool, a front end and a process of its own; requests reach it through
the router instead of a load driver. What happens at the same instant happens in a fixed order: steps end, requests are routed,
replicas look for what came and plan; within each, by number of the replica.

**How far a replica may go at once.** It takes equal decode steps as if nothing but what was routed to it came. When something
is routed to it, the stretch in flight is cut to what it would have been, had that been known (`sim.engine.cutting`), so no
replica stops for what the others get. Where nobody has to be asked in order of time, since the router looks at no loads and the
load waits for no answers, all requests are routed beforehand and every replica runs as if it were alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from heapq import heappop, heappush

import numpy as np
import simpy

from experiments.cluster_records import assemble
from experiments.delivery import Delivery
from experiments.driver import NEVER, LoadDriver
from experiments.records import sessions
from experiments.resolve import Resolved
from experiments.runner import REPORT_EVERY, Looks, Progress, Replica, simulated, without_collecting
from experiments.schema.cluster import ClusterSection, PoolSection
from reports.run_data import RunData
from sim.cluster import Incoming, Load, Router, make_router
from sim.engine.cutting import cut, never_fits, next_end
from sim.engine.engine import Engine
from workloads.errors import InputError
from workloads.registry import plugins_from
from workloads.traffic import Request, Traffic

LAND, MOVE, ROUTE, LOOK = range(4)  # kinds of events, in the order in which they happen at the same instant


def run_cluster(resolved: Resolved, *, stretch: bool = True, progress: Progress | None = None) -> RunData:
    """Run a workload on `cluster.replicas` engines; arguments and result as of `experiments.runner.run`."""
    traffic = resolved.traffic
    began = time.perf_counter()
    with plugins_from(resolved.workload.folder):
        cluster = Cluster(resolved, traffic, stretch, progress)
        end, complete = cluster.serve()
    return assemble(resolved, traffic, cluster, end, complete, time.perf_counter() - began)


class Clock(simpy.Environment):
    """An environment in which things happen at given times, exactly, and in a given order at the same time."""

    def at(self, when: float, order: int, event: simpy.Event | None = None) -> simpy.Event:
        """Have `event` (a new one, if none is given) happen at `when`; the smaller `order` first.

        SimPy's own `schedule` takes a delay, and the present plus a delay is not always the time that was meant.
        """
        event = simpy.Event(self) if event is None else event
        event._ok, event._value = True, None
        heappush(self._queue, (max(when, self._now), order, next(self._eid), event))
        return event

    def sooner(self, event: simpy.Event, when: float, order: int) -> simpy.Event:
        """What waits for `event` need wait only until `when`; the event that it waits for now."""
        if not event.triggered:
            return self.at(when, order, event)
        instead = self.at(when, order)
        instead.callbacks, event.callbacks = event.callbacks, []
        return instead


class Inbox:
    """What was routed to one replica and is in its front end, which prepares one request after another.

    Args:
        work: seconds for each row of the traffic.   delay: seconds besides.   queued: noted there for each row.
    """

    def __init__(self, work: np.ndarray, delay: float, queued: np.ndarray) -> None:
        self._work, self._delay, self._queued = work, delay, queued
        self._free = 0.0
        self._line: deque[tuple[Request, float]] = deque()
        self.count = 0

    def send(self, request: Request, when: float) -> float:
        """A request comes; when it will be in the engine's queue."""
        self._free = (when if when > self._free else self._free) + float(self._work[request.row])
        at = self._queued[request.row] = self._free + self._delay
        self._line.append((request, at))
        return at

    def next_time(self) -> float:
        """When the next request is in the engine's queue, of those that were routed here; infinity for none."""
        return self._line[0][1] if self._line else NEVER

    def take(self, now: float) -> list[tuple[Request, float]]:
        """Requests that are in the engine's queue by `now`, with their times, in order."""
        taken, line = [], self._line
        while line and line[0][1] <= now:
            taken.append(line.popleft())
        self.count += len(taken)
        return taken

    def arrived(self, now: float) -> int:
        """How many are in the engine's queue by `now` and have not been looked at."""
        return sum(at <= now for _, at in self._line)


class Routing:
    """A router, and what it may know: which requests are out at which replica.

    Args:
        section: names the router and how many replicas it has.   seed: of the workload.

    Attributes:
        place: int64, the replica of every row of the traffic; -1 until it is routed.
        looks, asks: as of `sim.cluster.Router`.
    """

    def __init__(self, section: ClusterSection | PoolSection, seed: int, traffic: Traffic) -> None:
        self.router = make_router(section.router_name, section.replicas, seed, section.router_options)
        self._name = section.router_name
        self._traffic = traffic
        self.place = np.full(len(traffic), -1)
        self.loads = [Load() for _ in range(section.replicas)]
        self._sessions = sessions(traffic)[0].tolist()
        self._returns: list[tuple[float, int, Load]] = []  # (time, row, where) of answers that the router has not seen
        self._out: dict[int, Load] = {}  # where each request is out
        self.asks = getattr(self.router, "asks", Router.asks)
        self.looks = self.asks or getattr(self.router, "looks", Router.looks)

    def route(self, request: Request, sent: float, now: float, replicas: list[Member]) -> int:
        """Where a request goes; it is out there from now on."""
        loads, returns = self.loads, self._returns
        if self.looks:
            while returns and returns[0][0] <= now:
                _, row, load = heappop(returns)
                load.requests -= 1
                load.tokens -= self._tokens(row)
            if self.asks:
                for replica, load in zip(replicas, loads, strict=True):
                    load.running, load.waiting = replica.queues(now)
        place = self.choose(request, sent)
        self.place[request.row] = place
        load = loads[place]
        load.requests += 1
        load.tokens += self._tokens(request.row)
        if self.looks:
            self._out[request.row] = load
        return place

    def choose(self, request: Request, sent: float) -> int:
        """Which replica the router names for a request."""
        row = request.row
        seen = Incoming(
            row, sent, self._sessions[row], request.input_tokens, request.max_tokens, request.prompt, request.priority
        )
        place = self.router.route(seen, self.loads)
        if isinstance(place, bool) or not isinstance(place, int | np.integer) or not 0 <= place < len(self.loads):
            raise InputError(
                f"router {self._name} sent request {row} to replica {place!r}; there are {len(self.loads)}",
                hint=f"route(request, loads) gives a whole number from 0 to {len(self.loads) - 1}",
            )
        return int(place)

    def returned(self, row: int, out: float) -> None:
        """What a replica had to say to a request comes past the router at `out`."""
        if self.looks:
            heappush(self._returns, (out, row, self._out.pop(row)))

    def resize(self, replicas: int) -> None:
        """There are so many replicas from now on; new ones come last, and the last ones go first."""
        self.router.resize(replicas)
        del self.loads[replicas:]
        self.loads += [Load() for _ in range(replicas - len(self.loads))]

    def _tokens(self, row: int) -> int:
        return int(self._traffic.input_tokens[row]) + int(self._traffic.max_tokens[row])


class Service:
    """Engines in one environment, and the load on them.

    Attributes:
        source: sends requests.   sent: float64, as of `experiments.driver.LoadDriver`.
        listens: whether anybody must be told when an answer is out.
        replicas: the engines with what belongs to each.
    """

    def __init__(self, resolved: Resolved, traffic: Traffic, progress: Progress | None) -> None:
        self.traffic, self.total, self.progress = traffic, len(traffic), progress
        load, nothing = resolved.workload.load, np.zeros(len(traffic))
        self.source = LoadDriver(traffic, load.concurrency or 0, nothing, 0.0, most=load.max_concurrency or 0)
        self.sent = self.source.sent
        self.listens = self.source.listens
        self.replicas: list[Member] = []
        self._armed: simpy.Event | None = None
        self.clock = Clock()

    @property
    def order(self) -> int:
        """Numbers of what happens at the same instant that every kind of event has."""
        return len(self.replicas) + 1

    def serve(self) -> tuple[float, bool]:
        """Run to the end.

        Returns:
            When it ended, and whether everything was served (False after Ctrl-C).
        """
        for replica in self.replicas:
            self.clock.process(replica._process(self.clock))
        self._arm(0.0)
        complete = without_collecting(self._run)
        return max(replica.now for replica in self.replicas), complete

    def _run(self) -> bool:
        try:
            self.clock.run()
        except KeyboardInterrupt:
            return False
        return True

    # --- requests on their way in

    def _arm(self, now: float) -> None:
        """Have the next request routed when it is sent."""
        coming = self.source.next_time()
        if coming < NEVER:
            self._armed = self.clock.at(max(coming, now), ROUTE * self.order)
            self._armed.callbacks.append(self._due)

    def _due(self, event: simpy.Event) -> None:
        if event is self._armed:  # else something else has become due before, and another event stands for it
            now = self.clock.now
            for request, sent in self.source.take(now):
                self._route(request, sent, now)
            self._arm(now)

    def _route(self, request: Request, sent: float, now: float) -> None:
        """Send a request on."""
        raise NotImplementedError

    # --- answers on their way out

    def answered(self, row: int, out: float, now: float, tell: Callable[[int, float], None]) -> None:
        """An answer, or a refusal, is with the client at `out`; it is `now`."""
        before = self.source.next_time()
        tell(row, out)
        if self.source.next_time() < before:
            self._arm(now)

    def done(self) -> int:
        """Requests that are over."""
        return sum(replica.driver.count - len(replica.engine.unfinished_rows()) for replica in self.replicas)


class Cluster(Service):
    """Replicas, the router, and the load on them.

    Attributes:
        place: int64, the replica of every row of the traffic; -1 until it is routed.
    """

    def __init__(self, resolved: Resolved, traffic: Traffic, stretch: bool, progress: Progress | None) -> None:
        super().__init__(resolved, traffic, progress)
        section = resolved.workload.cluster
        self.routing = Routing(section, resolved.workload.seed, traffic)
        self.place = self.routing.place
        self.listens = self.source.listens or self.routing.looks
        front = resolved.cost.front_end
        work = front.request_work + front.input_token * traffic.input_tokens
        if self.listens:
            self.queued = np.full(len(traffic), np.nan)
            inboxes = [Inbox(work, front.base, self.queued) for _ in range(section.replicas)]
        else:
            self._route_all()
            shares = [np.flatnonzero(self.place == number) for number in range(section.replicas)]
            inboxes = [LoadDriver(traffic, 0, work, front.base, rows) for rows in shares]
            self.queued = np.fmin.reduce([inbox.queued for inbox in inboxes])
        self.replicas = [Member(self, number, inbox, resolved, stretch) for number, inbox in enumerate(inboxes)]

    def _route_all(self) -> None:
        """Ask for every request beforehand: nothing that happens meanwhile has a say."""
        while (coming := self.source.next_time()) < NEVER:
            for request, sent in self.source.take(coming):
                self.place[request.row] = self.routing.choose(request, sent)

    def _route(self, request: Request, sent: float, now: float) -> None:
        place = self.routing.route(request, sent, now, self.replicas)
        self.replicas[place].mail(request, sent, now)

    def returned(self, row: int, out: float, now: float, tell: Callable[[int, float], None], place: int) -> None:
        """An answer, or a refusal, is with the client at `out`; it is `now`, when replica `place` ends a step or looks."""
        self.routing.returned(row, out)
        self.answered(row, out, now, tell)


class Member(Replica):
    """One replica of a cluster.

    Attributes:
        driver: what comes to it: an `Inbox`, or a `LoadDriver` of its own where everything was routed beforehand.
    """

    def __init__(
        self, cluster: Service, number: int, inbox: Inbox | LoadDriver, resolved: Resolved, stretch: bool,
        engine: type[Engine] = Engine,
    ) -> None:  # fmt: skip
        self.cluster, self.number, self.driver = cluster, number, inbox
        self._prepare = None
        front = resolved.cost.front_end
        self.delivery = self._told = Delivery(front.token_seconds, front.output_work)
        self._counts = front.output_work > 0 and cluster.listens
        if not cluster.source.listens:  # what clients see is worked out at the end, as in any open loop
            self._told = Delivery(front.token_seconds, front.output_work)
        seldom = resolved.engine.scheduler.poll_interval > 1
        self.engine = simulated(resolved, stretch, self._counts or seldom, engine)
        if self.engine.held_back:
            self.delivery = self._told = Delivery(front.token_seconds, 0.0)
            self._counts = False
        if cluster.listens:
            self.engine.on_finish = self._finished
        self.refused: dict[int, str] = {}
        self.plans = 0
        self.now = self._looked = 0.0
        self._hopeless: deque[float] = deque()  # when requests come that the engine will refuse as soon as it looks
        self._event: simpy.Event | None = None  # what its process waits for, until when, and of which kind that is
        self._until, self._kind = NEVER, LOOK

    def mail(self, request: Request, sent: float, now: float) -> None:
        """A request was routed here."""
        at = max(self.driver.send(request, sent), now)
        hopeless = never_fits(self.engine, request)
        if hopeless:
            self._hopeless.append(at)
        self._heed(at, hopeless is not None)

    def _heed(self, at: float, heed: bool) -> None:
        """Something happens at `at`: the process need wait no longer than that, or until the step in which it falls has ended.

        Args:
            heed: also where an arrival could not change the next plan.
        """
        if self._event is None:
            return
        if self._kind == LAND:
            cut(self.engine, at, heed=heed)
            at = next_end(self.engine)
        if at < self._until:
            self._until = at
            self._event = self.cluster.clock.sooner(self._event, at, self._order(self._kind))

    def _heed_hopeless(self, now: float) -> None:
        """Router and clients learn of a refusal when the engine looks; so it looks, though its plan may not change."""
        while self._hopeless and self._hopeless[0] <= now:
            self._hopeless.popleft()
        if self._hopeless:
            cut(self.engine, self._hopeless[0], heed=True)

    def queues(self, now: float) -> tuple[int, int]:
        """Running, and waiting with those that the engine has not looked at yet."""
        state = self.engine.state
        waiting = len(state.waiting) + len(state.swapped) + len(state.expected)
        return len(state.running), waiting + self.driver.arrived(now)

    def _finished(self, row: int, now: float) -> None:
        self.cluster.returned(row, self._told.time(now), now, self.cluster.source.finished, self.number)

    def _refuse(self, row: int, reason: str, at: float) -> None:
        self.refused[row] = reason
        if self.cluster.listens:
            self.cluster.returned(row, at, self._looked, self.cluster.source.refused, self.number)

    def _order(self, kind: int) -> int:
        return kind * self.cluster.order + self.number

    def _wait(self, until: float, kind: int) -> Generator[simpy.Event, None, float]:
        """Wait, unless nothing happens before; until when in the end."""
        clock = self.cluster.clock
        if clock.peek() > until:
            return until
        self._until, self._kind = until, kind
        self._event = simpy.Event(clock) if until == NEVER else clock.at(until, self._order(kind))
        yield self._event
        self._event = None
        return self._until

    def _process(self, clock: Clock) -> Generator[simpy.Event, None, None]:
        engine, inbox, cluster = self.engine, self.driver, self.cluster
        depth = engine.config.depth
        looks = Looks(engine)
        now = 0.0
        yield clock.at(now, self._order(LOOK))
        while True:
            if clock.peek() <= now:  # what ends or is sent at this very time comes first
                yield from self._wait(now, LOOK)
            self._looked = now
            coming = inbox.next_time()
            if coming <= now and looks.due:
                self._accept(now)
                coming = inbox.next_time()
            if engine.launch(now, coming) and depth > 1:
                while engine.in_flight < depth and engine.launch(now, coming):
                    pass
            if engine.in_flight:
                if self._hopeless:
                    self._heed_hopeless(now)
                yield from self._wait(next_end(engine), LAND)
                outcome = engine.collect()
                if self._counts:
                    self._told.steps(outcome.ends, engine.executor.rows)
                self.now = now = engine.land(outcome)
                looks.landed(len(outcome.ends))
                self.plans += 1
                if cluster.progress is not None and not self.plans % REPORT_EVERY:
                    cluster.progress(cluster.done(), cluster.total, f"{now:,.0f} s simulated")
                continue
            if engine.state.idle:
                engine.recorder.sample(now, engine.state)
            if not looks.due:
                looks.due = True
                continue
            if not engine.state.idle and engine.wake_at is None and self._refuse_stuck(now):
                continue
            now = yield from self._wait(min(inbox.next_time(), engine.wake_at or NEVER), LOOK)
            engine.recorder.sample(now, engine.state)
