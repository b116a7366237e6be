"""Servers that answer as none should: each request has an end with a reason, and nothing that a server says raises."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from collections import Counter
from pathlib import Path

import pytest
from scripted_server import Call, FakeServer, answer
from test_http_run import SYNTHETIC, run

pytest.importorskip("aiohttp")

from backends.http import client as client_module
from backends.http import events as events_module
from backends.http.answer import BROKEN, CONNECT, CUT, EMPTY, MOST_ANSWER, STATUS, STREAM, Answer, Reader, message_of
from backends.http.client import Access, Client
from backends.http.events import DONE, EventStream, EventTooLong
from backends.http.metrics import Watch, parse
from backends.http.server import look
from backends.http.tokens import CHUNKS, USAGE, source_of, tokens_of_chunks, total_of
from workloads.errors import TargetError

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def chunk(text: object, **more: object) -> str:
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": None}], **more})


def delta(**said: object) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": said, "finish_reason": None}]})


def sse(*said: str) -> bytes:
    return "".join(f"data: {each}\n\n" for each in (*said, "[DONE]")).encode()


GOOD = sse(chunk("é"), chunk("✓✓"), chunk("🙂"))


def answered(said: bytes, *, split: int = 0, timeout: float = 20.0) -> Answer:
    """What the client makes of what a server says, as it is or in pieces of `split` bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for at in range(0, len(said), split or len(said) or 1):
                writer.write(said[at : at + (split or len(said))])
                await writer.drain()
                await asyncio.sleep(0)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def ask() -> Answer:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Access(address, timeout=timeout)) as client:
            return await client.stream("/v1/completions", b"{}", Answer(0, 0.0), keep=True)

    return asyncio.run(ask())


def page(status: str, kind: str, body: bytes, more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body


@pytest.mark.parametrize("split", [0, 1, 7])
@pytest.mark.parametrize(
    "said",
    [
        GOOD, GOOD.replace(b"\n", b"\r\n"), GOOD.replace(b"\n", b"\r"), b"\xef\xbb\xbf" + GOOD, GOOD.replace(b"data: ", b"data:"),
        b": ping\n\nevent: x\nid: 1\nretry: 5\n" + GOOD, GOOD[:-2], GOOD.replace(b"[DONE]", b" [DONE] "),
    ],
    ids=["lf", "crlf", "cr", "mark of the byte order", "no blank", "other fields", "no empty line", "blanks"],
)  # fmt: skip
def test_a_stream_is_the_same_however_it_is_written_and_comes(said: bytes, split: int) -> None:
    got = answered(HEAD + said, split=split)
    assert got.good and got.text == "é✓✓🙂" and list(got.sizes) == [1, 2, 1]


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (page("200 OK", "application/json", b'{"error": {"message": "nope"}}'), BROKEN, "no stream but nope"),
        (page("200 OK", "application/problem+json", b'{"detail": "nope"}'), BROKEN, "no stream but nope"),
        (page("200 OK", "text/html", b"<html><title>Log in</title>"), BROKEN, "no stream but Log in"),
        (page("200 OK", "text/plain", b"upstream is down"), BROKEN, "no stream but upstream is down"),
        (page("200 OK", "application/json", b'{"choices": [{"text": "a"}]}'), BROKEN, "in one piece"),
        (page("429 No", "x", b'{"error": {"message": "slow down"}}', "retry-after: 9\r\n"), STATUS, "429 slow down"),
        (page("500 No", "x", b"oh").replace(b": 2", b": 99") + b" no", STATUS, "500 No"),
        (page("503 No", "x", bytes(range(1, 127))), STATUS, "503 ???"),
        (page("500 No", "x", b"\x1b[31mred"), STATUS, "500 ?[31mred"),
        (page("301 X", "x", b"", "location: https://there/\r\n"), STATUS, "301 moved to https://there/"),
        (page("307 X", "x", b"", "location: /again\r\nconnection: close\r\n"), BROKEN, "without end"),
        (b"HTTP/1.1 204 X\r\n\r\n", CUT, ""), (HEAD, CUT, ""), (HEAD + b": ping\n\n", CUT, ""), (b"", CUT, "before an answer"),
        (b"\0\1\2 nonsense\r\n\r\n", BROKEN, "status line"),
        (HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + GOOD, CUT, ""),
        (HEAD.replace(b"close", b"close\r\ncontent-length: 9999") + GOOD[:40], CUT, "in the middle"),
    ],
)  # fmt: skip
def test_what_is_no_stream_has_a_reason(said: bytes, kind: str, words: str, split: int) -> None:
    got = answered(said, split=split)
    assert got.kind == kind and words in got.reason and not math.isnan(got.end) and "\x1b" not in got.reason


