"""Running a workload: the engine, driven by a SimPy process, and what it leaves behind.

The process takes requests that are due, launches and lands steps, and moves the clock. Virtual time is handed to SimPy only when
something else is on SimPy's calendar; alone, it need not. An engine is never stopped for an arrival that cannot change its plan.
On the wall clock it is the same loop: a step takes what it takes, and what is to come is waited for. (A server of somebody's has
a loop of its own, `experiments.remote_run`, with the same load driver.)
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator

import numpy as np
import simpy

from backends.sim.acceptance import Acceptance
from backends.sim.drafting import DraftingExecutor
from backends.sim.executor import SimExecutor
from experiments.admission_limits import gate_reservation, kept_back, learned_reservation, whole_prompts
from experiments.clock import WallClock
from experiments.delivery import CountingDrafts, CountingExecutor, Delivery
from experiments.drafts import told
from experiments.driver import NEVER, LoadDriver
from experiments.front_end_limits import front_end_limits
from experiments.host import host_facts
from experiments.records import Ledger, collect
from experiments.resolve import Resolved, resolve
from experiments.shared_prefix import shared_prefix
from reports.run_data import RunData
from sim.build import make_engine
from sim.engine.engine import Engine
from sim.engine.state import RESERVING
from workloads.errors import InputError
from workloads.readers.times import alarming
from workloads.registry import plugins_from
from workloads.traffic import Request, Traffic

__all__ = ["Resolved", "resolve", "run"]

Progress = Callable[[float, float, str], None]
REPORT_EVERY = 4096  # plans between two looks at the clock for the progress bar, in virtual time


def run(resolved: Resolved, *, stretch: bool = True, progress: Progress | None = None) -> RunData:
    """Run a workload.

    Args:
        stretch: take equal decode steps at once; results are the same, only slower without.
        progress: called now and then with (requests done, requests in all, a few words).

    Returns:
        The run, cut short and marked so if it was interrupted (Ctrl-C).

    Raises:
        InputError: the traffic cannot be read or is empty.
    """
    if resolved.remote is not None:
        from experiments.remote_run import run_remote

        return run_remote(resolved, progress)
    if resolved.workload.cluster.apart:
        from experiments.apart import run_apart

        return run_apart(resolved, stretch=stretch, progress=progress)
    if resolved.workload.cluster.autoscale is not None:
        from experiments.scaled import run_scaled

        return run_scaled(resolved, stretch=stretch, progress=progress)
    if resolved.workload.cluster.replicas > 1:
        from experiments.cluster import run_cluster

        return run_cluster(resolved, stretch=stretch, progress=progress)
    traffic = resolved.traffic if resolved.real is None else resolved.real.own(resolved.traffic)
    began = time.perf_counter()
    with plugins_from(resolved.workload.folder):
        replica = Replica(resolved, traffic, stretch, progress)
    end, complete = replica.serve()
    loop_seconds = time.perf_counter() - began
    forced = resolved.real is None or resolved.real.forced
    ledger = Ledger(replica.refused, replica.delivery, end, complete, lengths_known=forced)
    requests, tokens, timeline = collect(replica.engine, replica.driver, traffic, ledger)
    out = float(np.nanmax(requests.finish, initial=0.0)) if np.isfinite(requests.finish).any() else 0.0
    info = {**resolved.info, "complete": complete, "end": max(replica.delivery.time(end), out), "process": traffic.name}
    info |= told([replica.engine])
    host = _host(loop_seconds, replica)
    timed = resolved.workload.load.mode == "open"
    warnings = [*resolved.warnings, *alarming(traffic.notes, timed=timed), *whole_prompts(replica.engine, requests)]
    if replica.engine.config.scheduler.gate in RESERVING:
        info["kv_kept_back_share"] = share = kept_back(replica.engine, requests, end)
        warnings += gate_reservation(replica.engine, requests, share, resolved.workload.traffic.max_tokens)
    warnings += learned_reservation([replica.engine], requests, resolved.workload.traffic.max_tokens)
    if resolved.real is not None:
        host |= resolved.real.told(requests)
    else:
        warnings += front_end_limits(resolved.cost.front_end, requests, info["end"])
    data = RunData(
        requests, tokens, timeline, info, resolved.config, list(getattr(resolved.cost, "provenance", ())),
        warnings, list(traffic.notes), host,
    )  # fmt: skip
    if resolved.real is None:
        warnings += shared_prefix(resolved, traffic, data)
    return data


class Replica:
    """One engine and the load on it.

    Attributes:
        refused: row → why.
        delivery: from a step's end to the client.
        plans: how many were run.
    """

    def __init__(self, resolved: Resolved, traffic: Traffic, stretch: bool, progress: Progress | None) -> None:
        self.clock: WallClock | None = None
        self._prepare: Callable[[Request], Request] | None = None
        load = resolved.workload.load
        loop, most = load.concurrency or 0, load.max_concurrency or 0
        if resolved.real is None:
            front = resolved.cost.front_end
            work = front.request_work + front.input_token * traffic.input_tokens
            self.driver = LoadDriver(traffic, loop, work, front.base, most=most)
            self.delivery = Delivery(front.token_seconds, front.output_work)
            # Who waits for answers must know when they are out; otherwise it can be worked out at the end.
            self._counts = front.output_work > 0 and self.driver.listens
            seldom = resolved.engine.scheduler.poll_interval > 1
            self.engine = simulated(resolved, stretch, counting=self._counts or seldom)
            if self.engine.held_back:  # a batch that is handed out whole at its end is no stream
                self.delivery, self._counts = Delivery(front.token_seconds, 0.0), False
        else:  # what the front end takes is part of what is measured
            self.driver = LoadDriver(traffic, loop, np.zeros(len(traffic)), 0.0, most=most)
            self.delivery, self._counts = Delivery(0.0, 0.0), False
            self.clock = WallClock()
            self.engine, self._prepare = resolved.real.start(resolved, traffic)
        if self.driver.listens:
            self.engine.on_finish = self._finished
        self.refused: dict[int, str] = {}
        self.plans = 0
        self.total = len(traffic)
        self._progress = progress
        self._report_every = REPORT_EVERY if self.clock is None else 1

    def _finished(self, row: int, now: float) -> None:
        self.driver.finished(row, self.delivery.time(now))

    def serve(self) -> tuple[float, bool]:
        """Run to the end.

        Returns:
            When it ended, and whether everything was served (False after Ctrl-C).
        """
        self.now = 0.0
        if self.clock is not None:
            with self.clock:
                self.engine.executor.begin(self.clock.zero)
                complete = self._run() and not self.clock.stopped
                return max(self.now, self.clock.now()), complete
        complete = without_collecting(self._run)
        return self.now, complete

    def _run(self) -> bool:
        """Drive the loop to its end; False if it was interrupted."""
        env = simpy.Environment()
        try:
            env.run(env.process(self._process(env)))
        except KeyboardInterrupt:
            return False
        return True

    def _process(self, env: simpy.Environment) -> Generator[simpy.Event, None, None]:
        engine, driver = self.engine, self.driver
        depth = engine.config.depth
        wall = self.clock
        now = 0.0
        looks = Looks(engine)
        while True:
            coming = driver.next_time()
            if coming <= now and looks.due:
                self._accept(now)
                coming = driver.next_time()
            launched = engine.launch(now, coming)
            if launched and depth > 1:
                while engine.in_flight < depth and engine.launch(now, coming):
                    pass
            if engine.in_flight:
                outcome = engine.collect()
                end = outcome.ends[-1]
                if self._counts:
                    self.delivery.steps(outcome.ends, engine.executor.rows)
                if env.peek() <= end:
                    yield env.timeout(end - env.now)
                self.now = now = engine.land(outcome)
                looks.landed(len(outcome.ends))
                self.plans += 1
                if self._progress is not None and not self.plans % self._report_every:
                    self._tell_progress(now)
                if wall is not None:
                    if wall.stopped:
                        return
                    now = wall.now()
                continue
            if engine.state.idle:
                engine.recorder.sample(now, engine.state)
            if not looks.due:
                looks.due = True  # nothing runs: the engine looks all the time
                continue
            wake = min(coming, engine.wake_at or NEVER)
            if not engine.state.idle and engine.wake_at is None and self._refuse_stuck(now):
                continue
            if wake == NEVER:
                return
            if wall is not None:
                now = wall.wait(wake)
                if wall.stopped:
                    return
            else:
                if env.peek() <= wake:
                    yield env.timeout(wake - env.now)
                now = max(wake, now)  # who takes the place of somebody refused may have been due before
            engine.recorder.sample(now, engine.state)

    def _tell_progress(self, now: float) -> None:
        done = self.driver.count - len(self.engine.unfinished_rows())
        self._progress(done, self.total, f"{now:,.0f} s" + (" simulated" if self.clock is None else ""))

    def _accept(self, now: float) -> None:
        """Hand over what has arrived, or note why it cannot be served."""
        for request, at in self.driver.take(now):
            if self._prepare is not None:
                try:
                    request = self._prepare(request)
                except InputError as error:  # of this one's words; the others may be good
                    self._refuse(request.row, str(error), at)
                    continue
            reason = self.engine.submit(request, at)
            if reason is not None:
                self._refuse(request.row, reason, at)

    def _refuse_stuck(self, now: float) -> bool:
        stuck = self.engine.refuse_stuck()
        if stuck is None:
            return False
        self._refuse(*stuck, now)
        return True

    def _refuse(self, row: int, reason: str, at: float) -> None:
        self.refused[row] = reason
        self.driver.refused(row, at)


class Looks:
    """When an engine looks for new requests: after every `poll_interval` steps, after one with prompts, and when idle.

    Attributes:
        due: whether it looks before its next step.
    """

    def __init__(self, engine: Engine) -> None:
        self._every = engine.config.scheduler.poll_interval
        self._executor = engine.executor
        self._steps = 0
        self.due = True

    def landed(self, steps: int) -> None:
        """So many steps ended, one after another."""
        if self._every == 1:
            return
        self._steps = 0 if getattr(self._executor, "prompts", False) else (self._steps + steps) % self._every
        self.due = not self._steps


def without_collecting(loop: Callable[[], bool]) -> bool:
    """What a loop gives that makes many small objects and no cycles: collecting garbage would only look through all of them."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return loop()
    finally:
        if collecting:
            gc.enable()


