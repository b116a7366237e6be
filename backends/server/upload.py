"""The body of a request while it comes: not without end, and from clients that may hang up before it is whole."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from backends.server.desk import Desk
from backends.server.errors import ApiError

LEAST, PER_TOKEN = 16 << 20, 32
"""Bytes that a body may always have, and for each token of the context where that is more: reading a body holds up every
stream, and takes many times its size."""


class ClientGone(Exception):
    """The client hung up before it had said all: there is nobody to tell anything."""


def most_bytes(max_len: int) -> int:
    """Bytes that a body may have.

    Args:
        max_len: tokens of the context.
    """
    return max(LEAST, PER_TOKEN * max_len)


async def body_of(request: Request, desk: Desk) -> bytes:
    """The whole body; what is too long is not waited for, and nothing is when the server stops.

    Raises:
        ApiError: 413, 503.
        ClientGone: it never came.
    """
    most = most_bytes(desk.served.max_len)
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > most:
        raise _too_long(most)
    task = asyncio.current_task()
    desk.reading.add(task)
    try:
        return await _read(request, most)
    except ClientDisconnect:
        raise ClientGone from None
    except asyncio.CancelledError:
        if not desk.abandoned:
            raise
        raise ApiError("the server is stopping", 503) from None
    finally:
        desk.reading.discard(task)


async def _read(request: Request, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise _too_long(most)
        parts.append(part)
    return b"".join(parts)


def _too_long(most: int) -> ApiError:
    return ApiError(f"the body of a request may have {most:,} bytes", 413)
