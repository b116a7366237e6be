"""`bench validate`: what it prints, what it leaves, how it fails."""

import csv
import json

import pytest
from typer.testing import CliRunner

from experiments.cli import app


def bench(*arguments):
    return CliRunner().invoke(app, ["validate", *map(str, arguments)])


@pytest.fixture
def measured(table):
    """Two batches with two metrics, and three rows that are left out."""
    rows = [
        {"concurrency_or_rate": f"batch={b}", "metric": m, "value": str(v)}
        for b in (1, 4) for m, v in (("output_tokens_per_s", 120 * b), ("e2e_latency_ms", 90))
    ]  # fmt: skip
    left = [{"weight_dtype": ""}, {"model": "Unknown-13B"}, {"gpu": "TPU v5e"}]
    return table(*rows, *left)


def test_it_prints_errors_and_leaves_cells_a_figure_and_a_page(flat, measured, tmp_path):
    out = tmp_path / "out"
    result = bench(measured, "--out", out, "--jobs", "1")
    assert result.exit_code == 0, result.output
    for words in (
        "7 measured values",
        "precision missing",
        "unknown model",
        "counted",
        "with what rules leave out",
        "Worst",
    ):
        assert words in result.output
    cells = list(csv.DictReader((out / "cells.csv").open()))
    assert [c["excluded"] for c in cells] == ["", "", "", "", "precision missing", "unknown model", "unknown GPU"]
    assert float(cells[0]["predicted"]) == pytest.approx(55)
    import pyarrow.parquet as parquet

    assert parquet.read_table(out / "cells.parquet").num_rows == 7
    assert (out / "figure.svg").read_text().startswith("<?xml")
    page = (out / "report.html").read_text()
    assert "<html" in page and "unknown model" in page and "http://" not in page.replace("http://www.w3.org", "")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["overall"]["cells"] == 4 and summary["with_excluded"]["cells"] == 5
    assert summary["exclusions"]["unknown model"] == {
        "cells": 1, "reason": "the model's shape is not in our table", "simulated": False,
    }  # fmt: skip
    again = json.loads(bench(measured, "--out", out, "--jobs", "1", "--json").output)
    assert (again["points"], again["known_points"]) == (3, 3)
    assert again["overall"] == summary["overall"]
    fewer = json.loads(bench(measured, "--out", tmp_path / "b", "--skip-excluded", "--json").output)
    assert (fewer["points"], fewer["with_excluded"]["cells"]) == (2, 4)


def test_metrics_sources_and_subsets(flat, measured, tmp_path):
    def cells(*options):
        return json.loads(bench(measured, "--out", tmp_path / "o", "--json", *options).output)["cells"]

    assert cells("--metric", "e2e_latency_ms") == 2
    assert cells("--source", "made") == 7
    assert cells("--subset", "1") <= 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--metric", "ttft"], "unknown metric 'ttft'"),
        (["--source", "mad2e"], "no source 'mad2e'"),
        (["--metric", "itl_ms"], "no row has the metric itl_ms"),
    ],
)
def test_wrong_options_are_told(measured, tmp_path, options, words):
    result = bench(measured, "--out", tmp_path / "o", *options)
    assert result.exit_code == 2
    assert words in result.output


def test_wrong_tables_are_told(table, tmp_path):
    result = bench(table({"value": "fast"}), "--out", tmp_path / "o")
    assert result.exit_code == 2
    assert "made.csv:2, column value: expected a number, found 'fast'" in result.output
    result = bench(table({"metric": "speed"}), "--out", tmp_path / "o")
    assert result.exit_code == 2
    assert "made.csv:2: unknown metric 'speed'" in result.output
    assert bench(tmp_path / "none.csv").exit_code == 2
    assert bench().exit_code == 2


def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(measured, tmp_path):
    (tmp_path / "file").write_text("")
    result = bench(measured, "--out", tmp_path / "file" / "out")
    assert result.exit_code == 2
    assert "cannot write" in result.output


def test_names_that_are_not_known_are_told(flat, table, tmp_path):
    rows = [{}, {"gpu": "H1000"}, {"gpu": "H1000", "value": "3"}, {"model": "my/own-9b"}, {"load_kind": "clsed"}]
    result = bench(table(*rows), "--out", tmp_path / "out", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert "unknown GPU: H1000 (2)" in result.output and "unknown model: my/own-9b (1)" in result.output
    assert "unknown load kind: clsed (1); known: static_batch, " in result.output