def simulated(resolved: Resolved, stretch: bool, counting: bool, engine: type[Engine] = Engine) -> Engine:
    """The engine of a workload in virtual time; `counting`, with an executor that tells what plans were like."""
    budget, depth, speculation = resolved.budget, resolved.engine.depth, resolved.engine.speculation
    if speculation.active:
        acceptance = Acceptance(speculation.rates, resolved.workload.seed)
        kind = CountingDrafts if counting else DraftingExecutor
        executor = kind(resolved.cost, depth, acceptance=acceptance)
    else:
        executor = (CountingExecutor if counting else SimExecutor)(resolved.cost, depth)
    host_tokens = int(resolved.engine.kv.swap_gib * (1 << 30) // max(budget.bytes_per_token, 1))
    return make_engine(
        resolved.engine, executor, capacity=budget.kv_tokens, max_len=budget.max_model_len, host_tokens=host_tokens,
        stretch=stretch, state_tokens=budget.state_tokens, kept_states=budget.kept_states, engine=engine,
    )  # fmt: skip


def _host(loop_seconds: float, replica: Replica) -> dict:
    return host_facts(loop_seconds) | {
        "plans": replica.plans,
        "requests_per_second": replica.driver.count / loop_seconds if loop_seconds else None,
        "steps_per_second": replica.engine.recorder.steps / loop_seconds if loop_seconds else None,
    }
