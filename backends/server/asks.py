"""What passes between the HTTP side and the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ABORT, STOP, LENGTH = "abort", "stop", "length"


class Piece(NamedTuple):
    """What came of one answer: tokens, and how it ended if it did.

    Attributes:
        index: of the answer among those of its HTTP request.
        tokens: ids.
        finish: `stop` or `length` with the last tokens; None before.
        cached: tokens of the prompt that were in the prefix cache; told with the first tokens.
        refused: why there is no answer. status: of an HTTP response that says so.
    """

    index: int
    tokens: Sequence[int]
    finish: str | None = None
    cached: int = 0
    refused: str | None = None
    status: int = 400


class Mailbox:
    """Where the pieces of one HTTP request's answers arrive, on the event loop's side.

    Attributes:
        gone: whether the client has hung up, or the server gives up.
    """

    __slots__ = ("_pieces", "_waiter", "gone")

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._waiter: asyncio.Future[None] | None = None
        self.gone = False

    def put(self, piece: Piece) -> None:
        """One more piece; only on the event loop's thread."""
        self._pieces.append(piece)
        self._wake()

    def hang_up(self) -> None:
        """Nobody wants the rest."""
        self.gone = True
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def take(self) -> list[Piece]:
        """All pieces that are here, waiting for the first; none once nobody wants them."""
        while not self._pieces and not self.gone:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        pieces, self._pieces = self._pieces, []
        return [] if self.gone else pieces


@dataclass(slots=True)
class Ask:
    """One prompt and what is wished of its answer.

    Attributes:
        prompt: token ids.
        max_tokens: of the answer at most, as declared. min_tokens: at least.
        length: of a made-up answer, where that is not `max_tokens`.
        sampling: how tokens are chosen, for engines that choose (`backends.torch.sampling.SamplingParams` by name).
        priority: smaller is more urgent.
        mailbox, index: where the answer goes.
        arrived: the clock's time.
        row: number of the request, given when it is sent to the engine.
    """

    prompt: list[int]
    max_tokens: int
    min_tokens: int = 0
    length: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    priority: int = 0
    mailbox: Mailbox = field(default_factory=Mailbox)
    index: int = 0
    arrived: float = 0.0
    row: int = -1
