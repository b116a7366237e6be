"""The HTTP side: paths, bodies in, answers out, and clients that hang up."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backends.server.answers import DONE, Choice, Shape, usage_of
from backends.server.asks import Ask, Mailbox, Piece
from backends.server.bodies import Chat, Completion, Detokenize, Generation, Tokenize, parsed
from backends.server.desk import Desk, Served, info, limits
from backends.server.detokenise import TextStream
from backends.server.errors import ApiError
from backends.server.exposition import MeterCollector, exposed, registry_of
from backends.server.meter import Meter
from workloads.errors import InputError

COMPLETION_TOKENS = 16  # where a client of `/v1/completions` says nothing: OpenAI's default, and vLLM's
_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


def make_app(served: Served, on_fault: Callable[[], None]) -> Starlette:
    """The application of a server.

    Args:
        on_fault: called when the engine has failed.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.desk = desk = Desk(served, on_fault)
        yield
        desk.close()
        await desk.stop()

    pages = Pages(served)
    routes = [
        Route("/health", pages.health), Route("/ping", pages.health), Route("/version", pages.version),
        Route("/v1/models", pages.models), Route("/v1/models/{name:path}", pages.model), Route("/metrics", pages.metrics),
        Route("/v1/completions", Generating(pages, Completion), methods=["POST"]),
        Route("/v1/chat/completions", Generating(pages, Chat), methods=["POST"]),
        Route("/tokenize", pages.tokenize, methods=["POST"]),
        Route("/detokenize", pages.detokenize, methods=["POST"]),
    ]  # fmt: skip
    app = Starlette(
        routes=routes, lifespan=lifespan, exception_handlers={ApiError: _told, HTTPException: _told, Exception: _fault}
    )
    app.add_middleware(Counted, meter=served.meter)
    return app


