"""`/v1/completions` and `/v1/chat/completions`: bodies in, answers out, and clients that hang up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from backends.server.answers import DONE, Choice, Shape, usage_of
from backends.server.asks import Ask, Mailbox, Piece
from backends.server.bodies import Chat, Completion, Generation, parsed
from backends.server.desk import Desk, Served, check_ids, check_model, limits, read
from backends.server.detokenise import TextStream
from backends.server.errors import ApiError
from backends.server.upload import ClientGone, body_of

COMPLETION_TOKENS = 16  # where a client of `/v1/completions` says nothing: OpenAI's default, and vLLM's
LONG = 1 << 16  # characters of a prompt for which a tokenizer takes tens of milliseconds
_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_JSON = (b"content-type", b"application/json")


class Generating:
    """A path that generates: `/v1/completions` or `/v1/chat/completions`. An application of its own, for speed.

    Args:
        served: the engine. desk: where requests are handed in.
        kind: of the body.
    """

    def __init__(self, served: Served, desk: Callable[[], Desk], kind: type[Completion] | type[Chat]) -> None:
        self._served, self._desk, self._kind = served, desk, kind
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")  # has no thread until it is needed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(send)
        try:
            await self._answer(Request(scope, receive), reply)
        except ClientGone:
            pass
        except asyncio.CancelledError:  # the server stops, and the client does not read
            if not self._desk().abandoned:
                raise
        except ApiError as error:
            await reply.fail(error)
        except Exception as error:
            if not reply.status:
                await reply.fail(ApiError(f"a fault of the server: {type(error).__name__}", 500))
            raise
        finally:
            if reply.status:  # else the client had hung up
                self._served.meter.responded(scope["path"], scope["method"], reply.status)

    async def _answer(self, request: Request, reply: Reply) -> None:
        desk = self._desk()
        data = await body_of(request, desk)
        arrived = self._served.clock.now()
        body = parsed(self._kind, data)
        check_model(self._served, body.model)
        body.check()
        prompts = await self._prompts(body)
        asks, choices, shape = self._asks(body, prompts, arrived)
        mailbox = desk.send(asks)
        over = False
        watch = asyncio.create_task(_watch(request.receive, mailbox))
        try:
            if body.stream:
                await self._stream(body, mailbox, choices, shape, reply)
            else:
                await self._whole(mailbox, choices, shape, reply)
            over = not mailbox.gone
        finally:
            watch.cancel()
            if not over:
                desk.drop(asks)

    async def _prompts(self, body: Generation) -> list[list[int]]:
        """Token ids of every prompt. Long texts are read in a thread, so that no stream waits for them.

        Raises:
            ApiError: a text cannot be read.
        """
        words = self._served.words
        if isinstance(body, Chat):
            messages = body.plain()
            return [await self._text(sum(len(each["content"]) for each in messages), words.chat, messages)]
        return [
            await self._text(len(each), words.encode, each) if isinstance(each, str) else each
            for each in body.prompts()
        ]

    async def _text(self, length: int, reader: Callable[..., list[int]], *given: Any) -> list[int]:
        if length < LONG:
            return read(reader, *given)
        return await asyncio.get_running_loop().run_in_executor(self._reader, read, reader, *given)

    def _asks(
        self, body: Generation, prompts: list[list[int]], arrived: float
    ) -> tuple[list[Ask], list[Choice], Shape]:
        """What the body asks for.

        Raises:
            ApiError: it cannot be served.
        """
        served, words = self._served, self._served.words
        default = None if isinstance(body, Chat) else COMPLETION_TOKENS
        mailbox, asks, choices = Mailbox(), [], []
        for index, ids in enumerate(prompts):
            check_ids(served, ids)
            drawn = served.answer_length() if served.answer_length is not None and body.limit is None else None
            most = limits(served, len(ids), body.limit, default if drawn is None else None)
            length = None if drawn is None else max(1, min(max(drawn, body.min_tokens), most))
            least = min(body.min_tokens, most)
            asks.append(Ask(ids, most, least, length, body.sampling(), body.priority, mailbox, index, arrived))
            choices.append(Choice(TextStream(words.decode, body.stops, least), len(ids)))
        return asks, choices, Shape(isinstance(body, Chat), body.model or served.model)

    async def _whole(self, mailbox: Mailbox, choices: list[Choice], shape: Shape, reply: Reply) -> None:
        """Answer when all is there."""
        open_ = len(choices)
        while open_:
            pieces = await mailbox.take()
            if not pieces:
                return
            for piece in pieces:
                choice = choices[piece.index]
                choice.parts.append(_grown(choice, piece))
                open_ -= piece.finish is not None
        await reply.whole(200, json.dumps(shape.whole(choices), ensure_ascii=False).encode())

    async def _stream(
        self, body: Generation, mailbox: Mailbox, choices: list[Choice], shape: Shape, reply: Reply
    ) -> None:
        """Answer as tokens come: an event for each, as many as there are in one write."""
        options = body.stream_options
        every = options is not None and options.continuous_usage_stats
        open_, send = len(choices), reply.send
        while open_:
            pieces = await mailbox.take()
            if not pieces:
                return
            events: list[bytes] = []
            for piece in pieces:
                choice = choices[piece.index]
                fresh = not choice.said
                text = _grown(choice, piece)
                if fresh:
                    events.append(shape.first(piece.index))
                if text or piece.finish:
                    usage = usage_of([choice]) if every else None
                    events.append(shape.chunk(piece.index, text, choice.finish, usage))
                open_ -= piece.finish is not None
            if not reply.status:
                await reply.start(200, _STREAM)
            if not open_:
                if options is not None and options.include_usage:
                    events.append(shape.closing(usage_of(choices)))
                events.append(DONE)
            await send({"type": "http.response.body", "body": b"".join(events), "more_body": open_ > 0})


class Reply:
    """The response to one request.

    Args:
        send: the ASGI server's.

    Attributes:
        status: 0 until it has begun.
    """

    def __init__(self, send: Send) -> None:
        self.send = send
        self.status = 0

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Begin."""
        self.status = status
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def whole(self, status: int, data: bytes) -> None:
        """All of it, JSON."""
        await self.start(status, [_JSON, (b"content-length", str(len(data)).encode())])
        await self.send({"type": "http.response.body", "body": data})

    async def fail(self, error: ApiError) -> None:
        """Say what is wrong; in a stream that has begun, as its last event."""
        if not self.status:
            await self.whole(error.status, error.body().encode())
        else:
            event = f"data: {error.body()}\n\n".encode() + DONE
            await self.send({"type": "http.response.body", "body": event})


def _grown(choice: Choice, piece: Piece) -> str:
    """The text that a piece adds to its answer.

    Raises:
        ApiError: there is no answer.
    """
    if piece.refused is not None:
        raise ApiError(piece.refused, piece.status)
    choice.said += len(piece.tokens)
    choice.cached = choice.cached or piece.cached
    text = choice.text.add(piece.tokens, piece.finish is not None)
    if piece.finish is not None:
        choice.finish = piece.finish
    return text


async def _watch(receive: Receive, mailbox: Mailbox) -> None:
    """Wait until the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
    mailbox.hang_up()
