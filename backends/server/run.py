"""Running the server until somebody stops it."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from backends.server.app import App
from backends.server.desk import Served
from workloads.errors import InputError, Place

_BACKLOG = 2048
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


class _Server(uvicorn.Server):
    """Stops when it is asked to, without raising the signal again when it has: that is how a server ends.

    The first signal lets what runs come to its end, for as long as the configuration allows; the second stops at once.
    """

    on_signal: Callable[[bool], None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {each: signal.signal(each, self._asked) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        again = self.should_exit
        if self.on_signal is not None:
            self.on_signal(again)
        self.should_exit = True
        self.force_exit = again


def serve(
    served: Served, sock: socket.socket, *, drain: float = 30.0, on_signal: Callable[[bool], None] | None = None
) -> BaseException | None:
    """Serve until SIGINT or SIGTERM.

    Args:
        sock: which listens.
        drain: seconds that requests under way are given when the server is stopped.
        on_signal: called when it is asked to stop, with whether it was asked before.

    Returns:
        The fault that ended the engine, if one did.
    """
    server: _Server

    def stop() -> None:
        server.should_exit = True

    app = App(served, stop)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=max(1, round(drain)),
        server_header=False, ws="none",
    )  # fmt: skip
    server = _Server(config)
    server.on_signal = on_signal
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH)
    try:
        server.run(sockets=[sock])
    finally:
        sys.setswitchinterval(interval)
    return app.desk.fault if app.desk is not None else None
