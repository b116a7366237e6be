from __future__ import annotations

import csv
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import make_requests, make_run, simulated_run

from reports.export_tables import request_table, summary_rows, write_csv, write_parquet
from reports.figures import export_run_figures
from reports.gantt import DECODE, PREFILL, QUEUE, bars
from reports.html.timeline_figures import hit_rates
from reports.metrics import summarize


@pytest.fixture(scope="module")
def run():
    return simulated_run(60, 12, max_num_seqs=8, refuse=0.05)


def test_csv_and_parquet_agree_with_the_summary(run, tmp_path):
    summary = summarize(run)
    assert [f.name for f in write_csv(run, summary, tmp_path)] == ["requests.csv", "timeline.csv", "summary.csv"]
    assert [f.name for f in write_parquet(run, tmp_path)] == ["requests.parquet", "timeline.parquet"]
    for table in (pd.read_csv(tmp_path / "requests.csv"), pd.read_parquet(tmp_path / "requests.parquet")):
        assert len(table) == 60
        assert table.ttft_ms.mean() == pytest.approx(summary["mean_ttft_ms"])
        assert table.tpot_ms.median() == pytest.approx(summary["median_tpot_ms"])
        assert table.ttft_ms.isna().sum() == (table.status == "refused").sum() > 0
        assert table.met_slo.mean() == pytest.approx(summary["slo_attainment"])
    figures = pd.read_csv(tmp_path / "summary.csv").set_index("figure")
    assert float(figures.value["output_throughput"]) == pytest.approx(summary["output_throughput"])
    assert float(figures.low["mean_ttft_ms"]) < summary["mean_ttft_ms"] < float(figures.high["mean_ttft_ms"])
    assert pd.read_csv(tmp_path / "timeline.csv").output_tokens.sum() == run.timeline.output_tokens.sum()


def test_no_spreadsheet_takes_a_reason_for_a_formula(tmp_path):
    r = make_requests(2, status="failed", reason=['=HYPERLINK("x")', 'line\nbreak, "quoted" 名前 \ud800'])
    write_csv(make_run(r), {}, tmp_path)
    with (tmp_path / "requests.csv").open(encoding="utf-8", newline="") as file:
        reasons = [row["reason"] for row in csv.DictReader(file)]
    assert reasons[0].startswith("'=HYPERLINK")
    assert reasons[1].startswith("line\nbreak")


def test_tables_of_nothing(tmp_path):
    empty = make_run(make_requests(0))
    write_csv(empty, summarize(empty), tmp_path)
    write_parquet(empty, tmp_path)
    assert len(pd.read_parquet(tmp_path / "requests.parquet")) == 0
    assert set(request_table(empty)) >= {"ttft_ms", "tpot_ms", "e2e_ms"}
    assert ("completed", 0, None, None) in summary_rows(summarize(empty))


def test_figures_are_the_same_bytes_each_time(run, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        files = export_run_figures(run, tmp_path / name, ["svg"])
    names = {f.stem for f in files}
    assert names == {
        "ttft_cdf",
        "tpot_cdf",
        "itl_cdf",
        "e2el_cdf",
        "throughput",
        "queue",
        "batch",
        "kv",
        "hits",
        "gantt",
    }
    for file in files:
        assert file.stat().st_size > 1000
        assert file.read_bytes() == (tmp_path / "a" / file.name).read_bytes()
    assert "mathdefault" not in (tmp_path / "b" / "itl_cdf.svg").read_text()


def test_figures_of_little(tmp_path):
    assert export_run_figures(make_run(make_requests(0)), tmp_path, ["svg"]) == []
    one = make_run(make_requests(1, sent=0.0, first_token=0.1, finish=0.1, output_tokens=1))
    for kind in ("pdf", "png"):
        files = export_run_figures(one, tmp_path, [kind])
        assert {f.stem for f in files} >= {"ttft_cdf", "gantt"}
        first = [f.read_bytes() for f in files]
        assert [f.read_bytes() for f in export_run_figures(one, tmp_path, [kind])] == first


def test_matplotlib_is_loaded_for_figures_only():
    code = "import sys, reports.figures, reports.export_tables; print('matplotlib' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# what the figures are drawn from


def test_phases_by_hand():
    nan = np.nan
    r = make_requests(
        4, sent=[0.0, 1.0, 2.0, 3.0], queued=[0.0, 1.0, 2.0, 3.0], admitted=[0.5, nan, 2.0, nan],
        first_token=[1.0, 1.5, nan, nan], finish=[2.0, 3.0, nan, nan],
        status=["finished", "finished", "unfinished", "unfinished"],
    )  # fmt: skip
    found = [(b.row, b.start, b.end, b.phase) for b in bars(make_run(r, end=4.0))]
    assert found == [
        (0, 0.0, 0.5, QUEUE), (0, 0.5, 1.0, PREFILL), (0, 1.0, 2.0, DECODE),
        (1, 1.0, 1.5, PREFILL), (1, 1.5, 3.0, DECODE),  # a remote server: nobody saw it admitted
        (2, 2.0, 4.0, PREFILL),  # cut short
        (3, 3.0, 4.0, QUEUE),
    ]  # fmt: skip


def test_rows_are_in_order_of_sending():
    r = make_requests(3, sent=[5.0, 1.0, np.nan], first_token=[6.0, 2.0, np.nan], finish=[7.0, 3.0, np.nan])
    found = bars(make_run(r, end=9.0))
    assert [b.row for b in found] == sorted(b.row for b in found)
    assert (found[0].row, found[0].start) == (0, 1.0)
    assert max(b.row for b in found) == 1, "what was never sent has no row"


def test_hit_rates_add_up():
    r = make_requests(4, sent=0.0, admitted=[0.1, 0.2, 0.9, np.nan], input_tokens=100, cached_tokens=[0, 50, 100, 0])
    times, now, running = hit_rates(make_run(r, end=1.0))
    assert times.tolist() == [0.5, 1.0]
    assert now.tolist() == [25.0, 100.0]
    assert running[-1] == pytest.approx(50.0)
    assert hit_rates(make_run(make_requests(2))) is None
