"""`bench compare` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from experiments.cli import app
from reports.export import write_vllm_result
from reports.run_folder import read_run


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


WORKLOAD = """\
name: small
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
traffic:
  max_tokens: exact
  synthetic: {requests: 40, arrivals: {process: poisson, rate: 8}, input_tokens: 128, output_tokens: 32}
load: {mode: open}
"""


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "w.yaml"
    path.write_text(WORKLOAD)
    return path


@pytest.fixture(scope="module")
def two(workload: Path) -> tuple[Path, Path]:
    """The same traffic on two GPUs."""
    folders = workload.parent / "h100-sxm", workload.parent / "l4"
    for folder in folders:
        assert bench("run", workload, "--gpu", folder.name, "--out", folder, "-q").exit_code == 0
    return folders


def test_table_page_markdown_and_json(two: tuple[Path, Path], tmp_path: Path) -> None:
    done = bench("compare", *two, "--out", tmp_path / "page.html", "--markdown", tmp_path / "t.md")
    assert done.exit_code == 0, done.output
    assert "worse" in done.stdout
    assert "backend.gpu" in done.stdout
    assert (tmp_path / "page.html").read_text("utf-8").count("<figure ") == 6
    assert json.loads((tmp_path / "page.json").read_text("utf-8"))["settings"]["backend.gpu"] == ["h100-sxm", "l4"]
    assert (tmp_path / "t.md").read_text("utf-8").startswith("|")
    assert bench("compare", *two, "--out", tmp_path / "folder", "-q").stdout == ""
    assert sorted(p.name for p in (tmp_path / "folder").iterdir()) == ["compare.json", "report.html"]
    said = json.loads(bench("compare", *two, "--json").stdout)
    assert said["figures"] and said["cost_errors"][0]["counted"] and "linear" in said["cost_errors"][0]["independent"]
    printed = bench("compare", *two, "--markdown", "-").stdout
    assert printed.startswith("|")


def test_names_with_markup_are_shown_as_they_are(two: tuple[Path, Path]) -> None:
    done = bench("compare", *two, "--name", "[red]a[/red]", "--name", "[/]b")
    assert done.exit_code == 0, done.output
    assert "[/]b" in done.stdout


def test_points_are_the_same_however_their_numbers_are_written() -> None:
    from reports.compare.sweeps import Point

    keys = {Point({"a": value, "b": True}, {}, None, None).key for value in (4, 4.0, 3.999999999999999)}
    assert len(keys) == 1 and Point({"a": 1}, {}, None, None).key != Point({"a": True}, {}, None, None).key


def test_other_traffic_exits_2_and_says_what(workload: Path, two: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert bench("run", workload, "--out", other, "-q", "--set", "traffic.synthetic.requests=30").exit_code == 0
    done = bench("compare", two[0], other)
    assert done.exit_code == 2
    assert "requests 40 and 30" in done.stderr
    assert "--force" in done.stderr
    forced = bench("compare", two[0], other, "--force")
    assert forced.exit_code == 0
    assert "different traffic" in forced.stdout


def test_measured_beside_simulated(two: tuple[Path, Path], tmp_path: Path) -> None:
    write_vllm_result(read_run(two[1]), tmp_path / "v.json", detailed=True)
    done = bench("compare", two[0], tmp_path / "v.json", "--name", "simulated", "--name", "measured", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [r["name"] for r in found["runs"]] == ["simulated", "measured"]
    assert any("'simulated' is simulated: the errors of its cost model are in the ranges" in n for n in found["notes"])


def test_files_with_several_runs(two: tuple[Path, Path], tmp_path: Path) -> None:
    write_vllm_result(read_run(two[1]), tmp_path / "v.json", detailed=True)
    line = json.dumps(json.loads((tmp_path / "v.json").read_text()))
    many = tmp_path / "many.jsonl"
    many.write_text(f"{line}\n{line}\n")
    assert bench("compare", many).exit_code == 0, "its runs are held against each other"
    refused = bench("compare", two[0], many)
    assert refused.exit_code == 2
    assert "many.jsonl#1" in refused.stderr
    assert bench("compare", two[0], f"{many}#2").exit_code == 0
    wrong = bench("compare", two[0], f"{many}#7")
    assert wrong.exit_code == 2
    assert "has 2 runs, there is no #7" in wrong.stderr


def test_sweeps(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(WORKLOAD.replace("load: {mode: open}", "load: {mode: closed, concurrency: 1}"))
    for name, gpu in (("a", "h100-sxm"), ("b", "l4")):
        over = ("--over", "load.concurrency=[1, 4]", "--workers", "1", "--gpu", gpu, "--out", tmp_path / name, "-q")
        assert bench("sweep", path, *over).exit_code == 0
    done = bench("compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "s.html")
    assert done.exit_code == 0, done.output
    assert "worse" in done.stdout
    assert "priced by different constants for attention" in " ".join(done.stdout.split())
    assert "and of the cost models' errors." in " ".join(done.stdout.split())
    assert (tmp_path / "s.html").read_text("utf-8").count("<figure ") == 4
    mixed = bench("compare", tmp_path / "a", next((tmp_path / "b" / "points").iterdir()))
    assert mixed.exit_code == 2
    assert "is a sweep and" in mixed.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{a}",), "two runs or more"),
        (("{a}", "{a}"), "named twice"),
        (("{a}", "{a}/../h100-sxm/"), "named twice"),
        (("{a}", "{a}/run.json"), "named twice"),
        (("{a}", "{b}", "--name", "x", "--name", "x"), "'x' is given twice"),
        (("{a}", "{b}", "--name", " "), "a name is empty"),
        (("{a}", "{b}", "--out", "{a}"), "which is compared"),
        (("{a}", "{b}", "--out", "{b}/run.html"), "which is compared"),
        (("{a}", "{b}", "--markdown", "{b}/run.json"), "is also a run to compare"),
        (("{a}", "{b}", "--out", "{w}.html", "--markdown", "{w}.json"), "is also --out"),
        (("{a}", "nowhere"), "no such file or folder"),
        (("{a}", "{w}"), "neither a run folder nor a result file"),
        (("{a}", "{b}", "--name", "1", "--name", "2", "--name", "3"), "--name is given 3 times"),
        (("{a}", "{b}", "--out", "{w}/x.html"), "cannot write"),
        (("{a}", "{b}", "--markdown", "{w}/x.md"), "cannot write"),
    ],
)
def test_mistakes(two: tuple[Path, Path], workload: Path, arguments: tuple[str, ...], said: str) -> None:
    before = [(folder / "run.json").read_bytes() for folder in two]
    names = {"{a}": str(two[0]), "{b}": str(two[1]), "{w}": str(workload)}
    for name, path in names.items():
        arguments = tuple(argument.replace(name, path) for argument in arguments)
    done = bench("compare", *arguments)
    assert [(folder / "run.json").read_bytes() for folder in two] == before
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_beside_a_result_file_does_not_replace_it(two: tuple[Path, Path], tmp_path: Path) -> None:
    result = tmp_path / "p.json"
    write_vllm_result(read_run(two[0]), result, detailed=True)
    before = result.read_bytes()
    done = bench("compare", two[0], result, "--out", tmp_path / "p.html")
    assert done.exit_code == 2 and "is also a run to compare" in done.stderr
    assert result.read_bytes() == before and not (tmp_path / "p.html").exists()
