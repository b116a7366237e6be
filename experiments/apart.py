"""Prefill apart from decode: engines that compute prompts, engines that compute answers, and KV that goes between them.

One environment, and the engines of `experiments.cluster`. With `pull` a request goes to a prefill engine; when its prompt is
computed, through a router to a decode engine, which sets memory aside and fetches the KV. With `push` it goes to both at once;
the prefill engine begins when the decode engine has memory, and sends KV as it is made. The prefill engine keeps the memory of a
prompt until its KV has left. All tokens of an answer come from the decode engine, as they do in vLLM (its proxy drops what
prefill answers), SGLang (the gateway hands on decode's stream) and TensorRT-LLM (`openai_disagg_server.py`); but an answer of
one token that comes with the KV need not be decoded.
"""

from __future__ import annotations

import time
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from experiments.apart_records import assemble
from experiments.cluster import LOOK, MOVE, ROUTE, Inbox, Member, Routing, Service
from experiments.driver import NEVER
from experiments.resolve import Resolved
from experiments.runner import Progress
from reports.run_data import RunData
from sim.cluster.transfer import Links
from sim.engine import refusals
from sim.engine.cutting import never_fits
from sim.engine.handover import DecodeEngine, PrefillEngine
from workloads.registry import plugins_from
from workloads.traffic import Request, Traffic

if TYPE_CHECKING:
    from experiments.pools import Pools


def run_apart(resolved: Resolved, *, stretch: bool = True, progress: Progress | None = None) -> RunData:
    """Run a workload on prefill and decode engines; arguments and result as of `experiments.runner.run`."""
    traffic = resolved.traffic
    began = time.perf_counter()
    with plugins_from(resolved.workload.folder):
        apart = Apart(resolved, traffic, stretch, progress)
        end, complete = apart.serve()
    return assemble(resolved, apart, end, complete, time.perf_counter() - began)


class Line(Inbox):
    """A front end whose requests may be held back behind it until somebody says when they may go on."""

    def __init__(self, work: np.ndarray, delay: float, queued: np.ndarray) -> None:
        super().__init__(work, delay, queued)
        self._heap: list[tuple[float, int, Request]] = []
        self._number = 0

    def prepare(self, request: Request, when: float) -> float:
        """A request comes; when it has been prepared."""
        self._free = (when if when > self._free else self._free) + float(self._work[request.row])
        return self._free + self._delay

    def let_on(self, request: Request, at: float) -> None:
        """A prepared request is in the engine's queue at `at`."""
        self._queued[request.row] = at
        heappush(self._heap, (at, self._number, request))
        self._number += 1

    def send(self, request: Request, when: float) -> float:
        at = self.prepare(request, when)
        self.let_on(request, at)
        return at

    def next_time(self) -> float:
        return self._heap[0][0] if self._heap else NEVER

    def take(self, now: float) -> list[tuple[Request, float]]:
        taken = []
        while self._heap and self._heap[0][0] <= now:
            at, _, request = heappop(self._heap)
            taken.append((request, at))
        self.count += len(taken)
        return taken

    def arrived(self, now: float) -> int:
        return sum(at <= now for at, _, _ in self._heap)


