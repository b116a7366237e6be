"""`bench serve`: what it prints, how it ends, what it refuses."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("uvicorn", reason="the extra server is not installed")

from serving_harness import MODEL, PATIENCE, WORKLOAD, Client

from backends.server import extra
from experiments.cli import app

TRAFFIC = """
traffic:
  trace: {path: not-here.csv}
load: {mode: closed, concurrency: 4}
sweep: {load.concurrency: [1, 2]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD, "utf-8")
    return path


@contextmanager
def started(file: Path, *options: str) -> Iterator[tuple[subprocess.Popen, Client, str]]:
    """A server in a process of its own: the process, a client, and what was printed until it served."""
    command = [
        sys.executable,
        "-c",
        "from experiments.cli import main; main()",
        "serve",
        str(file),
        "--port",
        "0",
        *options,
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        printed = ""
        for line in process.stdout:
            printed += line
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/v1", line):
                yield process, Client(int(found[1]), []), printed
                break
        else:
            raise AssertionError(printed + process.stderr.read())
    finally:
        process.kill()
        process.communicate()


def test_it_prints_its_plan_serves_and_ends_well(file: Path) -> None:
    with started(file, "--speed", "50") as (process, client, printed):
        lines = printed.splitlines()
        assert len(lines) <= 14 and lines[0].startswith("run ") and MODEL in lines[-1]
        assert "answers are filler words; 4 bytes of text are a token" in printed and "50 simulated seconds" in printed
        assert client.good("/v1/completions", {"prompt": "x", "max_tokens": 3})["usage"]["completion_tokens"] == 3
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0 and said.startswith("stopping; requests under way have 30 s")


def test_what_runs_may_end_when_it_is_stopped(file: Path) -> None:
    with started(file) as (process, client, _):
        sock = client.begin("/v1/completions", {"prompt": "x", "max_tokens": 60, "stream": True})
        told = sock.recv(1 << 16)  # the first tokens are out
        process.send_signal(signal.SIGTERM)
        while part := sock.recv(1 << 16):
            told += part
        assert told.count(b'"text"') == 60 and b"[DONE]" in told
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0


def test_asked_twice_it_stops_at_once(file: Path) -> None:
    with started(file) as (process, client, _):
        sock = client.begin("/v1/completions", {"prompt": "x", "max_tokens": 8000, "stream": True})
        sock.recv(1 << 16)
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline().startswith("stopping;")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0 and "stopping at once" in said
        sock.close()


def test_traffic_and_load_have_no_effect_and_that_is_told(file: Path) -> None:
    file.write_text(WORKLOAD + TRAFFIC)
    with started(file) as (_, _, printed):
        assert "note: traffic and load and sweep have no effect: clients bring the load" in printed


def test_a_port_in_use_is_told(file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(app, ["serve", str(file), "--port", str(port)])
    assert done.exit_code == 2 and f"port {port} of 127.0.0.1 is in use" in done.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "no.such.host.invalid"], "no such address: no.such.host.invalid"),
        (["--set", "engine.scheduler.max_num_seq=3"], "did you mean max_num_seqs"),
        (["--set", "model=gpt-17"], "gpt-17"),
        (["--speed", "0"], "--speed"),
    ],
)
def test_what_is_wrong_is_told(file: Path, options: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["serve", str(file), "--port", "0", *options])
    assert done.exit_code == 2 and words in done.output


def test_the_extra_is_named_where_it_is_missing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name == "uvicorn" else object())
    done = CliRunner().invoke(app, ["serve", str(file)])
    assert done.exit_code == 2
    assert "bench serve needs uvicorn, which is not installed (pip install 'twinserve[server]')" in done.output


def test_a_stand_in_does_without_torch_and_the_like() -> None:
    code = (
        "import sys, backends.server.run, backends.server.simulated, experiments.serving;"
        "print([m for m in ('torch', 'transformers', 'pandas', 'matplotlib', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3], check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
