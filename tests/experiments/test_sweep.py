"""Sweeps: the grid, resuming, failures, interruption, and the files left behind."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fake_runner import FakeRunner
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from experiments.cli import app
from experiments.schema.base import Wrong
from experiments.schema.sweep import expand
from experiments.sweep import grid, run_sweep
from experiments.workload_file import WorkloadErrors, load_workload
from workloads.errors import InputError, OutputError

CLOSED = "load={mode: closed, concurrency: 1}"


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def swept(path: Path, *sweep: str):
    return load_workload(path, [CLOSED, *(f"sweep.{text}" for text in sweep)])


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ([1, "a", {"x": 1}], (1, "a", {"x": 1})),
        ({"log": [1, 64, 7]}, (1, 2, 4, 8, 16, 32, 64)),
        ({"log": [1, 3, 10]}, (1, 2, 3)),
        ({"log": [64, 1, 3]}, (64, 8, 1)),
        ({"range": [0, 10, 5]}, (0, 5, 10)),
        ({"range": [10, 0, -4]}, (10, 6, 2)),
        ({"range": [0.1, 0.3, 0.1]}, pytest.approx((0.1, 0.2, 0.3))),
        ({"log": [0.5, 8.0, 5]}, pytest.approx((0.5, 1, 2, 4, 8))),
        ({"range": [3, 3, 1]}, (3,)),
        ("1..256 log2", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ("1..100 log10", (1, 10, 100)),
        ("3..100 log3", (3, 9, 27, 81, 100)),
        ("64 .. 1 LOG4", (64, 16, 4, 1)),
        ("0.5..4 log2", (0.5, 1, 2, 4)),
        ("1..4", (1, 2, 3, 4)),
        ("4..1", (4, 3, 2, 1)),
        ("32..96 step 32", (32, 64, 96)),
        ("1, 2,4", (1, 2, 4)),
        ("vllm, sglang", ("vllm", "sglang")),
        ("true,false", (True, False)),
        ("0.5,8,1e-3", (0.5, 8, 0.001)),
        ({"from": 1, "to": 64, "points": 7, "scale": "log"}, (1, 2, 4, 8, 16, 32, 64)),
        ({"from": 0, "to": 10, "points": 5}, (0, 2.5, 5, 7.5, 10)),
        ({"from": 0, "to": 10, "points": 3, "scale": "linear"}, (0, 5, 10)),
        ({"from": 0, "to": 10, "step": 5}, (0, 5, 10)),
    ],
)
def test_axes(spec: object, values: tuple) -> None:
    assert expand(spec) == values


@pytest.mark.parametrize(
    "spec",
    [
        [],
        3,
        "8",
        "1,,2",
        "1..",
        "1..8 log",
        "1..8 log1",
        "0..8 log2",
        "1..8 step 0",
        "1..8 step -1",
        "1..1e999",
        "1..1e300 log1.000001",
        "../traces",
        {"from": 1, "to": 2},
        {"from": 1, "to": 2, "points": 2, "step": 1},
        {"from": 1, "to": 2, "points": 1},
        {"from": 1, "to": 2, "points": 2.0},
        {"from": 1, "to": 2, "points": 2, "scale": "ln"},
        {"from": 1, "to": 2, "step": 1, "scale": "log"},
        {"from": "a", "to": 2, "points": 2},
        {"from": 0, "to": 2, "points": 3, "scale": "log"},
        {"from": 1, "to": 2, "points": 3, "foo": 3},
        {},
        {"log": [1, 2]},
        {"log": [0, 2, 3]},
        {"log": [1, 2, 1]},
        {"log": [1, 2, 2.5]},
        {"range": [1, 2, 0]},
        {"range": [1, 2, -1]},
        {"range": [0, 1, 1e-9]},
        {"log": [1, 2, 3], "range": [1, 2, 3]},
        [1, None],
        [True, True],
        {"log": [1, float("inf"), 3]},
        {"range": [1, "2", 1]},
    ],
)
def test_bad_axes(spec: object) -> None:
    with pytest.raises(Wrong):
        expand(spec)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(2, 50))
def test_a_log_axis_has_its_ends_and_equal_ratios(start: float, end: float, count: int) -> None:
    if abs(start / end - 1) < 1e-9:
        return
    values = expand({"log": [start, end, count]})
    assert len(values) == count and values[0] == start and values[-1] == end
    ratios = [b / a for a, b in itertools.pairwise(values)]
    assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=1e-6)


def test_the_grid_is_the_product_with_the_last_axis_fastest(workload: Path) -> None:
    points = grid(swept(workload, "load.concurrency=[1, 2]", "seed=[5, 6]"))
    assert [tuple(p.values.values()) for p in points] == [(1, 5), (1, 6), (2, 5), (2, 6)]
    assert [(p.workload.load.concurrency, p.workload.seed) for p in points] == [
        (1, 5),
        (1, 6),
        (2, 5),
        (2, 6),
    ]
    assert len({p.fingerprint for p in points}) == 4


def test_impossible_combinations_are_all_named(workload: Path) -> None:
    law = "traffic.synthetic.input_tokens"
    uniform = f"{law}={{distribution: uniform, low: 1, high: 10}}"
    found = load_workload(workload, [uniform, f"sweep.{law}.low=[1, 8]", f"sweep.{law}.high=[10, 5, 4]"])
    with pytest.raises(WorkloadErrors) as caught:
        grid(found)
    assert len(caught.value.errors) == 2
    assert f"{law}.high: must not be less than low (8), it is 5" in str(caught.value)
    with pytest.raises(InputError, match="has no sweep"):
        grid(load_workload(workload))


def test_a_sweep_leaves_points_table_and_page(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run_sweep(
        swept(workload, "load.concurrency=[1, 2, 4]", "engine.kv=[{block_size: 8}, {block_size: 16}]"), out
    )
    assert result.complete and len(runner.runs) == 6
    found = json.loads((out / "sweep.json").read_text("utf-8"))
    assert found["complete"] and [p["status"] for p in found["points"]] == ["done"] * 6
    assert all((out / p["folder"] / "run.json").is_file() for p in found["points"])
    table = pq.read_table(out / "points.parquet")
    assert table.num_rows == 6
    assert table["load.concurrency"].to_pylist() == [1, 1, 2, 2, 4, 4]
    assert table["engine.kv"].to_pylist()[0] == '{"block_size": 8}'
    assert table["completed"].to_pylist() == [4.0] * 6
    assert "</html>" in (out / "report.html").read_text("utf-8")
    assert not list(out.glob(".*"))


def test_a_sweep_goes_on_where_it_was(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    out = tmp_path / "out"
    runner.interrupt_at = 2
    first = run_sweep(swept(workload, "load.concurrency=[1, 2, 4, 8]"), out)
    assert not first.complete and [p.status for p in first.points] == ["done", "done", "", ""]
    assert json.loads((out / "sweep.json").read_text())["complete"] is False
    runner.interrupt_at = None
    runner.runs.clear()
    wider = run_sweep(swept(workload, "load.concurrency=[16, 1, 2, 4, 8]"), out)
    assert wider.complete and wider.reused == 2
    assert [w.load.concurrency for w in runner.runs] == [16, 4, 8]
    assert len({p.folder for p in wider.points}) == 5
    runner.runs.clear()
    assert run_sweep(swept(workload, "load.concurrency=[1, 2]"), out).reused == 2 and runner.runs == []
    assert run_sweep(swept(workload, "load.concurrency=[1, 2]"), out, overwrite=True).reused == 0


def test_a_changed_workload_or_trace_is_run_again(
    write: Callable[..., Path], runner: FakeRunner, tmp_path: Path
) -> None:
    trace = write("arrival,input_tokens,output_tokens\n0,5,5\n", "t.csv")
    path = write()
    settings = [
        "traffic.synthetic=null",
        "traffic.trace={path: t.csv}",
        CLOSED,
        "sweep.load.concurrency=[1, 2]",
    ]
    out = tmp_path / "out"
    run_sweep(load_workload(path, settings), out)
    assert run_sweep(load_workload(path, settings), out).reused == 2
    assert run_sweep(load_workload(path, [*settings, "seed=99"]), out).reused == 0
    trace.write_text("arrival,input_tokens,output_tokens\n0,6,5\n")
    assert run_sweep(load_workload(path, settings), out).reused == 0


def test_a_point_that_cannot_run_is_a_result(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    runner.fails = 2
    result = run_sweep(swept(workload, "load.concurrency=[1, 2, 4]"), tmp_path / "out")
    assert [p.status for p in result.points] == ["done", "failed", "done"]
    assert "load.concurrency: does not fit" in result.points[1].error
    assert pq.read_table(tmp_path / "out" / "points.parquet")["completed"].to_pylist() == [4.0, None, 4.0]


def test_when_every_point_fails_the_sweep_fails(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    runner.fails = 2
    with pytest.raises(InputError, match=r"every point failed; the first: .*does not fit"):
        run_sweep(swept(workload, "load.concurrency=[2]"), tmp_path / "out")


def test_a_folder_with_something_else_is_refused(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    for place in ("mine", "w.yaml"):
        with pytest.raises(OutputError, match="cannot write the sweep"):
            run_sweep(swept(workload, "seed=[1, 2]"), tmp_path / place)
    assert runner.runs == []


def test_the_command_line(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = bench(
        "sweep",
        workload,
        "--set",
        CLOSED,
        "--over",
        "load.concurrency={log: [1, 32, 6]}",
        "--out",
        out,
        "--workers",
        "1",
    )
    assert done.exit_code == 0, done.output
    assert "Knee: " in done.stdout and "report.html" in done.stdout
    told = json.loads(
        bench(
            "run",
            workload,
            "--set",
            CLOSED,
            "--set",
            "sweep={load.concurrency: [1, 2]}",
            "--out",
            out,
            "--json",
        ).stdout
    )
    assert [p["status"] for p in told["points"]] == ["done", "done"]
    assert told["knees"][0]["axis"] == "load.concurrency"


def test_ctrl_c_says_how_to_go_on(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    runner.interrupt_at = 1
    done = bench("sweep", workload, "--over", "seed=[1,2,3]", "--out", tmp_path / "out", "--workers", "1")
    assert done.exit_code == 130
    assert f"1 of 3 points are kept in {tmp_path / 'out'}" in done.stderr


def test_the_table_is_tidy(workload: Path, tmp_path: Path) -> None:
    """One row a point, every setting and every figure a column; pandas reads it in one line."""
    import pandas as pd

    over = ["--over", "load.concurrency=1..4 log2", "--over", "engine.kv.prefix_caching=true,false", "--figures", "svg"]
    done = bench("sweep", workload, "--set", CLOSED, *over, "--out", tmp_path / "out", "--workers", "1")
    assert done.exit_code == 0, done.output
    table = pd.read_parquet(tmp_path / "out" / "points.parquet")
    assert len(table) == 6 and table["load.concurrency"].tolist() == [1, 1, 2, 2, 4, 4]
    assert table["engine.kv.prefix_caching"].tolist() == [True, False] * 3
    assert set(table["engine.scheduler.max_num_seqs"]) == {32} and set(table["model"]) == {"meta-llama/Meta-Llama-3-8B"}
    assert (
        table["engine.kv.block_size"].dtype == "int64" and table["traffic.synthetic.input_tokens"].tolist() == [128] * 6
    )
    assert set(table["saturation"]) <= {"stable", "backlogged"}
    assert (table["output_throughput_low"] <= table["output_throughput"]).all()
    assert (table["output_throughput"] <= table["output_throughput_high"]).all()
    assert not table.columns.duplicated().any()
    assert (tmp_path / "out" / "figures" / "throughput.svg").is_file()


def test_points_with_the_same_requests_share_them(
    workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments import point, traffic

    made = []
    real = traffic.make_traffic
    monkeypatch.setattr(traffic, "make_traffic", lambda *arguments: made.append(1) or real(*arguments))
    point._traffic.cache_clear()
    run_sweep(swept(workload, "load.concurrency=[1, 2, 4]"), tmp_path / "a")
    assert len(made) == 1, "the load changes, the requests do not"
    run_sweep(swept(workload, "seed=[7, 8]"), tmp_path / "b")
    assert len(made) == 3


def test_overload_is_said_in_the_summary(workload: Path, tmp_path: Path) -> None:
    many = "traffic.synthetic.requests=400"
    done = bench(
        "sweep", workload, "--set", many, "--over", "traffic.synthetic.arrivals.rate=5,400,800", "--out", tmp_path / "out",
        "--workers", "1",
    )  # fmt: skip
    assert "Overloaded from rate 400 on: the queue grows" in done.stdout
    found = json.loads((tmp_path / "out" / "sweep.json").read_text("utf-8"))
    assert found["saturation"][0]["overloaded"] == [1, 2]
    assert "Overloaded from rate 400 on" in (tmp_path / "out" / "report.html").read_text("utf-8")


@pytest.mark.parametrize("kind", ["jpg", "svg,exe", ""])
def test_kinds_of_figures_that_there_are_not(kind: str, workload: Path, tmp_path: Path) -> None:
    done = bench("sweep", workload, "--over", "seed=1,2", "--out", tmp_path / "out", "--figures", kind)
    assert done.exit_code == 2 and "--figures: unknown kind of figure" in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_axis_is_given_once(workload: Path) -> None:
    done = bench("sweep", workload, "--over", "seed=1,2", "--over", "seed=3,4")
    assert done.exit_code == 2 and "--over: seed: given twice" in done.output
    for wrong, said in (
        (
            "load.concurency=1,2",
            "--over: load.concurency: unknown key 'concurency' in load (did you mean concurrency?)",
        ),
        ("load.concurrency=1..", "--over: load.concurrency: expected a list"),
        ("load.concurrency=", "--over: expected KEY=VALUES"),
        ("=1,2", "--over: expected KEY=VALUES"),
        ("seed", "--over: expected KEY=VALUES"),
        ("load..concurrency=1,2", "--over: load..concurrency: "),
        ("model=nobodys/model,other/model", "--over: model: "),
    ):
        done = bench("sweep", workload, "--over", wrong)
        assert done.exit_code == 2 and said in done.output and "--set" not in done.output, wrong


def test_what_a_killed_sweep_left_half_written_goes(workload: Path, runner: FakeRunner, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert bench("sweep", workload, "--over", "seed=1,2", "--out", out).exit_code == 0
    (out / ".points.parquet.0a1b2c3d.partial").write_bytes(b"PAR1")
    (out / "points" / ".000.0a1b2c3d.partial").mkdir()
    assert bench("sweep", workload, "--over", "seed=1,2,3", "--out", out).exit_code == 0
    assert not list(out.rglob(".*.partial"))


def test_a_point_that_cannot_run_names_where_its_value_was_given(workload: Path, tmp_path: Path) -> None:
    over = ("--over", "engine.kv.prefix_caching=true,false", "--set", "engine.scheduler.name=static")
    done = bench("sweep", workload, *over, "--out", tmp_path / "out", "--workers", "1")
    assert done.exit_code == 0, done.output
    failed = next(line for line in done.output.splitlines() if line.startswith("failed: "))
    assert "prefix_caching true: --over: engine.kv.prefix_caching: true cannot be" in failed