async def _told(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        error = ApiError(f"{request.method} {request.url.path}: {error.detail}", error.status_code)
    assert isinstance(error, ApiError)
    return Response(error.body(), error.status, media_type="application/json")


async def _fault(request: Request, error: Exception) -> Response:
    return await _told(request, ApiError(f"a fault of the server: {type(error).__name__}", 500))


class Counted:
    """Counts responses by path and status.

    Args:
        app: what is counted. meter: where.
    """

    def __init__(self, app: ASGIApp, meter: Meter) -> None:
        self._app, self._meter = app, meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = scope.get("endpoint") is not None  # else anybody could make up paths without end
                self._meter.responded(scope["path"] if known else "none", scope["method"], message["status"])
            await send(message)

        await self._app(scope, receive, counted)


class Pages:
    """The paths that answer at once.

    Args:
        served: the engine.
    """

    def __init__(self, served: Served) -> None:
        self.served = served
        self._created = int(time.time())
        self._registry = registry_of(
            MeterCollector(
                served.meter, served.model, served.clock.speed, getattr(served.engine.state.allocator, "block_size", 1)
            )
        )

    async def health(self, request: Request) -> Response:
        """200 while the engine lives."""
        return Response(status_code=200 if request.app.state.desk.fault is None else 503)

    async def version(self, request: Request) -> Response:
        """The version of this package."""
        return JSONResponse({"version": self.served.version})

    async def models(self, request: Request) -> Response:
        """The one model."""
        return JSONResponse({"object": "list", "data": [info(self.served, self._created)]})

    async def model(self, request: Request) -> Response:
        """The one model, by its name."""
        self.check_model(request.path_params["name"])
        return JSONResponse(info(self.served, self._created))

    async def metrics(self, request: Request) -> Response:
        """Counts, in Prometheus's format."""
        body, kind = exposed(self._registry, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a prompt or of messages."""
        body = parsed(Tokenize, await request.body())
        self.check_model(body.model)
        words = self.served.words
        if (body.prompt is None) == (body.messages is None):
            raise ApiError("expected a prompt or messages", param="prompt")
        ids = (
            read(words.chat, [message.plain() for message in body.messages])
            if body.messages is not None
            else read(words.encode, body.prompt, body.add_special_tokens)
        )
        told: dict[str, Any] = {"count": len(ids), "max_model_len": self.served.max_len, "tokens": ids}
        return JSONResponse({**told, "token_strs": words.parts(ids) if body.return_token_strs else None})

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        body = parsed(Detokenize, await request.body())
        self.check_model(body.model)
        self.check_ids(body.tokens)
        return JSONResponse({"prompt": self.served.words.decode(body.tokens)})

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not here.

        Raises:
            ApiError: 404.
        """
        if name is not None and name != self.served.model:
            message = f"The model `{name}` does not exist; this server has `{self.served.model}`."
            raise ApiError(message, 404, param="model", code="model_not_found")

    def check_ids(self, ids: list[int]) -> None:
        """Refuse token ids that the model does not have.

        Raises:
            ApiError: 400.
        """
        if ids and max(ids) >= self.served.words.size:
            raise ApiError(f"token ids must be below {self.served.words.size}, found {max(ids)}", param="prompt")


def read(reader: Callable[..., list[int]], *given: Any) -> list[int]:
    """What a tokenizer makes of a text.

    Raises:
        ApiError: it cannot.
    """
    try:
        return reader(*given)
    except InputError as error:
        raise ApiError(error.message) from None


class Generating:
    """A path that generates: `/v1/completions` or `/v1/chat/completions`. An application of its own, for speed.

    Args:
        pages: the other paths, and the engine.
        kind: of the body.
    """

    def __init__(self, pages: Pages, kind: type[Completion] | type[Chat]) -> None:
        self._pages, self._served, self._kind = pages, pages.served, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            body = parsed(self._kind, await request.body())
            asks, choices, shape = self._read(body)
            desk: Desk = scope["app"].state.desk
            mailbox = desk.send(asks)
            over = False
            watch = asyncio.create_task(_watch(receive, mailbox))
            try:
                answer = self._stream if body.stream else self._whole
                await answer(body, mailbox, choices, shape, send)
                over = not mailbox.gone
            finally:
                watch.cancel()
                if not over:
                    desk.drop(asks)
        except ApiError as error:
            response = Response(error.body(), error.status, media_type="application/json")
            with suppress(OSError):
                await response(scope, receive, send)

    def _read(self, body: Generation) -> tuple[list[Ask], list[Choice], Shape]:
        """What the body asks for.

        Raises:
            ApiError: it cannot be served.
        """
        served, words = self._served, self._served.words
        self._pages.check_model(body.model)
        body.check()
        if isinstance(body, Chat):
            prompts, default = [read(words.chat, body.plain())], None
        else:
            prompts = [read(words.encode, each) if isinstance(each, str) else each for each in body.prompts()]
            default = COMPLETION_TOKENS
        mailbox, asks, choices = Mailbox(), [], []
        for index, ids in enumerate(prompts):
            self._pages.check_ids(ids)
            drawn = served.answer_length() if served.answer_length is not None and body.limit is None else None
            most = limits(served, len(ids), body.limit, default if drawn is None else None)
            length = None if drawn is None else max(1, min(max(drawn, body.min_tokens), most))
            least = min(body.min_tokens, most)
            asks.append(Ask(ids, most, least, length, body.sampling(), body.priority, mailbox, index))
            choices.append(Choice(TextStream(words.decode, body.stops), len(ids)))
        return asks, choices, Shape(isinstance(body, Chat), body.model or served.model)

    async def _whole(self, body: Generation, mailbox: Mailbox, choices: list[Choice], shape: Shape, send: Send) -> None:
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
        data = json.dumps(shape.whole(choices), ensure_ascii=False).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    async def _stream(
        self, body: Generation, mailbox: Mailbox, choices: list[Choice], shape: Shape, send: Send
    ) -> None:
        """Answer as tokens come: an event for each, as many as there are in one write."""
        options = body.stream_options
        every = options is not None and options.continuous_usage_stats
        open_, begun = len(choices), False
        while open_:
            pieces = await mailbox.take()
            if not pieces:
                return
            events: list[bytes] = []
            for piece in pieces:
                choice = choices[piece.index]
                try:
                    fresh = not choice.said
                    text = _grown(choice, piece)
                except ApiError as error:
                    if not begun:
                        raise
                    await _broken(error, send)
                    return
                if fresh:
                    events.append(shape.first(piece.index))
                if text or piece.finish:
                    usage = usage_of([choice]) if every else None
                    events.append(shape.chunk(piece.index, text, choice.finish, usage))
                open_ -= piece.finish is not None
            if not begun:
                begun = True
                await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
            if not open_:
                if options is not None and options.include_usage:
                    events.append(shape.closing(usage_of(choices)))
                events.append(DONE)
            await send({"type": "http.response.body", "body": b"".join(events), "more_body": open_ > 0})


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


async def _broken(error: ApiError, send: Send) -> None:
    """End a stream that has begun and cannot go on, with the reason in it."""
    await send({"type": "http.response.body", "body": f"data: {error.body()}\n\n".encode() + DONE})


async def _watch(receive: Receive, mailbox: Mailbox) -> None:
    """Wait until the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
    mailbox.hang_up()
