"""The desk between HTTP and the engine's thread: takes requests in, passes answers on, on the event loop's side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from backends.server.asks import Ask, Mailbox, Piece
from backends.server.clock import ServerClock
from backends.server.errors import ApiError
from backends.server.loop import Delivery, EngineLoop, Looks, Side
from backends.server.meter import Meter
from backends.server.words import Words
from sim.cost.host import FrontEnd
from sim.engine.engine import Engine
from workloads.errors import InputError


@dataclass(slots=True)
class Served:
    """An engine that is ready to serve, and what it is like.

    Attributes:
        model: the name that clients use.
        engine, side, looks, clock: see `EngineLoop`. front: what a simulated front end takes; None: what it really takes.
        meter: its counts. words: its tokenizer. max_len: longest prompt plus answer.
        simulated: whether answers are filler words.
        answer_length: tokens of an answer whose client set no limit, where that is not the model's to say: called for each.
        max_waiting: most requests that may wait; 0: any number.
        version: of this package.
        behind: told of a simulation that this machine is too slow for; see `EngineLoop`.
    """

    model: str
    engine: Engine
    side: Side
    looks: Looks
    clock: ServerClock
    front: FrontEnd | None
    meter: Meter
    words: Words
    max_len: int
    simulated: bool
    answer_length: Callable[[], int] | None = None
    max_waiting: int = 0
    version: str = ""
    behind: Callable[[float], None] | None = None


class Desk:
    """Takes requests in while the event loop that it was opened on runs.

    Args:
        served: the engine.
        on_fault: called on the event loop when the engine has failed.

    Attributes:
        reading: tasks that wait for the rest of a body.   abandoned: whether nobody waits for anything any more.
    """

    def __init__(self, served: Served, on_fault: Callable[[], None]) -> None:
        self.served = served
        self._on_fault = on_fault
        self._events = asyncio.get_running_loop()
        self._loop = EngineLoop(
            served.engine,
            served.side,
            served.clock,
            served.front,
            served.looks,
            served.meter,
            self._deliver,
            served.behind,
        )
        self.reading: set[asyncio.Task[None]] = set()
        self._closing = self.abandoned = False
        self._loop.start()

    @property
    def fault(self) -> BaseException | None:
        """What ended the engine, if anything did."""
        return self._loop.fault

    def send(self, asks: Iterable[Ask]) -> Mailbox:
        """Give prompts to the engine.

        Raises:
            ApiError: the server is full, stopping, or its engine has failed.
        """
        asks = list(asks)
        if self.fault is not None:
            raise ApiError("the engine has failed", 500)
        if self._closing:
            raise ApiError("the server is stopping", 503)
        limit = self.served.max_waiting
        if limit and self._loop.waiting + len(asks) > limit:
            raise ApiError(f"too many requests wait: {limit} may", 429, code="rate_limit_exceeded")
        for ask in asks:
            self._loop.ask(ask)
        if self.fault is not None:  # it failed meanwhile, and may not have seen them
            raise ApiError("the engine has failed", 500)
        return asks[0].mailbox

    def drop(self, asks: Iterable[Ask]) -> None:
        """Nobody waits for these answers any more."""
        for ask in asks:
            self._loop.cancel(ask)

    def close(self) -> None:
        """Take nothing more in."""
        self._closing = True

    def abandon(self) -> None:
        """Stop the engine now: who still waits for an answer, or has not said all, is told so."""
        self._closing = self.abandoned = True
        for task in self.reading:
            task.cancel()
        self._loop.stop()

    async def stop(self) -> None:
        """End the engine's thread."""
        self._loop.stop()
        await asyncio.to_thread(self._loop.join, 10.0)

    def _deliver(self, letters: Delivery) -> None:
        """Called by the engine's thread: one call to the event loop for all tokens of a step."""
        if not letters and self._loop.fault is None:
            return
        try:
            self._events.call_soon_threadsafe(self._hand_over, letters)
        except RuntimeError:  # the event loop has closed
            self._closing = True

    def _hand_over(self, letters: list[tuple[Ask, Piece]]) -> None:
        for ask, piece in letters:
            ask.mailbox.put(piece)
        if self._loop.fault is not None:
            self._on_fault()


def limits(served: Served, prompt: int, wanted: int | None, default: int | None) -> int:
    """Tokens of an answer at most.

    Args:
        prompt: tokens of the prompt. wanted: what the client said. default: what is taken where it said nothing; None: all
            that the context leaves.

    Raises:
        ApiError: longer than the context.
    """
    left = served.max_len - prompt
    if left < 1 or (wanted is not None and wanted > left):
        asked = f"{prompt + (wanted or 0)} tokens ({prompt} in the prompt, {wanted or 'at least 1'} in the answer)"
        message = f"This model's maximum context length is {served.max_len} tokens. However, you requested {asked}."
        raise ApiError(message, param="prompt" if left < 1 else "max_tokens", code="context_length_exceeded")
    if wanted is not None:
        return wanted
    return left if default is None else min(default, left)


def check_model(served: Served, name: str | None) -> None:
    """Refuse a model that is not here.

    Raises:
        ApiError: 404.
    """
    if name is not None and name != served.model:
        message = f"The model `{name}` does not exist; this server has `{served.model}`."
        raise ApiError(message, 404, param="model", code="model_not_found")


def check_ids(served: Served, ids: list[int]) -> None:
    """Refuse token ids that the model does not have.

    Raises:
        ApiError: 400.
    """
    if ids and max(ids) >= served.words.size:
        raise ApiError(f"token ids must be below {served.words.size}, found {max(ids)}", param="prompt")


def read(reader: Callable[..., list[int]], *given: Any) -> list[int]:
    """What a tokenizer makes of a text.

    Raises:
        ApiError: it cannot.
    """
    try:
        return reader(*given)
    except InputError as error:
        raise ApiError(error.message) from None


def info(served: Served, created: int) -> dict[str, Any]:
    """The model's entry in `/v1/models`."""
    return {
        "id": served.model, "object": "model", "created": created, "owned_by": "twinserve", "root": served.model,
        "parent": None, "max_model_len": served.max_len, "permission": [],
    }  # fmt: skip
