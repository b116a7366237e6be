"""The HTTP side: which path is whose, and those that answer at once."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backends.server.bodies import Chat, Completion, Detokenize, Tokenize, parsed
from backends.server.desk import Desk, Served, check_ids, check_model, info, read
from backends.server.errors import ApiError
from backends.server.exposition import CONTENT_TYPE, MeterCollector, exposed, registry_of
from backends.server.generating import Generating
from backends.server.meter import Meter
from backends.server.upload import ClientGone, body_of


class App:
    """The application of a server: what generates, and all other paths.

    Streams go past the layers that the others have: each would cost something for every token.

    Args:
        served: the engine.
        on_fault: called when the engine has failed.
    """

    def __init__(self, served: Served, on_fault: Callable[[], None]) -> None:
        pages = Pages(served, self.at_desk)
        self._served, self._on_fault = served, on_fault
        self._generating: dict[str, ASGIApp] = {
            "/v1/completions": Generating(served, self.at_desk, Completion),
            "/v1/chat/completions": Generating(served, self.at_desk, Chat),
        }  # fmt: skip
        routes = [
            Route("/health", pages.health), Route("/ping", pages.health), Route("/version", pages.version),
            Route("/v1/models", pages.models), Route("/v1/models/{name:path}", pages.model),
            Route("/metrics", pages.metrics), Route("/tokenize", pages.tokenize, methods=["POST"]),
            Route("/detokenize", pages.detokenize, methods=["POST"]),
            *(Route(path, page, methods=["POST"]) for path, page in self._generating.items()),  # for other methods: 405
        ]  # fmt: skip
        handlers = {ApiError: _told, HTTPException: _told, ClientGone: _nothing, Exception: _fault}
        others = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)
        others.add_middleware(Counted, meter=served.meter)
        self._others = others
        self.desk: Desk | None = None

    def at_desk(self) -> Desk:
        """Where requests are handed in, once the server runs."""
        assert self.desk is not None
        return self.desk

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.desk = desk = Desk(self._served, self._on_fault)
        yield
        desk.close()
        await desk.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        page = self._generating.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (page or self._others)(scope, receive, send)


async def _told(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        error = ApiError(f"{request.method} {request.url.path}: {error.detail}", error.status_code)
    assert isinstance(error, ApiError)
    return Response(error.body(), error.status, media_type="application/json")


async def _nothing(request: Request, error: Exception) -> Response:
    return _Unsaid()


class _Unsaid(Response):
    """Says nothing: nobody listens."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Nothing is sent."""


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
                path = scope["path"] if scope.get("endpoint") is not None else "none"
                path = "/v1/models" if path.startswith("/v1/models") else path  # nobody makes up labels without end
                self._meter.responded(path, scope["method"], message["status"])
            await send(message)

        await self._app(scope, receive, counted)


class Pages:
    """The paths that answer at once.

    Args:
        served: the engine.
        desk: where requests are handed in.
    """

    def __init__(self, served: Served, desk: Callable[[], Desk]) -> None:
        self.served, self._desk = served, desk
        self._created = int(time.time())
        self._registry = registry_of(
            MeterCollector(
                served.meter, served.model, served.clock.speed, getattr(served.engine.state.allocator, "block_size", 1)
            )
        )

    async def health(self, request: Request) -> Response:
        """200 while the engine lives."""
        return Response(status_code=200 if self._desk().fault is None else 503)

    async def version(self, request: Request) -> Response:
        """The version of this package."""
        return JSONResponse({"version": self.served.version})

    async def models(self, request: Request) -> Response:
        """The one model."""
        return JSONResponse({"object": "list", "data": [info(self.served, self._created)]})

    async def model(self, request: Request) -> Response:
        """The one model, by its name."""
        check_model(self.served, request.path_params["name"])
        return JSONResponse(info(self.served, self._created))

    async def metrics(self, request: Request) -> Response:
        """Counts, in Prometheus's format."""
        return Response(exposed(self._registry), headers={"content-type": CONTENT_TYPE})

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a prompt or of messages."""
        body = parsed(Tokenize, await body_of(request, self._desk()))
        check_model(self.served, body.model)
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
        body = parsed(Detokenize, await body_of(request, self._desk()))
        check_model(self.served, body.model)
        check_ids(self.served, body.tokens)
        return JSONResponse({"prompt": self.served.words.decode(body.tokens)})
