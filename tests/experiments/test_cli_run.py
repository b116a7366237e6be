"""`bench run`, `bench report` and `bench gate` around a runner that runs nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_runner import FakeRunner
from typer.testing import CliRunner, Result

from experiments.cli import app
from experiments.cli.output import check_folder, choose_folder, claim_sweep_folder, leave_unused, slug
from experiments.folder_lock import alone_in
from reports.run_folder import read_run, write_run
from workloads.errors import OutputError, TargetError


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_run_leaves_its_folder_and_says_where(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    done = bench("run", workload, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "out") in done.stdout.replace("\n", "")
    assert read_run(tmp_path / "out").info["name"] == "small"
    assert (tmp_path / "out" / "report.html").is_file()
    assert runner.stretch is True


def test_the_default_folder_is_the_next_free_one(
    write: Callable[..., Path], runner: FakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = write().read_text().replace("name: small", "name: '../a b/聊天'")
    path = write(text)
    for _ in range(2):
        assert bench("run", path, "-q").exit_code == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["a-b-聊天-1", "a-b-聊天-2"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chat on one H100", "chat-on-one-H100"),
        ("../../etc", "etc"),
        (".hidden", "hidden"),
        ("///", "run"),
        ("🚀", "run"),
        ("聊" * 100, "聊" * 26),
        ("a\0b\nc", "a-b-c"),
        ("CON", "CON"),
        ("x" * 300, "x" * 80),
        ("-rf", "rf"),
    ],
)
def test_names_as_folder_names(name: str, expected: str) -> None:
    assert slug(name) == expected


def test_json_is_one_strict_object(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    done = bench("run", workload, "--out", tmp_path / "out", "--json")
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    assert found["folder"] == str(tmp_path / "out")
    assert found["summary"]["completed"] == 4 and found["info"]["complete"] is True
    again = bench("report", tmp_path / "out", "--json")
    assert json.loads(again.stdout)["summary"] == found["summary"]


def test_quiet_prints_nothing(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    assert bench("run", workload, "--out", tmp_path / "out", "--quiet").output == ""


def test_options_override_the_file(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    options = (
        "--seed",
        "7",
        "--gpu",
        "a100-sxm",
        "--set",
        "seed=3",
        "--set",
        "engine.kv.block_size=32",
        "--step",
        "-q",
    )
    assert bench("run", workload, "--out", tmp_path / "out", *options).exit_code == 0
    (ran,) = runner.runs
    assert (ran.seed, ran.backend.gpu, ran.engine.kv.block_size) == (7, "a100-sxm", 32)
    assert runner.stretch is False


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpu", "h1000"], "error: --gpu: backend.gpu: unknown GPU 'h1000' (did you mean"),
        (["--backend", "simm"], "error: --backend: backend.name: unknown backend 'simm'"),
        (["--set", "load.concurency=3"], "error: --set: load.concurency: unknown key"),
        (["--set", "x"], "error: --set: expected key=value"),
        (["--seed", "-1"], "error: --seed: seed: expected a number at least 0"),
    ],
)
def test_input_errors_exit_2_in_one_line(arguments: list[str], says: str, workload: Path, runner: FakeRunner) -> None:
    done = bench("run", workload, *arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(says), done.stderr
    assert "Traceback" not in done.output and done.stdout == ""
    assert runner.runs == []


def test_several_errors_are_listed(write: Callable[..., Path], runner: FakeRunner) -> None:
    done = bench("run", write("seed: x\nnam: y\n"))
    assert done.exit_code == 2
    assert done.stderr.startswith("errors:\n")
    assert "w.yaml:1: seed" in done.stderr and "w.yaml:2: nam" in done.stderr


def test_a_taken_folder_is_noticed_before_the_run(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert bench("run", workload, "--out", out, "-q").exit_code == 0
    again = bench("run", workload, "--out", out, "-q")
    assert again.exit_code == 2 and "already holds a run" in again.stderr
    assert len(runner.runs) == 1
    assert bench("run", workload, "--out", out, "-q", "--overwrite", "--seed", "9").exit_code == 0
    assert read_run(out).info["seed"] == 9


def test_a_folder_with_something_else_is_never_touched(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    done = bench("run", workload, "--out", tmp_path / "mine", "--overwrite")
    assert done.exit_code == 2 and "not a run" in done.stderr and runner.runs == []
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("place", ["w.yaml/inside", "w.yaml", "/proc/nowhere/run"])
def test_a_folder_that_cannot_be_made_is_noticed_before_the_run(
    place: str, workload: Path, runner: FakeRunner, tmp_path: Path
) -> None:
    done = bench("run", workload, "--out", tmp_path / place)
    assert done.exit_code == 2 and "cannot write" in done.stderr
    assert runner.runs == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_noticed_before_the_run(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    done = bench("run", workload, "--out", locked / "run")
    assert done.exit_code == 2 and "Permission denied" in done.stderr and runner.runs == []


def test_odd_paths_are_output_errors() -> None:
    for path in (Path("a\0b"), Path("x" * 300) / "y"):
        with pytest.raises(OutputError):
            check_folder(path)
    assert choose_folder(Path("given"), "name") == Path("given")


def test_a_full_disk_leaves_nothing_behind(
    workload: Path, runner: FakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", full)
    done = bench("run", workload, "--out", tmp_path / "out")
    assert done.exit_code == 2 and "No space left on device" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["w.yaml"]


def test_ctrl_c_keeps_what_is_done(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    runner.interrupt_at = 0
    done = bench("run", workload, "--out", tmp_path / "out")
    assert done.exit_code == 130 and "what was done is kept" in done.stderr
    assert read_run(tmp_path / "out").info["complete"] is False


def test_ctrl_c_while_ranges_are_made_keeps_the_run(
    workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.intervals.add_spread", interrupted)
    done = bench("run", workload, "--out", tmp_path / "out")
    assert done.exit_code == 130 and "without the ranges" in done.stderr
    kept = read_run(tmp_path / "out")
    assert kept.info["complete"] is True and "cost_spread" not in kept.info


def test_ctrl_c_outside_the_engine(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    runner.error = KeyboardInterrupt()
    done = bench("run", workload, "--out", tmp_path / "out")
    assert done.exit_code == 130 and done.stderr == "interrupted\n"
    assert not (tmp_path / "out").exists()


def test_nothing_finished_exits_3_with_the_reason(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    runner.status = "refused"
    done = bench("run", workload, "--out", tmp_path / "out")
    assert done.exit_code == 3
    assert "no request finished; most often: longer than the context" in done.stderr
    assert (tmp_path / "out" / "run.json").is_file()


def test_an_unreachable_target_exits_3(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    runner.error = TargetError("http://localhost:1: connection refused")
    done = bench("run", workload, "--out", tmp_path / "out")
    assert done.exit_code == 3 and done.stderr == "error: http://localhost:1: connection refused\n"


def test_a_fault_of_ours_is_short_unless_asked_for(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    runner.error = ZeroDivisionError("division by zero")
    done = bench("run", workload, "--out", tmp_path / "out")
    assert done.exit_code == 70
    assert "fault of Twinserve, not of your input: ZeroDivisionError" in done.stderr and "--debug" in done.stderr
    assert "Traceback" not in done.stderr
    loud = bench("--debug", "run", workload, "--out", tmp_path / "out")
    assert isinstance(loud.exception, ZeroDivisionError)


def test_the_gate_passes_fails_and_is_updated(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    base, out = tmp_path / "base.json", tmp_path / "out"
    assert "no such baseline" in bench("gate", workload, "--baseline", base).stderr
    assert runner.runs == [], "a missing baseline is noticed before the run"
    assert bench("gate", workload, "--baseline", base, "--reason", "x").exit_code == 2
    made = bench("gate", workload, "--baseline", base, "--update", "--reason", "first")
    assert made.exit_code == 0 and "wrote" in made.stdout
    assert bench("gate", workload, "--baseline", base).exit_code == 0
    assert bench("run", workload, "--out", out, "-q").exit_code == 0
    assert bench("gate", out, "--baseline", base).exit_code == 0
    raised = json.loads(base.read_text())
    raised["metrics"]["output_throughput"]["values"] = [1e6]
    base.write_text(json.dumps(raised))
    failed = bench("gate", out, "--baseline", base)
    assert failed.exit_code == 1 and "output_throughput" in failed.stdout
    told = json.loads(bench("gate", out, "--baseline", base, "--json").stdout)
    assert told["passed"] is False
    assert bench("gate", out, "--baseline", base, "--seed", "3").exit_code == 2


def test_a_gate_does_not_take_a_sweep(write: Callable[..., Path], runner: FakeRunner, tmp_path: Path) -> None:
    path = write(write().read_text() + "sweep: {seed: [1, 2]}\n")
    done = bench("gate", path, "--baseline", tmp_path / "b.json", "--update", "--reason", "x")
    assert done.exit_code == 2 and "w.yaml:17: sweep" in done.stderr


def test_report_of_something_else(tmp_path: Path) -> None:
    assert bench("report", tmp_path).exit_code == 2
    assert "no such run folder" in bench("report", tmp_path / "nowhere").stderr


def test_runs_at_once_never_overwrite_each_other(
    workload: Path, runner: FakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run is written to the same folder while this one runs."""
    real, out = runner.run, tmp_path / "out"

    def slow(*arguments, **options):
        data = real(*arguments, **options)
        if not out.exists():
            write_run(data, out)
        return data

    monkeypatch.setattr(sys.modules["experiments.runner"], "run", slow)
    done = bench("run", workload, "--out", out, "-q")
    assert done.exit_code == 2 and "already holds a run" in done.stderr
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["out"]
    assert bench("run", workload, "--out", out, "-q", "--overwrite").exit_code == 0


def test_a_default_folder_that_was_taken_meanwhile_is_left_alone(
    workload: Path, runner: FakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # every run that starts at once chooses the first name
    chosen = iter([Path("runs/small-1"), Path("runs/small-1"), Path("runs/small-2"), Path("runs/small-2")])
    monkeypatch.setattr(sys.modules["experiments.cli.run"], "choose_folder", lambda out, name: next(chosen))
    for _ in range(2):
        assert bench("run", workload, "-q").exit_code == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["small-1", "small-2"]


def test_default_folders_of_sweeps_are_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = claim_sweep_folder("a"), claim_sweep_folder("a")
    assert [str(first), str(second)] == ["runs/a-1", "runs/a-2"]
    leave_unused(second)
    assert claim_sweep_folder("a") == second


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    with alone_in(tmp_path / "s"), pytest.raises(OutputError, match="another sweep is writing"):  # noqa: SIM117
        with alone_in(tmp_path / "s"):
            pass
    assert not (tmp_path / "s").exists()
