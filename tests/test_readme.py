"""README.md tells the truth: its commands print what it shows, its code runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.workload_file import load_workload
from tests.readme_commands import README, ROOT, TRACES, agrees, blocks, run

TEXT = README.read_text("utf-8")
RENEW = "renew it: python tests/readme_commands.py"


def code(language: str, word: str) -> str:
    """The one block of that language with this word in it."""
    (found,) = [block for block in re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL) if word in block]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("commands", blocks(TEXT), ids=lambda commands: " ".join(commands[0].line.split()[:3]))
def test_commands_print_what_is_shown(commands: list, tmp_path: Path) -> None:
    for command in commands:
        if "azure.yaml" in command.line and not (TRACES / "AzureLLMInferenceTrace_conv.csv.gz").is_file():
            pytest.skip("the Azure conversation trace of 2023 is not beside the checkout")
        printed = run(command.line, tmp_path)
        assert agrees(command.shown, printed), f"{RENEW}\n{command.line}\n{printed}"


def test_there_are_commands_to_compare() -> None:
    lines = [command.line for commands in blocks(TEXT) for command in commands]
    for word in ("bench run", "bench sweep", "bench size", "bench explain", "bench gate"):
        assert any(line.startswith(word) for line in lines), word
    assert agrees("a\n…\nc\n", "a\nb\nc\nd\n") and not agrees("a\n…\nd\nc\n", "a\nb\nc\nd\n")
    assert agrees("x; made in 2 s (3.5 times).\n", "x; made in 811.9 ms (9 times).\n") and not agrees("a\n", "b\n")


@pytest.mark.slow
def test_the_python_example_prints_what_is_shown() -> None:
    example = code("python", "for seats in")
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert f"```\n{done.stdout}```" in TEXT, done.stdout


def test_the_real_engine_example_answers(tmp_path: Path, capsys) -> None:
    """With a tiny model in place of SmolLM2: it says something, whatever that is."""
    pytest.importorskip("torch", minversion="2.0")
    pytest.importorskip("transformers")
    made = CliRunner().invoke(app, ["model", "make", "tiny-smollm", "--out", str(tmp_path / "tiny")])
    assert made.exit_code == 0, made.output
    exec(code("python", "LLM(").replace("models/smollm2", str(tmp_path / "tiny")), {})
    assert capsys.readouterr().out.strip()


def test_the_scheduler_is_short_and_runs(tmp_path: Path) -> None:
    scheduler = code("python", "# my_sched.py")
    assert len([line for line in scheduler.splitlines() if line.strip()]) <= 20
    (tmp_path / "my_sched.py").write_text(scheduler)
    (tmp_path / "w.yaml").write_text(
        "model: meta-llama/Meta-Llama-3-8B\nbackend: {name: sim, gpu: h100-sxm}\n"
        + code("yaml", "engine: {scheduler: {name").replace("…", "")
        + "traffic: {trace: {path: chat.jsonl.gz, limit: 50}}\n"
    )
    done = CliRunner().invoke(app, ["run", str(tmp_path / "w.yaml"), "--out", str(tmp_path / "out"), "-q"])
    assert done.exit_code == 0, done.output


def test_the_workload_shown_is_the_example(tmp_path: Path) -> None:
    example = ROOT / "workloads" / "examples" / "chat-h100.yaml"
    shown = example.with_name("shown.yaml")  # beside it, since its trace is; never written
    from experiments.workload_file import Source, build_workload

    told = build_workload(Source(code("yaml", "name: chat on one H100"), str(shown)))
    kept = load_workload(example)
    assert {**told.plain(), "seed": 0} == {**kept.plain(), "seed": 0}


def test_the_place_for_the_speed_is_there() -> None:
    assert re.search(r"<!-- speed -->\n.*make bench.*\n<!-- /speed -->", TEXT, re.DOTALL)
