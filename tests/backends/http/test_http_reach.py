"""Reaching a server: addresses, TLS, keys, and what is said where it is not the server that was meant."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from scripted_server import Call, FakeServer, answer, running
from test_http_run import SYNTHETIC, run, workload

pytest.importorskip("aiohttp")

from backends.http.client import Access
from experiments import runner
from workloads.errors import TargetError

OWN = Path(__file__).with_name("self_signed.pem")


def refusal(server: FakeServer, folder: Path, address: str = "", **backend: object) -> str:
    """What is said when a server cannot be used; `address` stands for its own."""
    with running(server), pytest.raises(TargetError) as caught:
        address = address.format(port=server.url.rsplit(":", 1)[1])
        runner.resolve(workload(server, folder, backend={**backend, **({"base_url": address} if address else {})}))
    return str(caught.value)


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/", "/v1/models", "/v1/completions", "/v1/chat/completions/"])
def test_an_address_may_end_anywhere_under_v1(tail: str) -> None:
    assert Access(f"http://host:1{tail}").root == "http://host:1"
    assert Access(f"http://host:1/team/llm{tail}").root == "http://host:1/team/llm"
    assert Access("http://host:1/v1x").root == "http://host:1/v1x"


def test_a_certificate_of_ones_own(tmp_path: Path) -> None:
    """It is not trusted unless told to be, and the words say how; then a run goes through."""
    said = refusal(FakeServer(tls=OWN), tmp_path)
    assert "cannot reach https://127.0.0.1" in said and "its certificate is not trusted: self" in said
    assert "backend.verify_tls: false" in said and "SSL_CERT_FILE" in said
    data = run(FakeServer(tls=OWN), tmp_path, backend={"verify_tls": False})
    assert set(data.requests.status) == {"finished"}


def test_a_certificate_authority_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aiohttp = pytest.importorskip("aiohttp")
    import ssl

    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", ssl.create_default_context(cafile=str(OWN)))
    data = run(FakeServer(tls=OWN), tmp_path)
    assert set(data.requests.status) == {"finished"}


def test_http_where_tls_is_spoken_and_the_other_way_round(tmp_path: Path) -> None:
    class Plain(FakeServer):
        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)  # as servers do on what is no HTTP
            writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
            writer.close()

    said = refusal(Plain(), tmp_path, "https://127.0.0.1:{port}")
    assert "no TLS there" in said and "is it http://?" in said and "not permitted" not in said
    assert "is it https://?" in refusal(FakeServer(tls=OWN), tmp_path, "http://127.0.0.1:{port}")


def test_who_does_not_answer(tmp_path: Path) -> None:
    class Mute(FakeServer):
        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

    assert "cannot reach http://127.0.0.1" in (said := refusal(Mute(), tmp_path, timeout="0.2s"))
    assert said.endswith("no answer in time")


def test_what_is_not_the_address_of_such_a_server(tmp_path: Path) -> None:
    said = refusal(FakeServer(), tmp_path, "http://127.0.0.1:{port}/api")
    assert "/v1/models: HTTP 404" in said and "is that its address?" in said and "backend.model=NAME" in said


@pytest.mark.parametrize("status", [401, 403])
def test_who_refuses_a_key_at_the_first_request(tmp_path: Path, status: int) -> None:
    async def locked(call: Call) -> None:
        await call.json({"error": {"message": "no key"}}, status)

    said = refusal(FakeServer(script=locked), tmp_path)
    assert f"refuses requests: {status} no key (backend.api_key_env names the variable that holds the key)" in said


def test_a_server_without_completions_is_asked_as_chat(tmp_path: Path) -> None:
    async def chat_only(call: Call) -> None:
        if "chat" not in call.path:
            return await call.json({"detail": "Not Found"}, 404)
        return await answer(call)

    server = FakeServer(script=chat_only)
    data = run(server, tmp_path)
    assert set(data.requests.status) == {"finished"} and data.host["client"]["endpoint"] == "/v1/chat/completions"
    assert data.config["backend"]["endpoint"]["value"] == "chat"
    assert any("no completions: prompts are sent as chat" in each for each in data.warnings)
    assert (data.client.counted_input == data.requests.input_tokens).all()
    assert "404 Not Found" in refusal(FakeServer(script=chat_only), tmp_path, endpoint="completions")


def test_a_model_that_is_not_served_is_no_reason_to_ask_as_chat(tmp_path: Path) -> None:
    async def picky(call: Call) -> None:
        await call.json({"error": {"message": "no model of that name at " + call.path}}, 404)

    assert "no model of that name at /v1/completions" in refusal(FakeServer(script=picky), tmp_path, model="nope")


def test_a_server_that_does_not_stream(tmp_path: Path) -> None:
    async def whole(call: Call) -> None:
        await call.json({"choices": [{"text": " a b", "finish_reason": "length"}], "usage": call.usage(2)})

    said = refusal(FakeServer(script=whole), tmp_path)
    assert "gives no stream: the answer came in one piece, not as a stream" in said and "choices" not in said


def test_a_stream_that_is_cut_is_told_in_words(tmp_path: Path) -> None:
    async def cut(call: Call) -> None:
        if len(call.server.calls) == 1:
            return await answer(call)
        await call.start()
        await call.event(call.chunk(" a"))
        return call.writer.close()

    data = run(FakeServer(script=cut), tmp_path)
    assert set(data.requests.reason) == {"cut: the connection was closed in the middle of the answer"}


def test_requests_that_are_too_long_for_the_server_are_told_before(tmp_path: Path) -> None:
    server = FakeServer(context=30)
    data = run(server, tmp_path)
    asked = data.requests.input_tokens + data.requests.target_tokens
    (told,) = [each for each in data.warnings if "it will refuse them" in each]
    assert told.startswith(
        f"{int((asked > 30).sum())} of {SYNTHETIC['requests']} requests have more than the 30 tokens"
    )
