"""Running a workload on somebody's server: the load driver over the wall clock, a task for each request in flight.

Requests are sent at their times whatever the server does, each on a connection of its own, so that nothing waits for anything
but the server; how late they were all the same is recorded. Prompts are made ahead while there is nothing else to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from backends.http import metrics
from backends.http.answer import Answer
from backends.http.client import Client, encoded
from backends.http.metrics import Watch
from backends.http.prompts import PromptMaker
from backends.open_files import many_files
from experiments.clock import WallClock
from experiments.driver import NEVER, LoadDriver
from experiments.host import host_facts
from experiments.remote import run_async
from experiments.remote_records import collect_remote, see_inside
from experiments.remote_told import Overhead, client_facts, client_warnings
from reports.run_data import RunData
from workloads.readers.times import alarming
from workloads.traffic import Request, Span, Traffic, private_content

if TYPE_CHECKING:
    from experiments.resolve import Resolved

Progress = Callable[[float, float, str], None]
_AHEAD = 64  # prompts that are made before they are due
_IDLE = 0.003  # seconds that must be left for making one
_BEAT = 0.02
_TICK, _AWAKE_SHARE = 0.0015, 0.1
_WARM_TOKENS = 32  # at most so many of a request that only warms up
_SPARED = 100_000  # objects that are made before garbage is looked for, which takes milliseconds


def run_remote(resolved: Resolved, progress: Progress | None = None) -> RunData:
    """Run a workload on the server that was found.

    Args:
        progress: called now and then with (requests done, requests in all, a few words).

    Returns:
        The run, cut short and marked so if it was interrupted (Ctrl-C).
    """
    sender = Sender(resolved, resolved.traffic, progress)
    with _calm(), many_files():
        end, complete = run_async(sender.serve())
    found = collect_remote(sender.driver, sender.traffic, sender.answers, end, complete, sender.stopped_early)
    facts = client_facts(resolved.remote, found, sender.overhead) | {"prompt_seed": sender.seed}
    if sender.watch is not None:
        see_inside(found, sender.watch, end)
        facts["server_counters"] = sender.watch.gained()
    warnings = [*resolved.warnings, *alarming(sender.traffic.notes), *client_warnings(resolved.remote, found, facts)]
    if sender.stopped_early:
        left = len(sender.traffic) - len(sender.answers)
        warnings.append(
            f"nothing was sent after {resolved.remote.max_duration:g} s (backend.max_duration): {left:,} requests"
        )
    host = host_facts(sender.overhead.wall) | {"client": facts, "server": resolved.remote.server.told}
    info = {**resolved.info, "complete": complete, "end": max(end, found.last), "process": sender.traffic.name}
    if sender.watch is not None:
        info["kv_pool_tokens"] = sender.watch.pool_tokens
    return RunData(
        found.requests, found.tokens, found.timeline, info, resolved.config, [], warnings, list(sender.traffic.notes), host,
        found.client,
    )  # fmt: skip


class Sender:
    """The load on one server.

    Attributes:
        answers: row → what came of it, of every request that was sent.
        stopped_early: whether `max_duration` left some unsent.   seed: of made-up words.
        watch: what the server told of itself meanwhile; None where it does not.
    """

    def __init__(self, resolved: Resolved, traffic: Traffic, progress: Progress | None) -> None:
        remote = resolved.remote
        self.traffic, self.remote = traffic, remote
        load = resolved.workload.load
        self.driver = LoadDriver(
            traffic, load.concurrency or 0, np.zeros(len(traffic)), 0.0, most=load.max_concurrency or 0
        )
        self.answers: dict[int, Answer] = {}
        self.overhead = Overhead()
        self.stopped_early = False
        self.watch: Watch | None = None
        salt = secrets.randbits(62) if remote.fresh else 0
        self.seed = (resolved.workload.seed + salt) % (1 << 63)
        self._maker = PromptMaker(traffic, remote.measure, remote.form.endpoint, self.seed, ids=remote.ids)
        self._clock = WallClock()
        self._progress = progress
        self._tasks: set[asyncio.Task] = set()
        self._ahead: dict[int, bytes] = {}
        self._coming = self._in_order()
        self._alarm: asyncio.Future | None = None
        self._done = 0
        self._awake = 0.0  # seconds
        self._fault: BaseException | None = None  # of ours

    async def serve(self) -> tuple[float, bool]:
        """Send everything and wait for it.

        Returns:
            When it ended, and whether everything was served (False after Ctrl-C).
        """
        async with Client(self.remote.access, self._clock.now) as client:
            self._client = client
            await self._warm_up()
            self._make_ahead(_AHEAD, NEVER)
            with self._clock, self._interrupts(), self.overhead:
                beside = [asyncio.create_task(work) for work in (self._beat(), self._look_inside())]
                try:
                    await self._send_all()
                finally:
                    for task in beside:
                        task.cancel()
                    await self._give_up()
                end = self._clock.now()
            await self._look_once(end)
            return end, not self._clock.stopped

    async def _send_all(self) -> None:
        driver, clock, last = self.driver, self._clock, self.remote.max_duration
        while not clock.stopped:
            if self._fault is not None:
                raise self._fault
            now = clock.now()
            if now >= last:
                self.stopped_early = driver.next_time() != NEVER
                while self._tasks and not clock.stopped:
                    await self._sleep(NEVER)
                self.stopped_early |= driver.next_time() != NEVER
                return
            for request, at in driver.take(now):
                task = asyncio.create_task(self._one(request, at))
                self._tasks.add(task)
                task.add_done_callback(self._over)
            coming = driver.next_time()
            if coming == NEVER and not self._tasks:
                return
            if self._make_ahead(1, coming - clock.now()):
                await asyncio.sleep(0)
            else:
                await self._until(min(coming, last))

    async def _one(self, request: Request, at: float) -> None:
        """One request, from its time on."""
        row = request.row
        answer = self.answers[row] = Answer(row, at)
        body = self._ahead.pop(row, None) or self._body(request)
        await self._client.stream(self.remote.form.path, body, answer, self._maker.awaits(row))
        if answer.good:
            if self._maker.awaits(row):
                self._maker.answered(row, answer.text)
            self.driver.finished(row, answer.end)
        else:
            self.driver.refused(row, answer.end)
        self._done += 1

    def _over(self, task: asyncio.Task) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fault = self._fault or task.exception()
            self._wake()
        if self.driver.listens or not self._tasks:
            self._wake()

    def _body(self, request: Request) -> bytes:
        tokens = min(request.output_tokens, request.max_tokens) if self.remote.forced else request.max_tokens
        return encoded(self.remote.form.body(self._maker.make(request), tokens, request.n, request.priority))

    def _in_order(self) -> Iterator[int]:
        """Rows whose prompts contain no answer, about as they will be sent."""
        roots = np.flatnonzero(self.traffic.parent < 0)
        return iter(roots[np.argsort(self.traffic.arrival[roots], kind="stable")].tolist())

    def _make_ahead(self, most: int, idle: float) -> bool:
        """Make some prompts that will be due; whether there was time and need."""
        made = False
        while most and idle > _IDLE and len(self._ahead) < _AHEAD:
            row = next((row for row in self._coming if row not in self.answers), None)
            if row is None:
                return made
            self._ahead[row] = self._body(self.traffic.request(row))
            made, most = True, most - 1
        return made

    async def _warm_up(self) -> None:
        """Requests that are not counted, of words that no other request has."""
        if not self.remote.warmup:
            return
        plain = Traffic(self.traffic.arrival, self.traffic.input_tokens, self.traffic.output_tokens)
        maker = PromptMaker(
            plain, self.remote.measure, self.remote.form.endpoint, self.seed ^ 0x5EED, ids=self.remote.ids
        )
        rows = [number % len(plain) for number in range(self.remote.warmup)]

        async def one(number: int, row: int) -> None:
            request = plain.request(row)
            own = request._replace(prompt=(Span(private_content(number), 0, request.input_tokens),))
            tokens = min(request.output_tokens, _WARM_TOKENS)
            body = encoded(self.remote.form.body(maker.make(own), tokens))
            await self._client.stream(self.remote.form.path, body, Answer(-1, 0.0))

        for start in range(0, len(rows), _WARM_TOKENS):
            part = range(start, min(start + _WARM_TOKENS, len(rows)))
            await asyncio.gather(*[one(number, rows[number]) for number in part])

    async def _until(self, due: float) -> None:
        """As `_sleep`, to the point: the loop's own timers are up to a millisecond late. The last of it is waited for awake, as
        long as that has not taken more than a small share of the run."""
        now = self._clock.now()
        early = _TICK if due != NEVER and self._awake < _AWAKE_SHARE * now else 0.0
        if due - now > early:
            await self._sleep(due - early - now)
        if not early:
            return
        began = now = self._clock.now()
        while due - _TICK <= now < due and not self._clock.stopped:
            await asyncio.sleep(0)
            now = self._clock.now()
        self._awake += now - began

    async def _sleep(self, seconds: float) -> None:
        """Until then, or until something is over, or a stop is asked for."""
        loop = asyncio.get_running_loop()
        self._alarm = loop.create_future()
        timer = loop.call_later(max(seconds, 0.0), self._wake) if seconds != NEVER else None
        try:
            await self._alarm
        finally:
            if timer is not None:
                timer.cancel()
            self._alarm = None

    def _wake(self) -> None:
        if self._alarm is not None and not self._alarm.done():
            self._alarm.set_result(None)

    async def _give_up(self) -> None:
        """After Ctrl-C: end what is in flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _beat(self) -> None:
        """Notes how late this process is, and tells how far the run is."""
        clock, told = self._clock, 0.0
        due = clock.now() + _BEAT
        while True:
            await asyncio.sleep(max(due - clock.now(), 0.0))
            now = clock.now()
            self.overhead.late(now - due)
            due = now + _BEAT
            if self._progress is not None and now - told >= 0.2:
                told = now
                self._progress(*self._share(now), f"{now:,.0f} s, {len(self._tasks):,} in flight")

    def _share(self, now: float) -> tuple[float, float]:
        """How much is done, of how much: in requests, or in seconds where `max_duration` will come first."""
        total, last = len(self.traffic), self.remote.max_duration
        return (now, last) if self._done * last < now * total and now < last else (self._done, total)

    async def _look_inside(self) -> None:
        """Asks the server for its own figures now and then, if it has them."""
        text = await metrics.look(self._client)
        if text is None:
            return
        self.watch = Watch()
        self.watch.note(self._clock.now(), text)
        while True:
            await asyncio.sleep(metrics.EVERY)
            await self._look_once()

    async def _look_once(self, at: float | None = None) -> None:
        """One look more; at the end of the run it counts for then."""
        if self.watch is not None and (text := await metrics.look(self._client)) is not None:
            self.watch.note(self._clock.now() if at is None else at, text)

    @contextlib.contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Ctrl-C wakes this loop; the clock's own handler would not."""
        loop, mine = asyncio.get_running_loop(), threading.current_thread() is threading.main_thread()

        def stop() -> None:
            self._clock.stop()
            self._wake()

        with contextlib.suppress(NotImplementedError):  # Windows
            if mine:
                loop.add_signal_handler(signal.SIGINT, stop)
        try:
            yield
        finally:
            with contextlib.suppress(NotImplementedError):
                if mine:
                    loop.remove_signal_handler(signal.SIGINT)


@contextlib.contextmanager
def _calm() -> Iterator[None]:
    """Garbage is looked for seldom, and not among what is there already."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_SPARED, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
