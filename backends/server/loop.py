"""The engine's thread: requests in, steps, tokens out, on the wall clock.

It is the loop of a simulated run with waiting in it. A simulated step ends when the clock shows its end, and the engine goes on
from that very time, not from when the thread woke up: a server that is late catches up, and the requests that came get the steps
that a run in virtual time would give them at the same arrival times. Nothing is looked at over and over: the thread sleeps until
a step or a delivery is due, or somebody asks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from backends.server.asks import ABORT, Ask, Piece
from backends.server.clock import ServerClock
from backends.server.meter import Meter
from sim.cost.host import FrontEnd
from sim.engine.engine import Engine
from sim.engine.plan import StepOutcome
from sim.engine.sequence import Sequence
from workloads.errors import InputError
from workloads.traffic import Request

BEHIND = 0.25
"""Seconds that a simulated step may end too late before somebody is told."""

_NEVER = float("inf")
_AGAIN = 30.0  # seconds until it is told again
Delivery = list[tuple[Ask, Piece]]


class Looks(Protocol):
    """When an engine looks for new requests (`experiments.runner.Looks`)."""

    due: bool

    def landed(self, steps: int) -> None:
        """So many steps ended."""


class Side(Protocol):
    """What the loop must know of who runs the steps.

    Attributes:
        real: whether steps take the time that they take; else they are simulated.
        decoded: simulated ones: tokens of the step that came back last which decoding sequences got.
    """

    real: bool
    decoded: int

    def request(self, ask: Ask) -> Request:
        """What the engine gets, once the executor has been told what it contains.

        Raises:
            InputError: it cannot be served.
        """

    def finish(self, seq: Sequence) -> str:
        """Why an answer ended: `stop` or `length`."""


@dataclass(slots=True)
class _Open:
    """A request that the engine has."""

    ask: Ask
    said: int = 0
    seq: Sequence | None = None  # once it has a token
    first: float = 0.0
    last: float = 0.0
    finish: str = ABORT
    held: list[int] | None = None  # tokens of an answer that is handed out whole


class EngineLoop(threading.Thread):
    """Drives an engine for as long as the server lives.

    Args:
        engine: in which every step is taken by itself.
        side: who runs the steps.
        clock: its times are the engine's.
        front: what a simulated front end takes before the engine and after it; None: it is what it is.
        looks: when the engine looks for requests.
        meter: counts what happens.
        deliver: takes what is due to clients; called in this thread.
        behind: told now and then, in this thread, of a simulation that this machine is too slow for: by how many seconds.

    Attributes:
        fault: what ended the loop, if anything did.
    """

    def __init__(
        self, engine: Engine, side: Side, clock: ServerClock, front: FrontEnd | None, looks: Looks, meter: Meter,
        deliver: Callable[[Delivery], None], behind: Callable[[float], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name="engine", daemon=True)
        self._engine, self._side, self._clock = engine, side, clock
        self._front, self._looks, self._meter, self._deliver = front, looks, meter, deliver
        self._behind, self._told = behind, -_NEVER
        self._inbox: deque[Ask | int] = deque()
        self._bell = threading.Event()
        self._stopped = False
        self._rows = count()
        self._line: list[tuple[float, int, Ask]] = []  # (time in the engine's queue, row, what is asked)
        self._prepared = self._drained = 0.0  # when the front end is through with what came in, and with what goes out
        self._open: dict[int, _Open] = {}
        self._ended: list[tuple[int, float]] = []
        self._cancelled: set[int] = set()
        self._outbox: deque[tuple[float, Delivery]] = deque()
        self.fault: BaseException | None = None
        engine.on_finish = lambda row, now: self._ended.append((row, now))
        self._held_back = engine.held_back

    # --- from other threads

    def ask(self, ask: Ask) -> None:
        """Take a request in; its row is known from now on."""
        ask.row = next(self._rows)
        self._inbox.append(ask)
        self._bell.set()

    def cancel(self, ask: Ask) -> None:
        """The client wants no answer any more."""
        self._inbox.append(ask.row)
        self._bell.set()

    def stop(self) -> None:
        """End the loop between two steps."""
        self._stopped = True
        self._bell.set()

    @property
    def waiting(self) -> int:
        """Requests that are here and have no memory."""
        return len(self._engine.state.waiting) + len(self._line) + len(self._inbox)

    # --- the loop

    def run(self) -> None:
        """Serve until `stop`."""
        try:
            self._serve()
        except BaseException as fault:  # whoever waits for an answer must be told
            self.fault = fault
        finally:
            self._stopped = True
            self._give_up()

    def _give_up(self) -> None:
        failed = self.fault is not None
        reason, status = ("the engine has failed", 500) if failed else ("the server is stopping", 503)
        left = [each.ask for each in self._open.values()] + [entry[2] for entry in self._line]
        left += [item for item in self._inbox if isinstance(item, Ask)]
        self._deliver([(ask, Piece(ask.index, (), ABORT, refused=reason, status=status)) for ask in left])

    def _serve(self) -> None:
        engine, looks, clock, real = self._engine, self._looks, self._clock, self._side.real
        depth = engine.config.depth
        now = clock.now() if real else 0.0
        while not self._stopped:
            self._read()
            if self._cancelled:
                self._cancel(now)
            if looks.due and self._line and self._line[0][0] <= now:
                self._submit(now)
            if engine.launch(now, now) and depth > 1:
                while engine.in_flight < depth and engine.launch(now, now):
                    pass
            if engine.in_flight:
                outcome = engine.collect()
                if not real:
                    self._wait(outcome.ends[-1], idle=False)
                now = engine.land(outcome)
                looks.landed(len(outcome.ends))
                self._hand_out(outcome, now)
                now = clock.now() if real else now
                continue
            if not looks.due:
                looks.due = True  # nothing runs: the engine looks all the time
                continue
            if not engine.state.idle and engine.wake_at is None and self._refuse_stuck():
                continue
            self._meter.state(engine.state)
            wake = min(self._line[0][0] if self._line else _NEVER, engine.wake_at or _NEVER)
            came = self._wait(wake, idle=True)
            if real:
                now = clock.now()
            elif not came:
                now = max(now, wake)

    def _wait(self, until: float, idle: bool) -> bool:
        """Sleep until then, delivering meanwhile what is due.

        Args:
            idle: whether to come back as soon as somebody asks or leaves.

        Returns:
            Whether somebody did.
        """
        clock, bell, outbox = self._clock, self._bell, self._outbox
        while True:
            now = clock.now()
            while outbox and outbox[0][0] <= now:
                self._deliver(outbox.popleft()[1])
            if self._stopped:
                return True
            if self._inbox:
                self._read()
                if idle:
                    return True
            if now >= until:
                if not idle:
                    self._late(now, clock.wall(now - until))
                return False
            due = min(until, outbox[0][0]) if outbox else until
            bell.wait(None if due == _NEVER else clock.wall(due - now))
            bell.clear()

    def _late(self, now: float, seconds: float) -> None:
        """A simulated step ended so much too late."""
        self._meter.late(seconds)
        if seconds > BEHIND and self._behind is not None and self._clock.wall(now - self._told) > _AGAIN:
            self._told = now
            self._behind(seconds)

    # --- requests

    def _read(self) -> None:
        """Put what was asked in line for the engine, at the time when the front end is through with it."""
        inbox, front = self._inbox, self._front
        while inbox:
            item = inbox.popleft()
            if not isinstance(item, Ask):
                self._cancelled.add(item)
                continue
            at = item.arrived
            if front is not None:
                work = front.request_work + front.input_token * len(item.prompt)
                self._prepared = max(at, self._prepared) + work
                at = self._prepared + front.base
            heappush(self._line, (at, item.row, item))

    def _submit(self, now: float) -> None:
        line = self._line
        while line and line[0][0] <= now:
            at, row, ask = heappop(line)
            self._meter.asked(ask.max_tokens)
            try:
                request = self._side.request(ask)
                reason = self._engine.submit(request, at)
            except InputError as error:
                reason = str(error)
            if reason is None:
                self._open[row] = _Open(ask, held=[] if self._held_back else None)
            else:
                self._refuse(ask, reason)

    def _refuse(self, ask: Ask, reason: str) -> None:
        self._meter.refused()
        self._deliver([(ask, Piece(ask.index, (), ABORT, refused=reason))])

    def _cancel(self, now: float) -> None:
        cancelled = self._cancelled
        for _, row, ask in self._line:
            if row in cancelled:
                self._meter.asked(ask.max_tokens)
                self._meter.left(ABORT)
        if any(row in cancelled for _, row, _ in self._line):
            self._line = sorted(entry for entry in self._line if entry[1] not in cancelled)
        for row in cancelled:
            if self._open.pop(row, None) is not None:
                self._engine.cancel(row, now)
                self._meter.left(ABORT)
        cancelled.clear()
        if self._ended:  # it was the last of a batch whose others wait for its end
            out = self._out(now)
            self._send(self._whole(out), now, out)
            self._ended.clear()
        self._meter.state(self._engine.state)

    def _refuse_stuck(self) -> bool:
        stuck = self._engine.refuse_stuck()
        if stuck is None:
            return False
        row, reason = stuck
        if (gone := self._open.pop(row, None)) is not None:
            self._refuse(gone.ask, reason)
        return True

    # --- tokens

    def _hand_out(self, outcome: StepOutcome, end: float) -> None:
        """Tokens of a step that ended, to where they go when the front end is through with them."""
        out = self._out(end)
        ended = {row for row, _ in self._ended}
        letters: Delivery = []
        gaps: dict[float, int] = {}
        last = set(outcome.ended)
        for seq, token in outcome.tokens.items():
            here = self._open.get(seq.row)
            if here is None:  # cancelled
                continue
            if seq in last:
                here.finish = self._side.finish(seq)
            if here.seq is None:
                here.seq = seq
            if here.held is not None:
                here.held.append(token)
            else:
                letters.append(self._letter(here, token, out, gaps, seq.row in ended))
        if self._held_back:
            letters += self._whole(out)
        self._ended.clear()
        wall = self._clock.wall
        self._meter.step(len(outcome.tokens), {wall(gap): times for gap, times in gaps.items()})
        self._meter.state(self._engine.state)
        self._send(letters, end, out)

    def _out(self, end: float) -> float:
        """When tokens of a step that ended then are with the client."""
        front = self._front
        if front is None:
            return end
        # A batch that is handed out whole at its end is no stream that could occupy the front end.
        work = 0.0 if self._held_back else front.output_work * self._side.decoded
        self._drained = max(self._drained, end) + work
        return self._drained + front.token_seconds

    def _send(self, letters: Delivery, end: float, out: float) -> None:
        if out <= end:
            self._deliver(letters)
        elif letters:
            self._outbox.append((out, letters))

    def _letter(self, here: _Open, token: int, out: float, gaps: dict[float, int], over: bool) -> tuple[Ask, Piece]:
        """One token on its way to its client."""
        ask, cached = here.ask, 0
        here.said += 1
        if here.said == 1:
            cached = self._begun(here, out)
        else:
            gap = out - here.last
            gaps[gap] = gaps.get(gap, 0) + 1
        here.last = out
        if over:
            self._over(here)
        return ask, Piece(ask.index, (token,), here.finish if over else None, cached)

    def _whole(self, out: float) -> Delivery:
        """Answers of a batch that has ended, each in one piece."""
        letters: Delivery = []
        for row, _ in self._ended:
            if (here := self._open.get(row)) is not None:
                here.said = len(here.held)
                cached = self._begun(here, out)
                here.last = out
                letters.append((here.ask, Piece(here.ask.index, tuple(here.held), here.finish, cached)))
                self._over(here)
        return letters

    def _begun(self, here: _Open, out: float) -> int:
        """The first token of an answer goes out; prompt tokens that were cached."""
        seq, wall, admitted = here.seq, self._clock.wall, here.seq.admitted_at
        here.first = out
        self._meter.first(seq, wall(out - here.ask.arrived), wall(admitted - seq.arrival), wall(out - admitted))
        return seq.cached_tokens

    def _over(self, here: _Open) -> None:
        del self._open[here.ask.row]
        wall = self._clock.wall
        ask, last = here.ask, here.last
        whole, decode, inference = wall(last - ask.arrived), wall(last - here.first), wall(last - here.seq.admitted_at)
        self._meter.finished(here.finish, len(ask.prompt), here.said, whole, decode, inference)
