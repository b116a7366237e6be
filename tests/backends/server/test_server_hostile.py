"""Clients that send what no good client would: the server refuses, tells nobody of a fault, and goes on."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

pytest.importorskip("uvicorn", reason="the extra server is not installed")

from serving_harness import Client, eventually, made, running

from backends.server.asks import Ask
from backends.server.bodies import Completion, Detokenize, parsed
from backends.server.desk import Served
from backends.server.errors import ApiError
from backends.server.filler import filler
from backends.server.generating import LONG
from backends.server.loop import EngineLoop
from backends.server.upload import LEAST, PER_TOKEN, most_bytes
from backends.server.words import CountedWords

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return made(tmp_path_factory.mktemp("hostile"), speed=50.0)[0]


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Client]:
    with running(served) as client:
        yield client


def heads(port: int, data: bytes, *, end: bool) -> bytes:
    """What comes back for some bytes, until the server closes; `end`: the client says no more."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(data)
        if end:
            sock.shutdown(socket.SHUT_WR)
        received = b""
        while piece := sock.recv(65536):
            received += piece
        return received


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_who_hangs_up_before_the_body_is_whole_is_no_fault(
    client: Client, served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def counted() -> int:
        return sum(times for (about, _, _), times in served.meter.http.items() if about == path)

    before = counted()
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        assert (
            heads(client.port, f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{{".encode(), end=True)
            == b""
        )
        assert client.ask(path, b"{")[0] == 400  # it goes on
        eventually(lambda: counted() == before + 1)
    assert not caplog.records


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, "/tokenize"])
def test_a_body_without_end_is_refused(client: Client, path: str, chunked: bool) -> None:
    most = most_bytes(8192)
    assert most == LEAST > PER_TOKEN * 8192 and most_bytes(10_000_000) == 10_000_000 * PER_TOKEN
    head = "transfer-encoding: chunked" if chunked else f"content-length: {most + 1}"
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as sock:
        sock.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n".encode())
        if chunked:
            piece = b"%x\r\n%s\r\n" % (1 << 20, b" " * (1 << 20))
            for _ in range((most >> 20) + 1):
                sock.sendall(piece)
        assert b" 413 " in sock.recv(65536).partition(b"\r\n")[0]
    assert client.ask("/health")[0] == 200


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"repetition_penalty": float("inf")}, "finite"), ({"temperature": float("nan")}, "finite"),
        ({"top_k": 10**30}, "top_k"), ({"top_k": -2}, "top_k"), ({"priority": 10**30}, "priority"),
        ({"priority": -(10**30)}, "priority"), ({"stop": [f"{i}" for i in range(65)]}, "at most 64 texts"),
        ({"logit_bias": {"x": "y"}}, "logit_bias"), ({"prompt": [True]}, "token ids"), ({"prompt": [1.0]}, "token ids"),
        ({"prompt": [2**200]}, "token ids"), ({"prompt": [[1], "a"]}, "token ids"), ({"stream": "perhaps"}, "stream"),
    ],
)  # fmt: skip
def test_values_that_no_engine_could_hold_are_refused(client: Client, more: dict, words: str) -> None:
    status, told = client.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 2, **more})
    assert status == 400 and words in told["error"]["message"]


def test_an_error_is_short_however_long_what_was_sent(client: Client) -> None:
    for more in ({"model": "x" * 100_000}, {"prompt": [10**4000]}):
        status, told = client.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 2, **more})
        assert status in (400, 404) and len(told["error"]["message"]) <= 1000


def test_at_the_first_wrong_item_the_rest_is_not_looked_at() -> None:
    """Telling of each would take seconds for a long list, in which no stream goes on."""
    told: list[int] = []
    for kind, key, items in (
        (Completion, "prompt", ["a", 1] * 1000), (Completion, "prompt", [-1] * 1000), (Completion, "prompt", [["a"]] * 1000),
        (Completion, "stop", [1] * 1000), (Completion, "stop_token_ids", [-1] * 1000), (Detokenize, "tokens", [-1] * 1000),
    ):  # fmt: skip
        with pytest.raises(ValidationError) as found:
            kind.model_validate_json(json.dumps({"prompt": "x", key: items}))
        told.append(found.value.error_count())
    assert max(told) <= 5  # one for each way in which it could have been meant


