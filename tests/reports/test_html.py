from __future__ import annotations

import json
import re
import time
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import make_requests, make_run, simulated_run

from reports.html import render_report, render_sweep
from reports.html.charts import distribution
from reports.html.curves import Curve, Marks, Spot, curves, pareto
from reports.html.scales import Scale, fit, linear_ticks, log_ticks, tick_label
from reports.html.svg import WIDTH
from reports.html.template import script_json
from reports.html.timeline_figures import Thinned
from reports.metrics import summarize
from reports.percentiles import Distribution
from reports.run_data import TokenTimes
from reports.uncertainty import interval_of
from reports.wording import number

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> 名前 \"'&"
VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """Checks nesting and collects tags, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack, self.tags, self.attributes, self.text = [], [], [], []
        self.feed(page)
        self.close()
        assert not self.stack, self.stack

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page_of(run) -> str:
    return render_report(run, summarize(run))


@pytest.fixture(scope="module")
def run():
    return simulated_run(400, 20, pool=12_000, refuse=0.03)


@pytest.fixture(scope="module")
def points():
    found = []
    for limit in (16, 128):
        for rate in (2, 4, 8, 16, 32, 64):
            summary = summarize(simulated_run(150, rate, max_num_seqs=limit), with_intervals=False)
            found.append({"settings": {"load.rate": rate, "engine.max_num_seqs": limit}, "summary": summary})
    return found


def outside(page: str) -> list[str]:
    """References to anything that is not in the page."""
    found = [v for _, name, v in Page(page).attributes if name in ("src", "href", "action", "data", "srcset") and v]
    return [v for v in found if not v.startswith(("#", "data:"))] + re.findall(
        r"url\((?!['\"]?data:)[^)]*\)|@import", page
    )


def test_a_report_is_whole_and_alone(run):
    page = page_of(run)
    parsed = Page(page)
    text = " ".join(parsed.text)
    for words in (
        "chat on one H100", "Output throughput", "TTFT", "TPOT", "ITL", "E2E latency", "KV cache occupancy", "Glossary",
        "Running and waiting", "What a step computes", "engine.scheduler.max_num_seqs", "longer than the context",
        "fit to published measurements", "times real time", "Overloaded"[1:], "p99",
    ):  # fmt: skip
        assert words in text, words
    assert outside(page) == []
    assert parsed.tags.count("figure") == 11
    assert "NaN" not in page
    assert "nan" not in re.findall(r"\b(nan|inf)\b", page)
    assert ("link", "rel", "icon") in parsed.attributes


def test_lines_over_time_differ_without_colour(run):
    """Each line of a figure has dashes of its own, in the legend as in the figure."""
    page = page_of(run)
    for key in ("throughput", "queue", "requests"):
        (figure,) = re.findall(rf'id="figure-{key}">(.*?)</figure>', page, re.S)
        legend, _, drawn = figure.partition("</div>")
        dashes = [re.findall(r'class="line ?(\w*)"', part) for part in (legend, drawn)]
        assert dashes[0] == dashes[1] and len(set(dashes[0])) == len(dashes[0]) >= 2, key


def test_data_of_the_figures_is_json(run):
    page = page_of(run)
    data = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.S).group(1))
    assert {"ttft", "tpot", "itl", "e2el", "throughput", "queue", "batch", "kv"} <= set(data)
    layers = np.array(data["kv"]["y"])
    assert layers.sum(axis=0) == pytest.approx(100, abs=0.1)
    assert sum(data["ttft"]["y"][0]) == pytest.approx(100, abs=0.5)
    total = sum(data["throughput"]["y"][0]) / len(data["throughput"]["x"])
    assert total == pytest.approx(run.timeline.output_tokens.sum() / run.info["end"], rel=0.02)


def test_what_is_left_at_the_end_makes_no_peak():
    """A request that ends in the last hundredth of a bucket: counts stay, its rate is that of the bucket before it."""
    run = simulated_run(30, 10, width=0.1)
    line = run.timeline
    for left, buckets in ((0.01, len(line.time) - 1), (0.9, len(line.time))):
        run.info["end"] = float(line.time[-1]) + left * line.width
        thin = Thinned(run)
        assert len(thin.time) == buckets
        for name in ("finished", "steps", "output_tokens"):
            assert thin.sums(name).sum() == getattr(line, name).sum()
            assert (thin.rate(name) * thin.span).sum() == pytest.approx(getattr(line, name).sum())
        assert thin.rate("finished").max() <= 1.2 * line.finished.max() / line.width + 1 / (0.5 * line.width)
        assert thin.span.sum() == pytest.approx(run.info["end"])


def test_hostile_names_stay_text(run):
    bad = simulated_run(30, 10)
    bad.info |= {"name": HOSTILE, "backend": HOSTILE, "gpus": HOSTILE}
    bad.config = {HOSTILE: {"value": HOSTILE, "source": HOSTILE}}
    bad.warnings, bad.notes = [HOSTILE], [HOSTILE * 50]
    bad.provenance = [{"what": HOSTILE, "value": HOSTILE, "source": HOSTILE}]
    bad.host = {HOSTILE: HOSTILE}
    bad.requests.status[0], bad.requests.reason[0] = "refused", HOSTILE
    page = page_of(bad)
    clean = Page(page_of(simulated_run(30, 10)))
    found = Page(page)
    assert found.tags.count("script") == clean.tags.count("script") == 2
    assert found.tags.count("img") == 0
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert HOSTILE in "".join(found.text)


def test_scripts_cannot_be_closed_from_within():
    text = script_json({"a": "</script><!--\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--\u2028"}


@pytest.mark.parametrize("timeline", [True, False])
def test_a_run_in_which_nothing_finished(timeline):
    if timeline:
        run = simulated_run(100, 40, cut=0.05)
    else:
        r = make_requests(3, status="refused", reason="too long", finish=np.nan, first_token=np.nan, admitted=np.nan)
        run = make_run(r)
    assert not (run.requests.status == "finished").any()
    page = page_of(run)
    Page(page)
    assert "nothing to show" in page
    assert "Nothing finished" in page


def test_no_requests_and_one_request():
    Page(page_of(make_run(make_requests(0))))
    Page(page_of(simulated_run(1, 1)))


def test_a_hundred_thousand_requests_make_a_small_page_in_a_moment():
    n, steps = 100_000, 200_000
    rng = np.random.default_rng(0)
    first = np.sort(rng.integers(0, steps - 200, n))
    ends = np.cumsum(rng.uniform(0.005, 0.02, steps))
    length = rng.integers(1, 200, n)
    start = ends[first] - 0.001
    r = make_requests(
        n, sent=start - 0.2, queued=start - 0.19, admitted=start - 0.1, first_token=start,
        finish=ends[first + length - 1], output_tokens=length + 1,
    )  # fmt: skip
    small = simulated_run(50, 10, width=0.001)  # thousands of buckets
    run = make_run(r, TokenTimes(np.arange(n), start, first, length, ends), small.timeline, kv_pool_tokens=60_000)
    assert len(run.timeline.time) > 3000
    begin = time.process_time()
    page = page_of(run)
    assert time.process_time() - begin < 10
    assert len(page.encode()) < 1_000_000


def test_percentiles_are_marked_only_where_they_exist():
    few = distribution("ttft", "TTFT", Distribution.of(np.linspace(0.1, 1, 30))).svg
    assert ">p50" in few
    assert ">p95" in few
    assert ">p99" not in few
    assert ">p99" in distribution("ttft", "TTFT", Distribution.of(np.linspace(0.1, 1, 100))).svg


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(0.1, 1, 200),
        np.r_[np.linspace(0.1, 1, 180), np.full(20, 1.0)],
        np.geomspace(0.01, 50, 400),
        np.full(99, 3.0),
    ],
)
def test_names_of_percentiles_cross_no_line_and_stay_inside(values):
    svg = distribution("ttft", "TTFT", Distribution.of(values)).svg
    lines = {
        p: (float(x), float(top))
        for x, top, p in re.findall(r'<line x1="([\d.]+)" y1="([\d.]+)"[^>]*class="pct (p\d+)"', svg)
    }
    names = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="mark" text-anchor="(\w+)">((p\d+)[^<]+)<', svg)
    assert len(names) == len(lines) >= 2
    for at, height, anchor, label, own in names:
        wide = 6.2 * len(label)
        box = (float(at) - wide, float(at)) if anchor == "end" else (float(at), float(at) + wide)
        assert 40 < box[0] < box[1] < WIDTH
        assert not [p for p, (x, top) in lines.items() if p != own and box[0] < x < box[1] and top < float(height) - 10]


def test_the_front_lies_under_the_curves():
    marks = Marks(front=[(1, 1), (2, 2)])
    svg = curves("k", "t", [Curve("a", [Spot(1, 1, ""), Spot(2, 2, "")], 0)], "x", "y", marks=marks).svg
    assert 0 < svg.index('class="front"') < svg.index("data-series")


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=60))
def test_every_value_is_in_a_bin(values):
    figure = distribution("x", "X", Distribution.of(np.array(values)))
    assert sum(figure.data["y"][0]) == pytest.approx(100, abs=0.5)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_linear_ticks_are_round_and_inside(low, reach):
    ticks = linear_ticks(low, low + reach)
    assert all(low - 1e-6 * reach <= t <= low + reach * (1 + 1e-6) for t in ticks)
    assert len(ticks) <= 7


@given(st.floats(1e-6, 1e5), st.floats(1.2, 1e6))
def test_log_ticks_are_few_and_inside(low, ratio):
    ticks = log_ticks(low, low * ratio)
    assert 1 <= len(ticks) <= 9
    assert all(low * 0.99 <= t <= low * ratio * 1.01 for t in ticks)


def test_scales_and_labels():
    assert Scale(0, 10, 100, 200)(5) == 150
    assert Scale(1, 100, 0, 100, log=True)(10) == 50
    assert Scale(0, 10, 0, 100)(99) == 100
    assert fit([]) == (0.0, 1.0)
    assert fit([3, 97]) == (0.0, 100.0)
    assert [tick_label(v) for v in (0, 0.5, 250, 1500, 20_000, 3e6)] == [
        "0",
        "0.5",
        "250",
        "1.5k",
        "20k",
        "3M",
    ]


def test_pareto_front():
    assert pareto([(1, 5), (2, 4), (2, 3), (3, 1), (1, 1)]) == [(1, 5), (2, 4), (3, 1)]
    assert pareto([(1, 1), (2, 2), (2, 3), (3, 9), (3, 8), (0, 5)], low_y=True) == [(1, 1), (2, 2), (3, 8)]


def test_sweep_of_one_axis(points):
    page = render_sweep(points[:6], ["load.rate"], name="rates", slo={"ttft_ms": 500})
    Page(page)
    assert outside(page) == []
    for words in ("Throughput against load", "TTFT against load", "SLO 500 ms", "Knee: beyond", "knee at"):
        assert words in page, words


def test_a_sweep_over_something_else_than_load_has_no_knee_and_no_lines(points):
    presets = [
        {"settings": {"engine.preset": name}, "summary": point["summary"]}
        for name, point in zip(("static", "orca", "vllm"), points, strict=False)
    ]
    page = render_sweep(presets, ["engine.preset"])
    assert "nee in the measured range" not in page and "Knee:" not in page
    assert "Throughput by preset" in page and "against load" not in page
    assert 'class="line' not in page
    scatter = re.search(r'id="figure-latency".*?</svg>', page, re.S).group(0)
    assert re.findall(r'class="mark"[^>]*>([^<]+)<', scatter) == ["static", "orca", "vllm"]
    blocks = [{"settings": {"engine.kv.block_size": 8 << i}, "summary": points[i]["summary"]} for i in range(5)]
    page = render_sweep(blocks, ["engine.kv.block_size"])
    assert "nee in the measured range" not in page and "TTFT by block_size" in page and 'class="line' in page


def test_load_is_on_the_axis_wherever_it_stands(points):
    page = render_sweep(points, ["engine.max_num_seqs", "load.rate"])
    data = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.S).group(1))
    assert data["throughput"]["names"] == ["max_num_seqs 16", "max_num_seqs 128"]


def test_the_column_of_the_slo_is_there_where_there_is_one(points):
    met = [{**point, "summary": {**point["summary"], "slo_attainment": 0.5}} for point in points[:2]]
    none = [{**point, "summary": {**point["summary"], "slo_attainment": None}} for point in points[:2]]
    assert "SLO met" in render_sweep(met, ["load.rate"]) and "SLO met" not in render_sweep(none, ["load.rate"])


def test_sweep_of_two_axes_has_a_series_each(points):
    page = render_sweep(points, ["load.rate", "engine.max_num_seqs"])
    data = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.S).group(1))
    assert data["throughput"]["names"] == ["max_num_seqs 16", "max_num_seqs 128"]
    assert len(data["throughput"]["points"]) == 12
    assert "TTFT p99 against load" in page


def test_sweep_with_failures_names_and_links(points):
    odd = [
        {"settings": {"engine.scheduler": HOSTILE}, "summary": points[0]["summary"], "path": "points/0"},
        {
            "settings": {"engine.scheduler": "static"},
            "summary": points[1]["summary"],
            "path": "javascript:alert(1)",
        },
        {"settings": {"engine.scheduler": "orca"}, "summary": None, "error": HOSTILE},
    ]
    page = render_sweep(odd, ["engine.scheduler"], name=HOSTILE, notes=[HOSTILE], warnings=[HOSTILE])
    parsed = Page(page)
    assert parsed.tags.count("script") == 2
    assert outside(page) == ["points/0/report.html"]
    Page(render_sweep([odd[2]], ["engine.scheduler"]))
    Page(render_sweep([], []))


def test_ranges_are_below_figures_and_bands_in_curves(points):
    run = simulated_run(400, 20)
    run.config = {"traffic": {"synthetic": {}}}
    page = page_of(run)
    low, high = (number(end) for end in interval_of(summarize(run), "output_throughput"))
    assert f'<div class="range">{low} - {high}</div>' in page
    assert "given the chance in the traffic" in page
    assert 'class="band"' not in render_sweep(points, ["load.rate", "engine.max_num_seqs"])
    ranged = [{"settings": {"load.rate": r}, "summary": summarize(simulated_run(150, r))} for r in (4, 16, 64)]
    page = render_sweep(ranged, ["load.rate"])
    assert page.count('class="band"') == 8  # throughput, three of TTFT, three of TPOT, goodput
    assert "Bands and strokes show" in page
    Page(page)
    named = [{"settings": {"engine.preset": n}, "summary": p["summary"]} for n, p in zip("abc", ranged, strict=True)]
    page = render_sweep(named, ["engine.preset"])
    assert page.count('class="whisker"') == 8 and 'class="band"' not in page
    assert re.search(r'd="(M[\d.]+ [\d.]+V[\d.]+){3}" class="whisker"', page)


def test_what_nobody_saw_is_not_shown_as_nought():
    """A server seen from outside: requests and tokens, but no steps, no queue, no memory."""
    run = simulated_run(80, 10)
    for name in ("steps", "prefill_tokens", "decode_tokens", "cached_tokens"):
        setattr(run.timeline, name, np.zeros_like(getattr(run.timeline, name)))
    run.timeline.waiting[:] = 0
    run.info |= {"backend": "http", "kv_pool_tokens": None}
    text = " ".join(Page(page_of(run)).text)
    assert "Engine steps" not in re.findall(r"<h3>(.*?)</h3>", page_of(run)) and "What a step computes" not in text
    assert "In flight" in text
    assert "prefill (computed)" not in text
    assert "Preemptions n/a" in re.sub(r"\s+", " ", text)


def test_a_range_that_reads_like_its_figure_is_not_shown(run) -> None:
    """A figure once, not "100.0%" above "100.0% - 100.0%"; a range that says more stays."""
    sure = {**summarize(run), "slo_attainment": 1.0, "request_goodput": 5.0}
    for ends, shown in (([1.0, 1.0], ""), ([0.99996, 1.0], ""), ([0.9, 1.0], "90.0% - 100.0%"), ([0.9, 0.9], "90.0%")):
        figures = {**sure["interval"]["figures"], "slo_attainment": ends}
        page = render_report(run, {**sure, "interval": {**sure["interval"], "figures": figures}})
        (card,) = re.findall(r'<div class="label">SLO met</div>(.*?)<div class="below">', page)
        found = re.findall(r'<div class="range">(.*?)</div>', card)
        assert found == ([shown] if shown else []), ends