class Apart(Service):
    """The engines, their routers, the links between them, and the load.

    Attributes:
        prefill, decode: the engines of each kind.   before, after: the routers in front of them.
        queued: float64, when each row was in the queue of its prefill engine, and `handed` in that of its decode engine.
        prefilled: when its first token was computed.   reserved: when memory was set aside for it.
        moving: when its KV was ready to go.   received: when it was all there.
        moved: int64, tokens whose KV was sent.
        refused: row → why it was turned away before any engine.
    """

    def __init__(self, resolved: Resolved, traffic: Traffic, stretch: bool, progress: Progress | None) -> None:
        super().__init__(resolved, traffic, progress)
        pools: Pools = resolved.pools
        self.pools, self.listens, size = pools, True, len(traffic)
        cluster, seed = resolved.workload.cluster, resolved.workload.seed
        self.before, self.after = Routing(cluster.prefill, seed, traffic), Routing(cluster.decode, seed, traffic)
        self.queued, self.handed, self.prefilled, self.reserved, self.moving, self.received = (
            np.full(size, np.nan) for _ in range(6)
        )
        self.moved = np.zeros(size, np.int64)
        self.refused: dict[int, str] = {}
        self._onward: dict[int, Request] = {}  # whole requests that a decode engine is to continue
        self._ready: dict[int, float] = {}  # push: when the prompt has been prepared
        self.push = pools.push
        self.links = Links(
            pools.path, cluster.prefill.replicas, cluster.decode.replicas,
            pools.prefill.engine.parallel.data, pools.decode.engine.parallel.data,
        )  # fmt: skip
        fronts = [
            (each.cost.front_end, queued)
            for each, queued in ((pools.prefill, self.queued), (pools.decode, self.handed))
        ]
        lines = [
            lambda f=front, q=queued: Line(f.request_work + f.input_token * traffic.input_tokens, f.base, q)
            for front, queued in fronts
        ]
        first = cluster.prefill.replicas
        self.replicas = self.prefill = [
            PrefillMember(self, number, lines[0](), pools.prefill, stretch, PrefillEngine) for number in range(first)
        ]
        self.decode = [
            DecodeMember(self, first + number, lines[1](), pools.decode, stretch, DecodeEngine)
            for number in range(cluster.decode.replicas)
        ]
        self.replicas = [*self.prefill, *self.decode]

    # --- requests

    def _route(self, request: Request, sent: float, now: float) -> None:
        prompt = request._replace(output_tokens=1, max_tokens=1)
        why = self._hopeless(request, prompt)
        if why:
            self.refused[request.row] = why
            self.answered(request.row, now, now, self.source.refused)
            return
        member = self.prefill[self.before.route(request, sent, now, self.prefill)]
        if self._goes_on(request):
            self._onward[request.row] = request
            member.engine.keep(request.row)
            if self.push:
                self._ready[request.row] = member.driver.prepare(prompt, sent)
                self.decode[self.after.route(request, sent, now, self.decode)].mail(request, sent, now)
                return
        member.mail(prompt, sent, now)

    def _hopeless(self, request: Request, prompt: Request) -> str | None:
        """Why neither kind of engine could ever serve a request."""
        if request.n > 1:
            return refusals.several_samples(request.n)
        for pool, what, engine in (
            ("prefill", prompt, self.prefill[0].engine), ("decode", request, self.decode[0].engine),
        ):  # fmt: skip
            why = never_fits(engine, what)
            if why:
                return f"{pool} pool: {why}"
        return None

    def _goes_on(self, request: Request) -> bool:
        """Whether there is anything left to decode once the prompt is computed."""
        room = self.decode[0].engine.max_len - request.input_tokens
        return min(request.output_tokens, request.max_tokens, room) > self.pools.with_token

    def prefilled_at(self, member: PrefillMember, row: int, out: float, now: float) -> None:
        """A prefill engine has computed a prompt; its response is out at `out`."""
        self.before.returned(row, out)
        self.prefilled[row] = now
        if row not in self._onward:
            self.answered(row, out, now, self.source.finished)
        elif self.push:
            place = int(self.after.place[row])
            self._send(row, int(self.moved[row]), member, self.decode[place], now)
        else:
            event = self.clock.at(out, ROUTE * self.order + self.order - 1)
            event.callbacks.append(lambda _: self._hand_over(row, out))

    def _hand_over(self, row: int, out: float) -> None:
        """Pull: a request whose prompt is computed goes to a decode engine."""
        request, now = self._onward[row], self.clock.now
        self.decode[self.after.route(request, out, now, self.decode)].mail(request, out, now)

    def reserved_at(self, member: DecodeMember, row: int, tokens: int, now: float) -> None:
        """A decode engine has set memory aside, and wants the KV of `tokens` tokens."""
        self.reserved[row], self.moved[row] = now, tokens
        sender = self.prefill[int(self.before.place[row])]
        if self.push:
            request = self._onward[row]._replace(output_tokens=1, max_tokens=1)
            sender.let_on(request, max(self._ready.pop(row), now), now)
        else:
            self._send(row, tokens, sender, member, now)

    def _send(self, row: int, tokens: int, sender: PrefillMember, receiver: DecodeMember, now: float) -> None:
        """KV is ready to go."""
        began = sender.engine.began(row)
        _, there = self.links.book(
            sender.number, receiver.number - len(self.prefill), tokens, now, began, sender.engine.last_piece[row]
        )
        self.moving[row], self.received[row] = now, there
        receiver.kv_at(row, there)
        self.clock.at(there, MOVE * self.order + sender.number).callbacks.append(lambda _: sender.let_go(row))
        del self._onward[row]

    # --- answers

    def returned(self, row: int, out: float, now: float, tell, place: int) -> None:
        """An answer is with the client at `out`, or an engine has turned a request away; it is `now`, at engine `place`."""
        if place >= len(self.prefill):
            self.after.returned(row, out)
            if self._onward.pop(row, None) is not None:  # turned away
                sender = int(self.before.place[row])
                if self.push:
                    self.before.returned(row, out)
                else:
                    self.prefill[sender].let_go(row)
        else:
            self.before.returned(row, out)
            if self._onward.pop(row, None) is not None and self.push:
                continues = int(self.after.place[row])
                self.after.returned(row, out)
                self.decode[continues].engine.give_up(row, now)
        self.answered(row, out, now, tell)

    def done(self) -> int:
        """Requests that are over."""
        return self.total - int(np.isnan(self.sent).sum()) - sum(
            len(member.engine.unfinished_rows()) for member in self.replicas
        )  # fmt: skip


class PrefillMember(Member):
    """An engine that computes prompts."""

    def _finished(self, row: int, now: float) -> None:
        self.cluster.prefilled_at(self, row, self._told.time(now), now)

    def let_on(self, request: Request, at: float, now: float) -> None:
        """A request that was held back is in the engine's queue at `at`."""
        self.driver.let_on(request, at)
        self._heed(max(at, now), False)

    def let_go(self, row: int) -> None:
        """The KV of a request has left."""
        self.engine.let_go(row)
        now = self.cluster.clock.now
        if self._event is not None and self._kind == LOOK:
            self._heed(now, False)


class DecodeMember(Member):
    """An engine that computes answers."""

    def __init__(self, cluster: Apart, *args, **kwargs) -> None:
        super().__init__(cluster, *args, **kwargs)
        self.engine.with_token = bool(cluster.pools.with_token)
        self.engine.on_reserved = lambda row, tokens, now: cluster.reserved_at(self, row, tokens, now)

    def kv_at(self, row: int, there: float) -> None:
        """The KV of a request will be here at `there`."""
        self.engine.due(row, there)
        self._heed(there, True)
