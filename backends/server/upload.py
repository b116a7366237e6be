"""The body of a request while it comes: not without end, and from clients that may hang up before it is whole."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

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


async def body_of(request: Request, max_len: int) -> bytes:
    """The whole body; what is too long is not waited for.

    Raises:
        ApiError: 413.
        ClientGone: it never came.
    """
    most = most_bytes(max_len)
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > most:
        raise _too_long(most)
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise _too_long(most)
            parts.append(part)
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(parts)


def _too_long(most: int) -> ApiError:
    return ApiError(f"the body of a request may have {most:,} bytes", 413)
