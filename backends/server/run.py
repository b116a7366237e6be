"""Running the server until somebody stops it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from backends.open_files import many_files
from backends.server.app import App
from backends.server.desk import Served
from workloads.errors import InputError, Place

_BACKLOG = 2048
_KEEP_ALIVE = 75  # seconds; clients that keep connections for less never find one closed under their hands
_PATIENCE = 5  # seconds for clients that were told that the server stops, and do not read it
_SWITCH = 2e-4  # seconds after which the event loop makes room for the engine's thread: Python's own 5 ms are a step


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, so that a port in use is told before a model is read.

    Raises:
        InputError: it cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"no such address: {host}", place=Place(file="--host"), hint=error.strerror) from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRINUSE:
            message, hint = f"port {port} of {host} is in use", "take another with --port, or 0 for any that is free"
        else:
            message, hint = f"cannot listen on port {port} of {host}: {error.strerror}", None
        raise InputError(message, place=Place(file="--port"), hint=hint) from None
    return found


class Server(uvicorn.Server):
    """A server of one engine.

    It stops when it is asked to, by SIGINT or SIGTERM, and does not raise the signal again when it has: that is how a server
    ends. The first lets what runs come to its end, for as long as `drain` allows; the second stops at once.

    Args:
        served: the engine.
        drain: seconds that requests under way are given when the server is stopped.
        on_signal: called when it is asked to stop, with whether it was asked before.
    """

    def __init__(
        self, served: Served, *, drain: float = 30.0, on_signal: Callable[[bool], None] | None = None
    ) -> None:  # fmt: skip
        self._app = App(served, self.stop)
        self._drain, self._on_signal = drain, on_signal
        self._events: asyncio.AbstractEventLoop | None = None
        self._at_once = False
        super().__init__(
            uvicorn.Config(
                self._app, log_level="warning", access_log=False, lifespan="on", server_header=False, ws="none",
                proxy_headers=False, timeout_keep_alive=_KEEP_ALIVE, timeout_graceful_shutdown=math.ceil(drain) + _PATIENCE,
            )
        )  # fmt: skip

    def stop(self) -> None:
        """Let what runs come to its end, and stop."""
        self.should_exit = True

    def until_stopped(self, sock: socket.socket) -> None:
        """Serve on a socket that listens.

        Raises:
            Exception: what made the engine fail, if anything did.
        """
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH)
        try:
            with many_files():
                self.run(sockets=[sock])
        finally:
            sys.setswitchinterval(interval)
        if self._app.desk is not None and self._app.desk.fault is not None:
            raise self._app.desk.fault

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours while the server runs; other threads than the first get none."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self._asked) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        self._events = asyncio.get_running_loop()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what runs come to its end, for a while."""
        if self._app.desk is not None:
            self._events.call_later(0.0 if self._at_once else self._drain, self._app.desk.abandon)
        await super().shutdown(sockets)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        again, self.should_exit = self.should_exit, True
        if again and not self._at_once and self._app.desk is not None and self._events is not None:
            self._events.call_soon_threadsafe(self._app.desk.abandon)
        self._at_once = again
        if self._on_signal is not None:
            self._on_signal(again)
