"""A small OpenAI-compatible server whose every word is scripted, for tests of the client."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Script = Callable[["Call"], Awaitable[None]]


@dataclass
class Call:
    """A request that came, and the connection to answer it on."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    writer: asyncio.StreamWriter
    server: FakeServer

    async def json(self, value: Any, status: int = 200) -> None:
        """A whole answer."""
        text = (value if isinstance(value, str) else json.dumps(value)).encode()
        self.writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n".encode()
            + text
        )
        await self.writer.drain()

    async def start(self) -> None:
        """The head of a stream."""
        self.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        """Bytes of a stream, as one packet."""
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def event(self, value: Any) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        await self.raw(f"data: {text}\n\n".encode())

    async def end(self) -> None:
        """The end of a stream."""
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def chunk(self, text: str, **more: Any) -> dict:
        """A chunk of a completion or of a chat."""
        chat = "chat" in self.path
        choice = {"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}
        return {"choices": [{**choice, "finish_reason": None}], **more}

    @property
    def prompt_text(self) -> str:
        body = self.body
        if "messages" in body:
            return "".join(f"<{m['role']}> {m['content']} <end>" for m in body["messages"]) + " <go>"
        prompt = body["prompt"]
        return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))

    def usage(self, tokens: int) -> dict:
        prompt = self.server.count(self.prompt_text)
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


async def answer(call: Call) -> None:
    """As a good server does: as many words as asked for, a chunk each, then the usage where it is wanted."""
    tokens = call.body.get("max_tokens", 16)
    await call.start()
    if "chat" in call.path:
        await call.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    if call.server.gap:
        for number in range(tokens):
            await asyncio.sleep(call.server.gap)
            await call.event(call.chunk(f" w{number}"))
    else:
        events = [f"data: {json.dumps(call.chunk(f' w{number}'))}\n\n" for number in range(tokens)]
        await call.raw("".join(events).encode())
    if (call.body.get("stream_options") or {}).get("include_usage"):
        await call.event({"choices": [], "usage": call.usage(tokens)})
    await call.event("[DONE]")
    await call.end()


@dataclass
class FakeServer:
    """What it does.

    Attributes:
        script: what it does with a completion.   models: what /v1/models says; None = 404.
        tokenize: whether it has /tokenize.   gap: seconds between tokens.   count: tokens of a text; a token a word, one before.
        metrics: the text of /metrics.   tls: a file with a key and its certificate; None = no TLS.
        context: told beside the models.   calls: bodies of completions so far.   seen: paths so far.
    """

    script: Script = answer
    models: list[str] | None = field(default_factory=lambda: ["served"])
    tokenize: bool = True
    gap: float = 0.0
    count: Callable[[str], int] = lambda text: 1 + len(text.split())
    context: int | None = 8192
    calls: list[dict] = field(default_factory=list)
    headers: list[dict] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    metrics: str = ""
    tls: Path | None = None
    at_once: int = 0
    most_at_once: int = 0
    url: str = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                try:
                    await self._one(Call(method, path, headers, json.loads(body) if body else None, writer, self))
                finally:
                    self.at_once -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _one(self, call: Call) -> None:
        self.seen.append(call.path)
        self.headers.append(call.headers)
        if call.path == "/v1/models" and self.models is not None:
            rows = [{"id": name, "max_model_len": self.context} for name in self.models]
            await call.json({"object": "list", "data": rows})
        elif call.path == "/version":
            await call.json({"version": "0.1-fake"})
        elif call.path == "/metrics" and self.metrics:
            await call.json(self.metrics)
        elif call.path == "/tokenize" and self.tokenize:
            await call.json({"count": self.count(call.prompt_text)})
        elif call.path in ("/v1/completions", "/v1/chat/completions"):
            self.calls.append(call.body)
            await self.script(call)
        else:
            await call.json({"detail": "Not Found"}, 404)


@contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    """The server on a free port, in a thread of its own."""
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()

    async def main() -> None:
        context = None
        if server.tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(server.tls)
        listening = await asyncio.start_server(server._serve, "127.0.0.1", 0, backlog=2048, ssl=context)
        server.url = f"{'https' if context else 'http'}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        started.set()
        await stop.wait()
        listening.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    started.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
