"""`bench experiment`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.claims import sizing
from experiments.claims.registry import MODULES
from experiments.cli import app


def bench(*arguments: str) -> object:
    return CliRunner().invoke(app, ["experiment", *arguments])


def test_list_names_them_all() -> None:
    found = bench("list")
    assert found.exit_code == 0 and all(name in found.output for name in MODULES)
    rows = json.loads(bench("list", "--json").output)
    assert [row["name"] for row in rows] == list(MODULES)
    runs_on = {row["name"]: row["backends"] for row in rows}
    assert runs_on["batching"] == ["sim", "torch", "triton"] and runs_on["sizing"] == ["sim"]
    assert all((Path(__file__).parents[3] / row["notebook"]).is_file() for row in rows)


def test_run_prints_checks_and_verdicts() -> None:
    found = bench("run", "sizing")
    assert found.exit_code == 0, "a wrong claim is a result, not a failure"
    assert "Verdict: does not hold." in found.output and "Verdict: holds." in found.output
    assert "5.37 GB (5.00 GiB)" in found.output and "not met" in found.output


def test_json_is_one_document_in_the_order_asked_for() -> None:
    found = bench("run", "sizing", "memory-limits", "sizing", "--small", "--json")
    data = json.loads(found.output)
    assert [each["name"] for each in data] == ["sizing", "memory-limits"]
    assert {verdict["verdict"] for verdict in data[0]["verdicts"]} == {"holds", "holds in part", "does not hold"}


def test_out_leaves_whole_folders(tmp_path: Path) -> None:
    out = tmp_path / "claims"
    assert bench("run", "sizing", "--out", str(out), "--quiet").output == ""
    files = sorted(path.name for path in (out / "sizing").iterdir())
    assert files == ["figure-1.svg", "report.md", "result.json"]
    assert json.loads((out / "sizing" / "result.json").read_text())["name"] == "sizing"
    assert "**Verdict: does not hold.**" in (out / "sizing" / "report.md").read_text()
    again = bench("run", "memory-limits", "sizing", "--out", str(out))
    assert again.exit_code == 2 and "--overwrite" in again.output
    assert not (out / "memory-limits").exists(), "told before anything ran"
    assert bench("run", "sizing", "--out", str(out), "--overwrite").exit_code == 0


def test_mistakes_are_told_in_one_message(tmp_path: Path) -> None:
    found = bench("run", "sizng")
    assert found.exit_code == 2 and found.output.strip() == "error: unknown experiment 'sizng' (did you mean sizing?)"
    found = bench("run", "<script>")
    assert found.exit_code == 2 and "unknown experiment '<script>'" in found.output
    assert bench("run").exit_code == 2
    (tmp_path / "file").write_text("")
    found = bench("run", "sizing", "--out", str(tmp_path / "file"))
    assert found.exit_code == 2 and "file" in found.output and "Traceback" not in found.output
    found = bench("run", "sizing", "--out", str(tmp_path / ("x" * 300)))
    assert found.exit_code == 2 and "File name too long" in found.output


def test_a_full_disk_and_ctrl_c_leave_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("experiments.claims.figures.svg", full)
    found = bench("run", "sizing", "--out", str(tmp_path / "out"))
    assert found.exit_code == 2 and "No space left on device" in found.output
    assert not list((tmp_path / "out").iterdir())
    monkeypatch.undo()

    def interrupted(small: bool = False) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sizing, "run", interrupted)
    found = bench("run", "memory-limits", "sizing", "--out", str(tmp_path / "two"))
    assert found.exit_code == 130
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["memory-limits"], "what was done is kept"
