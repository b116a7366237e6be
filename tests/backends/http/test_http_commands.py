"""Commands on a server: exit codes, and experiments that only change traffic and load."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from scripted_server import Call, FakeServer, answer, running
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
        (["--backend", "sim", "--base-url", "http://x"], "is for a real model"),
        (["--backend", "httpx"], "unknown backend"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["experiment", "run", "lengths", *options])
    assert done.exit_code == 2 and words in done.stderr


def small_workload(folder: Path, **more: object) -> Path:
    """A file that simulates three requests, until it is told of a server."""
    file = folder / "w.yaml"
    traffic = {"synthetic": {"requests": 3, "input_tokens": 8, "output_tokens": 2}}
    whole = {"model": "meta-llama/Meta-Llama-3-8B", "backend": {"name": "sim", "gpu": "l4"}, "traffic": traffic}
    file.write_text(json.dumps(whole | more))
    return file


def test_an_address_is_enough(tmp_path: Path) -> None:
    """`--base-url` means backend http, for whatever runs a workload; one that is named otherwise wins."""
    file, baseline = small_workload(tmp_path), str(tmp_path / "base.json")
    with running(FakeServer()) as server:
        for command in (
            ["run", "--out", str(tmp_path / "run")],
            ["sweep", "--set", "load.mode=closed", "--over", "load.concurrency=1,2", "--out", str(tmp_path / "sweep")],
            ["gate", "--baseline", baseline, "--update"],
            ["gate", "--baseline", baseline, "--other-target", "--out", str(tmp_path / "gate")],
        ):
            before = len(server.calls)
            done = CliRunner().invoke(app, [command[0], str(file), "--base-url", server.url, *command[1:]])
            assert done.exit_code in (0, 1), done.output  # a gate may well find two runs of 3 requests different
            assert len(server.calls) > before, command
        before = len(server.calls)
        for option in (["--backend", "sim"], ["--set", "backend.name=sim"]):
            done = CliRunner().invoke(
                app, ["run", str(file), "--base-url", server.url, "--out", str(tmp_path / option[1]), *option]
            )
            assert done.exit_code == 0 and len(server.calls) == before
    done = CliRunner().invoke(app, ["gate", str(tmp_path / "run"), "--base-url", server.url, "--baseline", baseline])
    assert done.exit_code == 2 and "options cannot change" in done.stderr


def test_exit_codes_of_a_run(tmp_path: Path) -> None:
    """0 good, 3 when every request failed; the run is kept either way."""
    file = small_workload(tmp_path)

    async def busy(call: Call) -> None:
        if call.server.calls[1:]:
            return await call.json({"error": {"message": "overloaded"}}, 429)
        return await answer(call)

    for script, code in ((answer, 0), (busy, 3)):
        with running(FakeServer(script=script)) as server:
            options = ["--backend", "http", "--base-url", server.url, "--out", str(tmp_path / str(code))]
            done = CliRunner().invoke(app, ["run", str(file), *options])
        assert done.exit_code == code, done.output
        assert (tmp_path / str(code) / "client.parquet").is_file()
    assert "no request finished; most often: status: 429 overloaded" in done.stderr
    assert "Prompt tokens, counted by the server" in CliRunner().invoke(app, ["report", str(tmp_path / "0")]).stdout


def test_a_sweep_whose_server_dies_says_so_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    """A point that lost its server counts as run, with a warning, and is run again; exit code 3 where none was reached."""
    file, out = small_workload(tmp_path), str(tmp_path / "sweep")

    async def dying(call: Call) -> None:
        if len(call.server.calls) in (6, 7):  # of the second point: a check before each, then its three requests
            return call.writer.close()
        return await answer(call)

    with running(FakeServer(script=dying)) as server:
        command = ["sweep", str(file), "--base-url", server.url, "--set", "load.mode=closed", "--out", out]
        command += ["--over", "load.concurrency=1,2", "--set", "backend.prompts=ids"]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert "warning: concurrency 2: 2 of 3 requests failed (most often cut: " in done.stdout.replace("\n", " ")
        page = (tmp_path / "sweep" / "report.html").read_text("utf-8")
        assert "2 of 3 requests failed" in page and f"<span>server</span>{server.url}" in page
        assert "2 of 3 requests failed" in json.loads((tmp_path / "sweep" / "sweep.json").read_text())["warnings"][0]
        again = CliRunner().invoke(app, command)
    assert again.exit_code == 0 and "1 of 2 points were there already" in again.stdout
    assert "requests failed" not in again.stdout
    gone = CliRunner().invoke(app, [*command, "--overwrite"])
    assert gone.exit_code == 3 and "every point failed; the first: cannot reach" in gone.stderr


def test_a_sweep_in_which_nothing_finishes(tmp_path: Path) -> None:
    async def busy(call: Call) -> None:
        if call.body["max_tokens"] == 2 and "Go on" not in str(call.body["prompt"]):
            return await call.json({"error": {"message": "overloaded"}}, 503)
        return await answer(call)

    with running(FakeServer(script=busy)) as server:
        command = ["sweep", str(small_workload(tmp_path)), "--base-url", server.url, "--out", str(tmp_path / "sweep")]
        done = CliRunner().invoke(app, [*command, "--over", "seed=1,2"])
    assert done.exit_code == 3 and "no request of any point finished" in done.stderr


def test_failures_are_told_where_runs_are_compared_and_become_baselines(tmp_path: Path) -> None:
    async def shedding(call: Call) -> None:
        if len(call.server.calls) == 3:
            return await call.json({"error": {"message": "too many"}}, 429)
        return await answer(call)

    file = small_workload(tmp_path)
    for name, script in (("good", answer), ("bad", shedding)):
        with running(FakeServer(script=script)) as server:
            out = ["--out", str(tmp_path / name), "--set", "backend.prompts=ids"]
            assert CliRunner().invoke(app, ["run", str(file), "--base-url", server.url, *out]).exit_code == 0
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "good"), str(tmp_path / "bad"), "--json"])
    assert "of 'bad' 1 of 3 requests failed: its figures are of the others" in json.loads(done.stdout)["notes"]
    gate = ["gate", "--baseline", str(tmp_path / "base.json"), "--update"]
    done = CliRunner().invoke(app, [*gate, str(tmp_path / "bad")])
    assert "warning: 1 of 3 requests failed in w; against this baseline as many may" in done.stderr
    assert "warning" not in CliRunner().invoke(app, [*gate, str(tmp_path / "good")]).stderr
