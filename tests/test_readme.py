"""README.md and docs/tour.md tell the truth: their commands print what they show, their code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.workload_file import load_workload
from tests.readme_commands import (
    PAGES,
    README,
    RECORDED,
    ROOT,
    TRACES,
    _elided,
    agrees,
    blocks,
    needs_recording,
    run,
    run_script,
    scripts,
    with_errors,
)

TEXT = README.read_text("utf-8")
TEXTS = {page.stem: page.read_text("utf-8") for page in PAGES}
RENEW = "renew it: python tests/readme_commands.py"


def code(language: str, word: str) -> str:
    """The one block of that language with this word in it."""
    (found,) = [block for block in re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL) if word in block]
    return found


SHOWN = [
    pytest.param(commands, id=f"{page} {' '.join(commands[0].line.split()[:3])}")
    for page, text in TEXTS.items()
    for commands in blocks(text)
]


@pytest.mark.slow
@pytest.mark.parametrize("commands", SHOWN)
def test_commands_print_what_is_shown(commands: list, tmp_path: Path) -> None:
    for command in commands:
        if needs_recording(command.line) and not (TRACES / RECORDED).is_file():
            pytest.skip("the Azure conversation trace of 2023 is not beside the checkout")
        printed = run(command.line, tmp_path)
        assert agrees(command.shown, printed), f"{RENEW}\n{command.line}\n{printed}"


def test_there_are_commands_to_compare() -> None:
    lines = [command.line for text in TEXTS.values() for commands in blocks(text) for command in commands]
    for word in ("run", "sweep", "plan", "compare", "gate", "size", "explain", "experiment"):
        assert any(line.startswith(f"bench {word}") for line in lines), word
    assert any(needs_recording(line) for line in lines) and not all(needs_recording(line) for line in lines)
    assert agrees("a\n…\nc\n", "a\nb\nc\nd\n") and not agrees("a\n…\nd\nc\n", "a\nb\nc\nd\n")
    assert agrees("x; made in 2 s (3.5 times).\n", "x; made in 811.9 ms (9 times).\n") and not agrees("a\n", "b\n")


def test_what_was_left_out_is_left_out_again() -> None:
    """Renewed lines are those that say the same; a figure at the start of a line is no reason to take another one."""
    shown = "…\np95 TTFT  10  ok\n…\n40 candidates, 27 simulations\n\nend of 1.5 s\n"
    printed = "head\np90 TTFT  8  ok\np95 TTFT  12.5  FAIL\nmore\n38 candidates, 9 simulations\n{}\nend of 12 s\n"
    for new, kept_of_it in (("", ""), ("a new line\n", "…\n")):
        kept = f"…\np95 TTFT  12.5  FAIL\n…\n38 candidates, 9 simulations\n{kept_of_it}\nend of 12 s\n"
        now = printed.format(new)
        assert _elided(shown, now) == kept and agrees(kept, now)


@pytest.mark.slow
@pytest.mark.parametrize("page", TEXTS)
def test_the_python_examples_print_what_is_shown(page: str) -> None:
    for code, shown in scripts(TEXTS[page]):
        assert run_script(code) == shown, RENEW


def test_there_is_a_python_example_with_its_output() -> None:
    assert [code for text in TEXTS.values() for code, _ in scripts(text) if "summarize(run(workload))" in code]


def test_the_errors_are_those_of_the_page_of_validation() -> None:
    assert with_errors(TEXT) == TEXT, RENEW
    assert len(re.findall(r"^\| .* % \|$", TEXT, re.MULTILINE)) >= 5
    assert with_errors(TEXT.replace(" % |", " |")) == TEXT


def test_it_reads_in_five_minutes() -> None:
    """Depth belongs to the pages of docs/."""
    assert len(TEXT.encode()) <= 20 * 1024


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
    (tmp_path / "mine.yaml").write_text(code("yaml", "# mine.yaml"))
    few = ["--set", "traffic.trace.limit=50"]
    done = CliRunner().invoke(app, ["run", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "out"), "-q", *few])
    assert done.exit_code == 0, done.output


def test_the_workload_shown_is_the_example(tmp_path: Path) -> None:
    example = ROOT / "workloads" / "examples" / "chat-h100.yaml"
    shown = example.with_name("shown.yaml")  # beside it, since its trace is; never written
    from experiments.workload_file import Source, build_workload

    told = build_workload(Source(code("yaml", "name: chat on one H100"), str(shown)))
    kept = load_workload(example)
    assert {**told.plain(), "seed": 0} == {**kept.plain(), "seed": 0}