def test_stops_are_looked_for_in_the_whole_answer_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine waits meanwhile, so nothing may be done again and again with all the text so far."""
    decoded: list[int] = []

    class Counting(CountedWords):
        def decode(self, ids: Sequence[int]) -> str:
            decoded.append(len(ids))
            return super().decode(ids)

    words = Counting()
    monkeypatch.setattr(served.side, "_words", words)
    assert served.side._stopped(77, 8000, 0, tuple(f"never{i}" for i in range(64))) == 0
    assert sum(decoded) <= 4 * len(words.fillers)
    text = words.decode([filler(words.fillers, 77, place) for place in range(300)])
    for place in (1, 7, 150, 298):
        stop = text[place * 4 - 2 : place * 4 + 2]  # ends within the token at `place`
        assert served.side._stopped(77, 300, 0, ("never", stop)) == (text.index(stop) + 3) // 4 + 1
    assert served.side._stopped(77, 300, 9, (text[4:8],)) in (0, *range(10, 301))


def test_long_texts_are_read_beside_the_streams(
    client: Client, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    encode = served.words.encode

    def noted(text: str, special: bool = True) -> list[int]:
        seen.append(threading.current_thread().name)
        return encode(text, special)

    monkeypatch.setattr(served.words, "encode", noted, raising=False)
    client.good(COMPLETIONS, {"prompt": "x", "max_tokens": 1})
    status, told = client.ask(COMPLETIONS, {"prompt": "x" * LONG, "max_tokens": 1})
    assert status == 400 and "context length" in told["error"]["message"]
    assert "tokenizer" not in seen[0] and "tokenizer" in seen[1]


def test_every_request_is_counted_once_when_it_comes_and_once_when_it_goes(tmp_path: Path) -> None:
    """Finished, refused, cancelled while it runs and cancelled while it is on its way to the engine."""
    served, _ = made(tmp_path, "engine.kv.capacity_tokens=4096", "engine.scheduler.max_num_seqs=2", speed=50.0)
    with running(served) as client:
        client.good(COMPLETIONS, {"prompt": ["a", "b", "c"], "max_tokens": 3})
        assert client.ask(COMPLETIONS, {"prompt": [7] * 5000, "max_tokens": 3})[0] == 400
        socks = [client.begin(COMPLETIONS, {"prompt": ["x"] * 3, "max_tokens": 2000}) for _ in range(4)]
        eventually(lambda: client.metric("vllm:num_requests_waiting") > 0)
        for sock in socks:
            sock.close()
        eventually(lambda: served.engine.state.idle and not served.meter.running)
        asked = client.metric("vllm:request_params_max_tokens_count")
        assert asked == sum(served.meter.finished_by.values()) == 16
        assert (
            served.meter.finished_by["error"] == served.meter.refusals == 1 and served.meter.finished_by["length"] >= 3
        )
        assert client.metric("vllm:kv_cache_usage_perc") == 0


def test_a_request_that_leaves_on_its_way_to_the_engine_is_counted(tmp_path: Path) -> None:
    served, _ = made(tmp_path)
    loop = EngineLoop(
        served.engine, served.side, served.clock, served.front, served.looks, served.meter, lambda letters: None
    )
    asks = [Ask([1], 4), Ask([2], 5)]
    for ask in asks:
        loop.ask(ask)
    loop.cancel(asks[0])
    loop._read()
    loop._cancel(0.0)
    assert [row for _, row, _ in loop._line] == [1]
    assert served.meter.finished_by["abort"] == 1 == served.meter.declared.counts[2]


def test_an_api_error_keeps_what_it_is_about() -> None:
    with pytest.raises(ApiError) as told:
        parsed(Completion, b'{"prompt": "x", "max_tokens": 0}')
    assert told.value.param == "max_tokens" and "…" in ApiError("x" * 2000).message


def test_a_body_that_is_not_whole_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """Who is still sending when requests under way have had their time is told that the server stops."""
    served, _ = made(tmp_path)
    with running(served) as client:
        sock = socket.create_connection(("127.0.0.1", client.port), timeout=20)
        sock.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{{".encode())
        eventually(lambda: client.server._app.desk.reading)
        client.server._drain = 0.0
        client.server.stop()
        received = b""
        while piece := sock.recv(65536):
            received += piece
        sock.close()
    assert received.startswith(b"HTTP/1.1 503 ") and b"the server is stopping" in received


def test_open_files_are_asked_for_while_it_serves(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= 512:
        pytest.skip("the system does not let it be raised")
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        with running(made(tmp_path)[0]):
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