@pytest.mark.parametrize(
    "head", [HEAD.replace(b"text/event-stream", kind) for kind in (b"application/json", b"x/y", b";;/\xff")]
)
def test_a_stream_is_one_whatever_it_is_called(head: bytes) -> None:
    assert answered(head + GOOD).text == "é✓✓🙂"


def test_a_stream_that_is_compressed_unasked() -> None:
    head = HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
    assert answered(head + gzip.compress(GOOD)).text == "é✓✓🙂"


def test_an_event_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "LONGEST", 1000)
    got = answered(HEAD + b"data: " + b"x" * 5000)
    assert got.kind == BROKEN and "an event of more than 1,000 bytes" in got.reason
    stream = EventStream()
    with pytest.raises(EventTooLong):
        for _ in range(300):
            stream.feed(b"data:\n")  # lines of one event
    stream = EventStream()
    assert sum(len(stream.feed(b"data: 0123456789\n\n")) for _ in range(1000)) == 1000


def test_pieces_of_a_long_line_are_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at every piece anew, which would take time with the square of its length."""
    stream = EventStream()
    for _ in range(500):
        assert stream.feed(b"data: x" if not stream._begun else b"x") == []
    assert len(stream._rest) == 500 and stream.feed(b"\n\n") == [b"x" * 500]


@pytest.mark.parametrize(
    "event",
    [
        "[1]", "1", "null", '"x"', "{", "[" * 100_000, '{"x": ' + "9" * 5000 + "}", '{"choices": 5}', '{"choices": "abc"}',
        '{"choices": {"a": 1}}', '{"choices": [1]}', '{"choices": [null]}', chunk(5), chunk(True), chunk([1]), chunk(["a"]),
        delta(content=5), delta(reasoning_content=5), delta(tool_calls="x"), delta(tool_calls=[1]), delta(tool_calls=3),
        delta(tool_calls=[{"function": "x"}]), '{"choices": [{"delta": "x"}]}', '{"choices": [{"delta": []}]}', "[done]",
    ],
)  # fmt: skip
def test_a_chunk_of_another_shape_is_not_understood(event: str) -> None:
    got = Answer(0, 0.0)
    reader = Reader(got, keep=True)
    for each in (event.encode(), chunk("a").encode(), DONE):
        reader.take(each, 1.0)
    reader.finish(2.0)
    assert got.kind == BROKEN and len(got.reason) < 250


@pytest.mark.parametrize(
    ("event", "size", "text"),
    [
        (delta(content=[{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]), 3, "abc"), (delta(content=None), 0, ""),
        (delta(role="assistant"), 0, ""), (delta(tool_calls=[{"function": {"name": "f", "arguments": "{}"}}]), 3, ""),
        (delta(tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}]), 9, ""), (delta(reasoning="hm"), 2, ""),
        ('{"choices": null}', 0, ""), (chunk("a", usage=None), 1, "a"), ('{"choices": [{"text": "a", "logprobs": NaN}]}', 1, "a"),
    ],
)  # fmt: skip
def test_what_is_generated_in_a_chunk(event: str, size: int, text: str) -> None:
    got = Answer(0, 0.0)
    reader = Reader(got, keep=True)
    reader.take(event.encode(), 1.0)
    reader.finish(2.0)
    assert sum(got.sizes) == size and got.text == text and got.kind in (CUT, EMPTY)


def test_bytes_that_are_no_unicode_are_replaced() -> None:
    assert answered(HEAD + sse("@").replace(b"@", b'{"choices": [{"text": "a\xff"}]}')).text == "a\ufffd"


@pytest.mark.parametrize(
    "event",
    [
        '{"error": {"message": "boom"}}', '{"error": "boom"}', '{"error": "boom", "choices": [{"text": "a"}]}',
        '{"object": "error", "message": "boom"}', '{"message": "boom"}', '{"detail": "boom"}',
    ],
)  # fmt: skip
def test_an_error_in_a_stream_in_the_forms_that_servers_give_it(event: str) -> None:
    got = answered(HEAD + sse(chunk("a"), event))
    assert (got.kind, got.reason) == (STREAM, f"{STREAM}: boom") and len(got.times) == 1


def test_errors_within_errors() -> None:
    for said in ('{"error":' * 900 + "1" + "}" * 900, "[" * 100_000, b"\xff\xfe", '{"error": {"error": {}}}'):
        assert 0 < len(message_of(said)) <= 200
    assert message_of({"error": "a\x1b[31m\n b\u202e"}) == "a?[31m b?"


@pytest.mark.parametrize("told", [0, "x", True, [], [1], {}])
@pytest.mark.parametrize("each", [False, True])
def test_a_usage_that_is_none_counts_nothing(told: object, each: bool) -> None:
    events = (
        [chunk("a", usage=told), chunk("b", usage=told)] if each else [chunk("a"), chunk("b"), chunk("", usage=told)]
    )
    got = answered(HEAD + sse(*events))
    assert got.good and source_of(got) == CHUNKS and total_of(got) == 2


@pytest.mark.parametrize("count", ["3", -1, True, 2.0, None, 10**12, 10**30, 0])
@pytest.mark.parametrize("each", [False, True])
def test_a_count_that_cannot_be_one_is_none(count: object, each: bool) -> None:
    """0 is none for an answer with text; more than any context is a server that counts something else."""
    usage = {"completion_tokens": count, "prompt_tokens": count, "prompt_tokens_details": {"cached_tokens": count}}
    events = [chunk("a", usage=usage if each else None), chunk("b", usage=usage)]
    got = answered(HEAD + sse(*events))
    assert got.good and source_of(got) == CHUNKS and tokens_of_chunks(got).tolist() == [1, 1]
    assert got.prompt_tokens in (-1, 0) and got.cached_tokens in (-1, 0)


def test_the_largest_count_is_one() -> None:
    got = answered(HEAD + sse(chunk("a"), json.dumps({"choices": [], "usage": {"completion_tokens": MOST_ANSWER}})))
    assert source_of(got) == USAGE and tokens_of_chunks(got).tolist() == [MOST_ANSWER]


def test_a_page_without_end_is_read_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_LONGEST_PAGE", 1000)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n" + b"x" * 5000)

    async def ask() -> tuple[int, object]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Access(address)) as client:
            return await client.get("/metrics")

    assert asyncio.run(ask()) == (200, "x" * 1000)


def test_figures_without_sense_are_left_out() -> None:
    text = (
        'vllm:cache_config_info{block_size="²",num_gpu_blocks="3"} 1\nvllm:num_preemptions_total %s\n'
        "vllm:num_requests_running NaN\nsglang:max_total_num_tokens NaN\n"
    )
    assert parse(text % 1)[1] is None
    assert parse("vllm:cache_config_info{" + "a" * 100_000 + "} 1")[1] is None  # in no time
    watch = Watch()
    watch.note(0.0, text % 1)
    watch.note(1.0, text % "+Inf")
    assert watch.gained() == {}


@pytest.mark.parametrize(
    ("address", "header", "words"),
    [
        ("http://" + "a" * 64 + ".com", "x", "idna"), ("http://[::1", "x", "no address"), ("http://x:99999", "x", "no address"),
        ("", "a\r\nb: c", "header"), ("http://[::1]:1", "x", ""), ("http://nowhere.invalid", "x", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_told(address: str, header: str, words: str) -> None:
    async def ask() -> Answer:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        here = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Access(address or here, headers={"x": header})) as client:
            with pytest.raises(TargetError, match="(?i)cannot reach .*" + words):
                await look(client)
            return await client.stream("/v1/completions", b"{}", Answer(0, 0.0))

    got = asyncio.run(ask())
    assert got.kind in (CONNECT, BROKEN) and words in got.reason.lower()


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("load", [{"mode": "open"}, {"mode": "closed", "concurrency": 5}])
def test_every_request_of_a_run_has_one_end(tmp_path: Path, load: dict, turns: int) -> None:
    """Whatever a server does: what it answered well is finished, the rest has failed or, after a failed turn, was not sent."""
    bad = ["[1]", chunk(5), "{", '{"error": "[/red]"}', "[" * 100_000, chunk("a", usage="x")[:-9]]
    answers = [answer, answer, *bad, 429, answer, "cut", answer, answer, answer]
    given: list[object] = []

    async def any_of_them(call: Call) -> None:
        if len(call.server.calls) == 1:  # the question what it takes
            return await answer(call)
        what = answers[len(given) % len(answers)]
        given.append(what)
        await asyncio.sleep(0.01)
        if what is answer:
            return await answer(call)
        if what == 429:
            return await call.json({"error": {"message": "[/red]"}}, 429)
        await call.start()
        await call.event(call.chunk("a") if what == "cut" else str(what))
        return call.writer.close() if what == "cut" else await call.end()

    server = FakeServer(script=any_of_them)
    synthetic = {**SYNTHETIC, "requests": 60, **({"sessions": {"turns": turns}} if turns > 1 else {})}
    data = run(server, tmp_path, traffic={"synthetic": synthetic}, load=load)
    count = Counter(data.requests.status)
    assert count["finished"] == given.count(answer) and count["failed"] == len(given) - given.count(answer)
    assert count.total() == 60 and count["refused"] == 60 - len(given) and (not count["refused"] or turns > 1)
    assert load["mode"] == "open" or server.most_at_once == 5
    assert (data.requests.first_token >= data.requests.sent)[data.requests.status == "finished"].all()
