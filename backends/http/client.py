"""The connection to a server: JSON asked for, and streams read as they come.

aiohttp, since its parser is compiled: on one core it sends 3,600 requests a second and reads 38,000 chunks a second, where
httpx manages 220 and 8,600 (a connection for each request in flight, chunks parsed as JSON). No request waits for another's
connection. Connections that idle are dropped before the servers at hand drop them (uvicorn: 5 s), so that none is used that
is about to be closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace, TracebackType
from typing import Any

import aiohttp

from backends.http.answer import BROKEN, CONNECT, CUT, STATUS, TIMEOUT, Answer, Reader, message_of
from backends.http.events import EventStream, EventTooLong

IDLE, CONNECT_TIMEOUT = 4.0, 30.0
ONE_PIECE = "the answer came in one piece, not as a stream, so that no token has a time"
_TAIL = re.compile(r"/v1(/models|/(chat/)?completions)?/*$")
_LONGEST_ERROR, _LONGEST_PAGE = 1 << 16, 1 << 24  # bytes that are read of an error, and of what was asked for


@dataclass(frozen=True, slots=True)
class Access:
    """How a server is reached.

    Attributes:
        base_url: with or without `/v1`, or a path under it, at its end.   key: sent as a bearer token, if any.
        headers: sent besides.   verify_tls: whether its certificate must be good.   timeout: seconds for a whole request.
    """

    base_url: str
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    verify_tls: bool = True
    timeout: float = 600.0

    @property
    def root(self) -> str:
        """The address that `/v1/…`, `/tokenize` and `/metrics` follow."""
        return _TAIL.sub("", self.base_url).rstrip("/")

    @property
    def tls(self) -> bool:
        """Whether it is asked by TLS."""
        return self.base_url.lower().startswith("https:")


class Client:
    """Sends requests; to be used as an async context.

    Args:
        now: the run's clock, in seconds.
    """

    def __init__(self, access: Access, now: Callable[[], float] = time.perf_counter) -> None:
        self.access, self._now = access, now
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        access = self.access
        # A compressed stream would come in blocks, and be slower on both sides.
        plain = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "twinserve"}
        headers = {**plain, **access.headers}
        if access.key:
            headers["Authorization"] = f"Bearer {access.key}"
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(self._head_sent)
        trace.on_request_redirect.append(_redirected)
        self._session = aiohttp.ClientSession(
            headers=headers, trace_configs=[trace], cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE, ssl=access.verify_tls, ttl_dns_cache=3600),
            timeout=aiohttp.ClientTimeout(total=access.timeout, sock_connect=min(CONNECT_TIMEOUT, access.timeout)),
        )  # fmt: skip
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._session.close()

    async def _head_sent(self, session: Any, context: SimpleNamespace, parameters: Any) -> None:
        answer = context.trace_request_ctx
        if answer is not None:
            answer.sent = self._now()

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and body, JSON as values and anything else as text.

        Raises:
            aiohttp.ClientError, TimeoutError: no answer.
        """
        limit = aiohttp.ClientTimeout(total=min(CONNECT_TIMEOUT, self.access.timeout))
        return await self._page("GET", path, timeout=limit)

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """As `get`, with a body of JSON."""
        return await self._page("POST", path, data=encoded(body))

    async def _page(self, method: str, path: str, **how: Any) -> tuple[int, Any]:
        try:
            async with self._session.request(method, self.access.root + path, **how) as response:
                return response.status, _value(await _beginning(response, _LONGEST_PAGE))
        except ValueError as error:
            if isinstance(error, aiohttp.ClientError):
                raise
            raise Unsendable(str(error)) from error

    async def stream(self, path: str, body: bytes, answer: Answer, keep: bool = False) -> Answer:
        """Send a request and note in `answer` what comes; nothing is raised but a cancellation.

        Args:
            keep: whether the text is wanted.
        """
        now = self._now
        answer.begun = now()
        try:
            async with self._session.post(self.access.root + path, data=body, trace_request_ctx=answer) as response:
                answer.status, answer.head = response.status, now()
                if response.status // 100 != 2:
                    said = message_of(await _error_page(response))
                    answer.fail(STATUS, f"{response.status} {said or response.reason or ''}")
                else:
                    await self._read(response, answer, keep)
        except asyncio.CancelledError:
            answer.cancelled = True
            raise
        except TimeoutError as error:
            connecting = isinstance(error, aiohttp.ConnectionTimeoutError)
            answer.fail(CONNECT if connecting else TIMEOUT, _late(answer, connecting, self.access.timeout))
        except aiohttp.ClientConnectorError as error:
            answer.fail(CONNECT, told(error))
        except Moved as error:
            answer.status = error.status
            answer.fail(STATUS, str(error))
        except EventTooLong as error:
            answer.fail(BROKEN, str(error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            odd = isinstance(error, ValueError | aiohttp.ClientResponseError)  # it did answer, with what is no HTTP
            unanswered = answer.head != answer.head and not odd
            answer.fail(
                BROKEN if odd else CUT, "the connection was closed before an answer" if unanswered else told(error)
            )
        if answer.end != answer.end:
            answer.end = now()
        if answer.sent != answer.sent:
            answer.sent = answer.begun
        return answer

    async def _read(self, response: aiohttp.ClientResponse, answer: Answer, keep: bool) -> None:
        events, reader, now = EventStream(), Reader(answer, keep), self._now
        first = b""  # of something that may be no stream
        async for received in response.content.iter_any():
            at = now()
            if reader.empty and len(first) < _LONGEST_ERROR:
                first += received
            for event in events.feed(received):
                reader.take(event, at)
        at = now()
        for event in events.end():
            reader.take(event, at)
        if reader.empty and first.strip() and not first.lstrip().startswith(b":"):
            answer.fail(BROKEN, _no_stream(first))
        reader.finish(at)


async def _error_page(response: aiohttp.ClientResponse) -> bytes:
    """What is said beside a status that says enough, as far as it comes."""
    try:
        return await _beginning(response, _LONGEST_ERROR)
    except (aiohttp.ClientError, OSError):
        return b""


def _no_stream(said: bytes) -> str:
    """What is said of something that has no event."""
    value = _value(said)
    if isinstance(value, dict) and value.get("choices") and value.get("error") is None:
        return ONE_PIECE
    return f"no stream but {message_of(said)}"


class Unsendable(aiohttp.ClientError):
    """An address or a header that no request can have."""


class Moved(aiohttp.ClientError):
    """A request was sent elsewhere in a way that makes it another: what was posted would be lost.

    Attributes:
        status: of the answer that said so.
    """

    def __init__(self, status: int, where: str) -> None:
        super().__init__(f"{status} moved to {where or 'nowhere'}: write that address as base_url")
        self.status = status


async def _redirected(session: Any, context: SimpleNamespace, parameters: aiohttp.TraceRequestRedirectParams) -> None:
    """307 and 308 are followed with all that was posted; the others would ask for the page instead."""
    if parameters.method == "POST" and parameters.response.status in (301, 302, 303):
        raise Moved(parameters.response.status, parameters.response.headers.get("location", ""))


async def _beginning(response: aiohttp.ClientResponse, most: int) -> bytes:
    """So many bytes of a body, in however many pieces they come."""
    parts: list[bytes] = []
    left = most
    async for received in response.content.iter_any():
        parts.append(received[:left])
        left -= len(received)
        if left <= 0:
            break
    return b"".join(parts)


def encoded(body: dict[str, Any]) -> bytes:
    """A body as compact JSON; what Unicode cannot hold is replaced."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def told(error: BaseException) -> str:
    """An error of the connection in a few words."""
    cause = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {cause.verify_message} (backend.verify_tls: false takes it all the same; the "
            "environment variable SSL_CERT_FILE names a file with a CA of yours)"
        )
    if isinstance(cause, ssl.SSLError):
        return f"no TLS there ({(cause.reason or str(cause)).replace('_', ' ').lower()}): is it http://?"
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, aiohttp.InvalidURL):
        return "that is no address"
    if isinstance(error, aiohttp.TooManyRedirects):
        return "the server sends from one address to the next without end"
    if isinstance(
        error, aiohttp.ClientResponseError
    ):  # its own words name the address, and show bytes over several lines
        return error.message.partition("\n")[0].strip(": ") or type(error).__name__
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed before an answer"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection was closed in the middle of the answer"
    number = getattr(cause, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number)
    return getattr(cause, "strerror", None) or str(cause).strip() or type(cause).__name__


def _late(answer: Answer, connecting: bool, limit: float) -> str:
    if connecting:
        return f"no connection within {min(CONNECT_TIMEOUT, limit):g} s"
    return f"{'no answer' if not len(answer.times) else 'not finished'} within {limit:g} s"


def _value(body: bytes) -> Any:
    text = body.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
