"""What the tests of the server share: a simulated engine to serve, a server in a thread, and a client of the standard library."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backends.server.desk import Served
from backends.server.run import Server, listen
from experiments.resolve import Resolved, resolve
from experiments.serving import make_served, plan_of
from experiments.workload_file import parse_override

MODEL = "meta-llama/Meta-Llama-3-8B"
WORKLOAD = f"""
name: stand-in
model: {MODEL}
backend: {{name: sim, gpu: h100-sxm}}
engine: {{preset: vllm}}
"""
PATIENCE = 20.0  # seconds until a test gives up waiting for what must come


def made(folder: Path, *settings: str, speed: float = 1.0, text: str = WORKLOAD, **how: Any) -> tuple[Served, Resolved]:
    """A simulated engine that is ready to serve, and what it was made from."""
    file = folder / "workload.yaml"
    file.write_text(text, "utf-8")
    plan = plan_of(file, [parse_override(setting) for setting in settings])
    resolved = resolve(plan.workload)
    return make_served(plan, resolved, speed=speed, **how), resolved


@contextmanager
def running(served: Served) -> Iterator[Client]:
    """A server of it in a thread, on a free port; stopped at the end."""
    sock = listen("127.0.0.1", 0)
    server = Server(served, drain=2.0)
    faults: list[BaseException] = []

    def serve() -> None:
        try:
            server.until_stopped(sock)
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=serve)
    client = Client(sock.getsockname()[1], faults, server)
    thread.start()
    try:
        eventually(lambda: server.started)
        yield client
    finally:
        server.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def eventually(holds: Callable[[], Any]) -> Any:
    """Wait until something is so, and return it."""
    end = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < end, "what was waited for never came"
        time.sleep(0.005)
    return found


class Client:
    """Asks a server, a connection for each request.

    Attributes:
        faults: what ended the server, if anything did.   server: the server itself.
    """

    def __init__(self, port: int, faults: list[BaseException], server: Server | None = None) -> None:
        self.port, self.faults, self.server = port, faults, server

    def ask(self, path: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
        """Status, and the body: JSON where it is some."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method or ("GET" if body is None else "POST"), path, data)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, json.loads(text) if text.startswith(("{", "[")) else text

    def good(self, path: str, body: Any = None) -> Any:
        """The body of an answer that must be good."""
        status, told = self.ask(path, body)
        assert status == 200, told
        return told

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream, without the last, which must be `[DONE]`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("POST", path, json.dumps({**body, "stream": True}).encode())
        response = connection.getresponse()
        assert response.status == 200 and response.headers["content-type"].startswith("text/event-stream")
        *events, done, end = response.read().decode().split("\n\n")
        connection.close()
        assert done == "data: [DONE]" and end == ""
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def begin(self, path: str, body: dict[str, Any]) -> socket.socket:
        """Send a request and read nothing of its answer."""
        data = json.dumps(body).encode()
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.sendall(f"POST {path} HTTP/1.1\r\nhost: here\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        return sock

    def metric(self, name: str, **labels: str) -> float:
        """One figure of `/metrics`."""
        from prometheus_client.parser import text_string_to_metric_families

        found = [
            sample.value
            for family in text_string_to_metric_families(self.good("/metrics"))
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) == 1, (name, labels, found)
        return found[0]
