"""Experiments that only change traffic and load, asked of a server."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripted_server import Call, FakeServer, running
from typer.testing import CliRunner

pytest.importorskip("aiohttp")

from experiments.claims.registry import find
from experiments.claims.target import ASKED, Target, check_target, run_on
from experiments.cli import app
from workloads.errors import InputError


async def in_two_parts(call: Call) -> None:
    tokens = call.body["max_tokens"]
    await call.start()
    for part in (1, tokens - 1):
        await call.raw(f"data: {json.dumps(call.chunk(' w'))}\n\n".encode() * part)
        await asyncio.sleep(0.001)
    await call.event({"choices": [], "usage": call.usage(tokens)})
    await call.event("[DONE]")
    await call.end()


def test_an_experiment_of_the_load_runs_on_a_server() -> None:
    server = FakeServer(script=in_two_parts)
    with running(server):
        target = Target("http", "their-name", requests=20, base_url=server.url)
        result = run_on(target, find("operating-point"), True)
    assert result.ran_on.startswith(
        f"ran on a server: their-name at {server.url} (backend http); at most 20 requests a run"
    )
    assert target.runs == len(result.tables[0].rows) == 8
    assert {body["model"] for body in server.calls} == {"their-name"} and len(server.calls) == 8 * 21


def test_what_changes_the_engine_cannot() -> None:
    target = Target("http", base_url="http://127.0.0.1:9")
    for name in ASKED:
        check_target(target, find(name))
    with pytest.raises(InputError, match="only who runs the server can"):
        check_target(target, find("batching"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--backend", "http"], "needs the address of a server"),
        (["--backend", "torch", "--base-url", "http://x"], "backend torch asks no server"),
        (["--base-url", "http://x"], "is for a real model"),
        (["--backend", "httpx"], "unknown backend"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["experiment", "run", "lengths", *options])
    assert done.exit_code == 2 and words in done.stderr
