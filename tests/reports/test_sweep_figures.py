"""The figures of a sweep: which there are, what they show, and the files for papers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reports.html.sweep_export import KINDS, _draw, export_figures
from reports.html.sweep_figures import Plot, sweep_plots
from reports.html.sweep_series import Sweep
from reports.uncertainty import FIGURES


def summary(rate: float, **changes: object) -> dict:
    """A run at a load: up to 40 a second everything keeps pace, beyond it is overloaded."""
    served = min(rate, 40.0)
    figures = {
        "output_throughput": served * 100, "request_throughput": served, "median_e2el_ms": 500 + 20 * rate,
        "median_tpot_ms": 8.0, "p95_tpot_ms": 10.0, "p99_tpot_ms": 12.0, "median_ttft_ms": 20.0 + rate,
        "p95_ttft_ms": 50.0 + rate**2, "p99_ttft_ms": 80.0 + rate**2, "request_goodput": served * 0.9,
        "slo_attainment": 0.9, "kv_used_mean": 0.3, "kv_used_peak": 0.6, "kv_cached_mean": 0.1, "kv_reserved_mean": 0.02,
        "kv_internal_mean": 0.01, "kv_external_mean": 0.0, "prefix_hit_rate": 0.25, "kv_pool_tokens": 100_000,
        "completed": 100, "total_input_tokens": 50_000, "total_output_tokens": 10_000, "mean_batch": 12.0,
        "saturation": {"label": "overloaded" if rate > 40 else "stable"}, "interval": None,
    }  # fmt: skip
    return figures | changes


def sweep(presets: tuple[str, ...] = (), **changes: object) -> Sweep:
    rates = [5.0, 10, 20, 30, 40, 60, 80]
    points = [
        {"settings": {"traffic.synthetic.arrivals.rate": rate} | ({"engine.preset": p} if p else {}),
         "summary": summary(rate, **changes)}
        for p in presets or ("",)
        for rate in rates
    ]  # fmt: skip
    axes = ["traffic.synthetic.arrivals.rate", *(["engine.preset"] if presets else [])]
    return Sweep(points, axes)


def plots(found: Sweep, slo: dict | None = None) -> dict[str, Plot]:
    return {plot.key: plot for plot in sweep_plots(found, slo or {}, {name: found.knee(name) for name in found.series})}


def test_one_configuration() -> None:
    found = plots(sweep(), {"ttft_ms": 500.0})
    assert list(found) == ["throughput", "latency", "ttft", "interactivity", "tpot", "goodput", "slo", "kv", "hits"]
    (knee,) = found["throughput"].marks.knees
    assert knee == (40.0, 4000.0, "knee at 40")
    assert found["latency"].marks.knees == [(4000.0, 1300.0, "knee at 40")]  # the same run, where a reader looks for it
    assert found["interactivity"].marks.knees == [(125.0, 4000.0, "knee at 40")]
    assert [curve.name for curve in found["ttft"].lines] == ["p50", "p95", "p99"]
    assert found["ttft"].marks.limit == (500.0, "SLO 500 ms") and found["tpot"].marks.limit is None
    assert [curve.name for curve in found["goodput"].lines] == ["met the SLO", "all that finished"]
    waste = next(curve for curve in found["kv"].lines if curve.name == "reserved or wasted")
    assert [spot.y for spot in waste.spots] == pytest.approx([3.0] * 7)


def test_keys_that_end_alike_are_told_apart() -> None:
    axes = ["engine.scheduler.name", "backend.name"]
    points = [
        {"settings": {axes[0]: s, axes[1]: b}, "summary": summary(5.0)} for s in ("a", "b") for b in ("sim", "torch")
    ]
    found = Sweep(points, axes)
    assert list(found.series) == ["backend.name sim", "backend.name torch"]
    assert found.title("backend.name sim", points[0]) == "scheduler.name a, backend.name sim"
    assert plots(found)["throughput"].title.endswith("by scheduler.name")


def test_overloaded_points_are_rings_and_said() -> None:
    found = plots(sweep())
    assert [spot.hollow for spot in found["throughput"].lines[0].spots] == [False] * 5 + [True] * 2
    assert "hollow points: overloaded" in found["throughput"].note
    drawn = found["throughput"].figure()
    assert str(drawn.svg).count("fill:var(--card)") == 2
    calm = plots(sweep(saturation={"label": "stable"}))
    assert calm["throughput"].note == ""


def test_several_configurations_have_a_line_each() -> None:
    found = plots(sweep(("vllm", "sglang")))
    assert {"ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p95", "tpot_p99", "kv", "waste"} <= set(found)
    assert [curve.name for curve in found["latency"].lines] == ["preset vllm", "preset sglang"]
    assert len(found["throughput"].marks.knees) == 2 and all(not label for *_, label in found["throughput"].marks.knees)


def test_curves_on_the_page_differ_without_colour() -> None:
    """Every series has a mark of its own, in the figure as in the legend."""
    figure = plots(sweep(("vllm", "sglang", "orca")))["throughput"].figure()
    drawn = [set(re.findall(r'<path d="([^"]+)" class="point"', str(part))) for part in figure.glyphs]
    assert [len(each) for each in drawn] == [0, 1, 1] and drawn[1] != drawn[2], "the first is a circle"
    series = re.findall(r'<g data-series="\d">(.*?)</g>', str(figure.svg))
    assert [set(re.findall(r'<path d="([^"]+)" class="point"', part)) for part in series] == drawn
    assert ["<circle" in part for part in series] == [True, False, False]


def test_curves_on_paper_differ_without_colour() -> None:
    """In the legend as in the figure."""
    drawn = _draw(plots(sweep(("vllm", "sglang")))["throughput"]).axes[0]
    in_legend = [handle.get_marker() for handle in drawn.get_legend().legend_handles]
    assert len(set(in_legend)) == 2 and not {"None", None, ""} & set(in_legend)
    assert set(in_legend) <= {line.get_marker() for line in drawn.lines}


def test_concurrency_against_context_length_where_lengths_differ() -> None:
    points = [
        {"settings": {"traffic.synthetic.input_tokens": n},
         "summary": summary(10, total_input_tokens=100 * n, total_output_tokens=0, mean_batch=1e5 / n)}
        for n in (32_768, 4096, 1024)
    ]  # fmt: skip
    found = plots(Sweep(points, ["traffic.synthetic.input_tokens"]))
    batch, room = found["context"].lines
    assert [spot.x for spot in batch.spots] == [1024, 4096, 32_768], "by length, whatever the order of the axis"
    assert [spot.y for spot in room.spots] == pytest.approx([1e5 / 1024, 1e5 / 4096, 1e5 / 32_768])
    assert found["context"].log_x and "context" not in plots(sweep())


def test_figures_without_data_are_left_out() -> None:
    bare = sweep(prefix_hit_rate=0.0, request_goodput=None, slo_attainment=None, kv_used_mean=None, kv_cached_mean=None,
                 kv_used_peak=None, kv_reserved_mean=None)  # fmt: skip
    assert not {"goodput", "slo", "kv", "hits"} & set(plots(bare))
    empty = Sweep([], [])
    assert [plot.key for plot in sweep_plots(empty, {}, {})] == ["throughput"]


def test_files_for_papers(tmp_path: Path) -> None:
    hostile = '<script>alert(1)</script> $x^2$ "é漢' + "y" * 300
    bare = dict.fromkeys(("request_goodput", "slo_attainment", "kv_used_mean", "kv_cached_mean", "kv_used_peak",
                          "kv_reserved_mean", "prefix_hit_rate"))  # fmt: skip
    bare["prefix_hit_rate"] = 0.0
    points = [
        {"settings": {"load.concurrency": n, hostile: hostile}, "summary": summary(n, **bare)} for n in (1, 4, 16, 64)
    ]
    for point in points:
        point["summary"]["interval"] = {"figures": {key: [1.0, 1e4] for key in FIGURES}}
    axes = ["load.concurrency", hostile]
    written = export_figures(points, axes, tmp_path / "a", KINDS, slo={"ttft_ms": 1000.0})
    assert {path.name for path in written} == {
        f"{figure}.{kind}" for figure in ("throughput", "latency", "ttft", "interactivity", "tpot") for kind in KINDS
    }
    starts = {".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG"}
    assert all(path.read_bytes().startswith(starts[path.suffix]) for path in written)
    assert all(b"<script>" not in path.read_bytes() for path in written if path.suffix == ".svg")
    for path in export_figures(points, axes, tmp_path / "b", ["svg"], slo={"ttft_ms": 1000.0}):
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes(), "the same sweep gives the same bytes"
    assert [path.name for path in export_figures([], [], tmp_path / "none", ["svg"])] == ["throughput.svg"]
