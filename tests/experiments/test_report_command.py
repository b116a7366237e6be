"""`bench report`: exports, and results of other tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from experiments.cli import app
from reports.export import write_vllm_result
from reports.run_folder import read_run


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def run(workload: Path, tmp_path: Path) -> Path:
    assert bench("run", workload, "--out", tmp_path / "run", "-q").exit_code == 0
    return tmp_path / "run"


def test_every_format(run: Path, tmp_path: Path) -> None:
    formats = [part for name in ("csv", "parquet", "vllm-json", "svg") for part in ("--export", name)]
    done = bench("report", run, *formats, "--out", tmp_path / "paper")
    assert done.exit_code == 0, done.output
    names = {p.name for p in (tmp_path / "paper").iterdir()}
    assert names >= {
        "requests.csv",
        "summary.csv",
        "requests.parquet",
        "vllm.json",
        "ttft_cdf.svg",
        "gantt.svg",
    }
    told = json.loads(bench("report", run, "--export", "csv", "--json").stdout)
    assert all(Path(f).is_file() and "/run/export/" in f for f in told["exported"])
    assert json.loads((tmp_path / "paper" / "vllm.json").read_text())["completed"] == 40


def test_another_tools_results_become_a_run_folder(run: Path, tmp_path: Path) -> None:
    write_vllm_result(read_run(run), tmp_path / "v.json", detailed=True)
    shown = bench("report", tmp_path / "v.json")
    assert shown.exit_code == 0, shown.output
    assert "TTFT" in shown.stdout
    assert not (tmp_path / "report.html").exists()
    made = bench("report", tmp_path / "v.json", "--out", tmp_path / "measured")
    assert made.exit_code == 0, made.output
    assert (tmp_path / "measured" / "report.html").is_file()
    assert bench("compare", run, tmp_path / "measured", "--force").exit_code == 0
    again = bench("report", tmp_path / "v.json", "--out", tmp_path / "measured")
    assert again.exit_code == 2
    assert "already holds a run" in again.stderr
    assert bench("report", tmp_path / "v.json", "--out", tmp_path / "measured", "--overwrite").exit_code == 0
    exported = bench("report", tmp_path / "v.json", "--export", "csv", "--out", tmp_path / "tables")
    assert exported.exit_code == 0, exported.output
    assert (tmp_path / "tables" / "requests.csv").is_file()


def test_results_without_times_of_sending(run: Path, tmp_path: Path) -> None:
    """Latencies are of the requests; rates are as the file reports them, in the run folder and its page too."""
    write_vllm_result(read_run(run), tmp_path / "v.json", detailed=True)
    raw = json.loads((tmp_path / "v.json").read_text())
    raw = {key: value for key, value in raw.items() if key != "start_times"} | {"output_throughput": 123.0}
    (tmp_path / "v.json").write_text(json.dumps(raw))
    shown = bench("report", tmp_path / "v.json", "--out", tmp_path / "measured")
    assert shown.exit_code == 0, shown.output
    assert "nothing can be said of saturation" in " ".join(shown.stdout.split())
    for path in (tmp_path / "v.json", tmp_path / "measured"):
        told = json.loads(bench("report", path, "--json").stdout)["summary"]
        assert told["output_throughput"] == 123.0
        assert told["duration"] == raw["duration"]
        assert told["mean_ttft_ms"] == pytest.approx(raw["mean_ttft_ms"])
        assert told["steady_output_throughput"] is None
        assert not set(told["interval"]["figures"]) & {"output_throughput", "request_throughput"}
    assert bench("compare", run, tmp_path / "measured", "--force").exit_code == 0
    exported = bench("report", tmp_path / "measured", "--export", "vllm-json", "--out", tmp_path / "again")
    assert exported.exit_code == 0, exported.output
    assert "start_times" not in json.loads((tmp_path / "again" / "vllm.json").read_text())


def test_mistakes(run: Path, tmp_path: Path) -> None:
    unknown = bench("report", run, "--export", "cvs")
    assert unknown.exit_code == 2
    assert "unknown format 'cvs' (did you mean csv?)" in unknown.stderr
    (tmp_path / "file").write_text("")
    full = bench("report", run, "--export", "csv", "--out", tmp_path / "file")
    assert full.exit_code == 2
    assert "cannot write" in full.stderr
    write_vllm_result(read_run(run), tmp_path / "flat.json")
    flat = bench("report", tmp_path / "flat.json")
    assert flat.exit_code == 2
    assert "summary without requests" in flat.stderr
    line = json.dumps(json.loads((tmp_path / "flat.json").read_text()))
    (tmp_path / "two.jsonl").write_text(f"{line}\n{line}\n")
    two = bench("report", tmp_path / "two.jsonl")
    assert two.exit_code == 2
    assert "holds 2 runs" in two.stderr


def test_nothing_is_written_onto_what_is_read(run: Path, tmp_path: Path) -> None:
    made = run / "vllm.json"
    write_vllm_result(read_run(run), made, detailed=True)
    apart = tmp_path / "vllm.json"
    apart.write_bytes(made.read_bytes())
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    for arguments, said in (
        ((run, "--export", "csv", "--out", run), "is what is read"),
        ((apart, "--export", "csv", "--out", run), "is a run folder"),
        ((made, "--out", run, "--overwrite"), "holds what is read"),
        ((apart, "--export", "vllm-json", "--out", tmp_path), "is also what is read"),
    ):
        done = bench("report", *arguments)
        assert done.exit_code == 2 and said in done.stderr, done.output
        assert {path.name: path.read_bytes() for path in run.iterdir()} == before
