from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_runs import example_config, make_requests, make_run, simulated_run

from reports.console import print_gate, print_summary
from reports.gate import gate, update_baseline
from reports.metrics import summarize
from reports.plan import print_plan
from reports.uncertainty import interval_of
from reports.wording import alike, clean, number, seconds, share, size

HOSTILE = "[red]名前[/red] <script> \x1b[31mboo\x07 \u202eevil"


def printed(write, *, width=100, encoding="utf-8", **options) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    write(Console(file=file, width=width, **options))
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.fixture(scope="module")
def run():
    run = simulated_run(200, 12, refuse=0.05)
    run.info["name"] = HOSTILE
    run.warnings = ["the trace has no timestamps", "the trace has no timestamps"]
    return run


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("terminal", [True, False])
def test_any_terminal_will_do(run, encoding, width, terminal):
    summary = summarize(run)

    def write(console):
        print_plan(run.info, run.config, console)
        print_summary(run, summary, console, out=Path("runs/x"), knee="beyond 10")

    text = printed(write, width=width, encoding=encoding, force_terminal=terminal, color_system=None)
    assert "\x1b[31mboo" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "[red]" in text  # shown, not obeyed


def test_summary_says_what_matters(run):
    summary = summarize(run)
    text = printed(lambda c: print_summary(run, summary, c, out=Path("runs/x"), knee="beyond 10"))
    for words in (
        "Successful requests", "Refused requests", "longer than the context", "Output token throughput", "Goodput",
        "TTFT", "TPOT", "ITL", "E2E latency", "KV pool used", "Stable", "Knee: beyond 10", "mean batch",
        "requests arrived at", "times real time", "report.html",
    ):  # fmt: skip
        assert words in text, words
    assert text.count("no timestamps") == 1
    assert number(summary["output_throughput"]) in text


def test_nothing_finished_and_cut_short():
    run = make_run(make_requests(2, status="unfinished", finish=float("nan")), complete=False, end=3.0)
    text = printed(lambda c: print_summary(run, summarize(run), c))
    assert "n/a" in text
    assert "cut short at 3 s" in text
    assert "nan" not in text.lower()


def test_gate_table(run, tmp_path):
    update_baseline(run, tmp_path / "b.json", "x")
    text = printed(lambda c: print_gate(gate(run, tmp_path / "b.json"), c), encoding="ascii")
    assert "output_throughput" in text
    assert "Gate passed" in text


def test_wording():
    assert [number(v) for v in (12345.6, 1234.5, 98.765, 0.01234, 7, None, float("nan"), 1e-12)] == [
        "12,346", "1,234", "98.77", "0.0123", "7", "n/a", "n/a", "0",
    ]  # fmt: skip
    assert [seconds(v) for v in (2e-5, 0.25, 3, 600, 10_000)] == [
        "20 us",
        "250 ms",
        "3 s",
        "10 min",
        "2.78 h",
    ]
    assert [share(v) for v in (0.5, 0.0123, 0, None)] == ["50.0%", "1.23%", "0.0%", "n/a"]
    assert size(7_864_320_000) == "7.86 GB"
    assert clean("a" * 50, 10) == "aaaaaaa..."


def test_example_configuration_is_like_a_real_one():
    assert example_config()["engine"]["kv"]["block_size"] == {"value": 16, "source": "preset"}


def test_ranges_stand_beside_figures_where_there_is_room():
    run = simulated_run(300, 20)
    run.config = {"traffic": {"synthetic": {}}}
    summary = summarize(run)
    ends = " - ".join(number(end) for end in interval_of(summary, "output_throughput"))
    text = printed(lambda console: print_summary(run, summary, console), width=140)
    assert ends in text
    assert "Ranges hold with 80% probability, given the chance in the traffic." in text
    run.config = {"traffic": {"trace": {}}}
    bare = summarize(run)
    assert "Ranges" not in printed(lambda console: print_summary(run, bare, console), width=140)


def test_reasons_that_differ_in_numbers_alone_are_told_once():
    reasons = {f"status: 400 at most 8,192 tokens, not {n}": 1 for n in range(9000, 9020)}
    reasons |= {"status: 503 busy": 3, "status: 429 busy": 4, "cut: half": 1, "connect: refused": 2}
    told = alike(reasons, 60, 3)
    assert told[0][1] == 20 and told[0][0].startswith("status: 400 at most 8,192 tokens, not 90")
    assert told[1:] == [("status: 429 busy", 4), ("status: 503 busy", 3), ("others", 3)]
    assert alike({}, 60, 3) == [] and alike({"x" * 99: 1}, 10, 1) == [("xxxxxxx...", 1)]
