from __future__ import annotations

import copy
import json
from html.parser import HTMLParser

import foreign_results as foreign
import numpy as np
import pytest
from rich.console import Console
from synthetic_runs import make_requests, make_run, simulated_run

from reports import strict_json
from reports.compare import compare, compare_sweeps, read_sweep
from reports.compare.bootstrap import ratio_intervals, sample
from reports.compare.comparison import FIGURES, ratio_of
from reports.compare.console import print_comparison, print_sweeps
from reports.compare.points import point_names
from reports.compare.text import markdown, markdown_sweeps, told_change
from reports.html.compare_page import render_comparison, render_sweep_comparison
from reports.imports import read_results
from reports.metrics import summarize
from reports.run_folder import read_run, write_run
from reports.subject import Subject
from reports.traffic import Traffic
from workloads.errors import InputError

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> 名前 \"'&|`" + "x" * 400


@pytest.fixture(scope="module")
def first() -> Subject:
    return Subject.of(simulated_run(400, 15))


@pytest.fixture(scope="module")
def slower() -> Subject:
    return Subject.of(simulated_run(400, 15, max_num_seqs=16)).named("slower")


def rows(comparison) -> dict:
    return {row.key: row for row in comparison.rows}


class Balanced(HTMLParser):
    """Collects tags and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.text = [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)


# figures


def test_a_run_against_itself(first):
    found = compare([first, first])
    assert found.paired == (True,)
    for row in found.rows:
        ratio = row.ratios[0]
        assert ratio.ratio == 1.0, row.key
        assert ratio.verdict == "same", row.key
        assert ratio.low is None or (ratio.low, ratio.high) == (1.0, 1.0), row.key
    assert [s.name for s in found.subjects] == ["chat on one H100", "chat on one H100 (2)"]


def test_what_is_worse_is_told_with_an_interval(first, slower):
    found = rows(compare([first, slower]))
    ttft = found["mean_ttft_ms"].ratios[0]
    assert ttft.verdict == "worse"
    assert 1 < ttft.low < ttft.ratio < ttft.high
    back = rows(compare([slower, first]))["mean_ttft_ms"].ratios[0]
    assert back.verdict == "better"
    assert back.ratio == pytest.approx(1 / ttft.ratio)
    assert found["mean_concurrency"].ratios[0].verdict == "", "neither way is better"
    assert found["p99_itl_ms"].ratios[0].low is None, "the gaps of one step are one event"


def test_directions_of_every_figure():
    assert {key for key, *_ in FIGURES} >= {"output_throughput", "p99_ttft_ms", "slo_attainment", "kv_wasted_mean"}
    for _, _, _, better in FIGURES:
        verdicts = [ratio_of(1.0, after, (after - 0.1, after + 0.1), better).verdict for after in (2.0, 0.5, 1.0)]
        expected = {"higher": ["better", "worse", "same"], "lower": ["worse", "better", "same"], "": ["", "", "same"]}
        assert verdicts == expected[better]


@pytest.mark.parametrize(
    ("before", "after", "ends", "ratio", "verdict"),
    [
        (0.0, 0.0, None, 1.0, "same"), (0.0, 3.0, None, None, ""), (None, 3.0, None, None, ""), (3.0, None, None, None, ""),
        (2.0, 0.0, None, 0.0, ""), (2.0, 2.0, None, 1.0, "same"), (2.0, 3.0, None, 1.5, ""), (2.0, 3.0, (0.9, 2.0), 1.5, "same"),
    ],
)  # fmt: skip
def test_ratios_at_the_edges(before, after, ends, ratio, verdict):
    found = ratio_of(before, after, ends, "higher")
    assert (found.ratio, found.verdict) == (ratio, verdict)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_intervals_hold_the_true_ratio(paired, memory):
    """Latencies that wander (each remembers the last), a true ratio of 1.1: about 95 % of the intervals hold it."""
    rng = np.random.default_rng(1)
    n, held, trials = 800, 0, 40
    for _ in range(trials):
        noise = [_wandering(rng, n, memory) for _ in range(2)]
        base = np.exp(0.3 * noise[0])
        other = 1.1 * np.exp(0.3 * noise[0] + 0.05 * rng.standard_normal(n)) if paired else 1.1 * np.exp(0.3 * noise[1])
        subjects = [Subject.of(_run(values), summary={}) for values in (base, other)]
        low, high = ratio_intervals(*subjects, paired=paired, draws=200)["mean_ttft_ms"]
        held += low <= 1.1 * (np.exp(0.00125) if paired else 1.0) <= high
    assert held / trials > 0.78
    assert held < trials


def _wandering(rng, n, memory):
    found = np.empty(n)
    found[0] = rng.standard_normal()
    steps = rng.standard_normal(n) * np.sqrt(1 - memory**2)
    for i in range(1, n):
        found[i] = memory * found[i - 1] + steps[i]
    return found


def _run(ttft):
    sent = np.arange(len(ttft)) * 0.1
    r = make_requests(len(ttft), sent=sent, first_token=sent + ttft, finish=sent + ttft + 1, output_tokens=5)
    return make_run(r)


def test_all_weights_one_are_the_run_itself(first):
    """What the bootstrap resamples adds up to the summary's own figures."""
    s = sample(first.data, timed=True)
    ones = np.ones(s.blocks, np.int64)
    assert s.sums["outputs"].sum() / s.sums["time"].sum() == pytest.approx(first.summary["output_throughput"])
    assert s.sums["e2el"].sum() / s.sums["done"].sum() * 1e3 == pytest.approx(first.summary["mean_e2el_ms"])
    found = s.latencies["ttft"].percentiles(ones, [50.0, 90.0, 99.0])
    for value, key in zip(found, ("p50", "p90", "p99"), strict=True):
        assert value * 1e3 == pytest.approx(first.summary[f"{key}_ttft_ms"])


def test_small_and_empty_runs():
    tiny = [Subject.of(simulated_run(3, 10, max_num_seqs=seats)) for seats in (8, 1)]
    found = rows(compare(tiny))
    assert found["mean_ttft_ms"].values[0] is not None
    assert "p99_ttft_ms" not in found
    empty = Subject.of(make_run(make_requests(0)))
    assert ratio_intervals(empty, empty, paired=True) == {}
    assert render_comparison(compare([empty, empty]))


# traffic and settings


def test_other_traffic_is_refused_unless_forced(first):
    other = Subject.of(simulated_run(300, 15)).named("other")
    with pytest.raises(InputError, match=r"requests 400 and 300.*--force"):
        compare([first, other])
    forced = compare([first, other], force=True)
    assert forced.paired == (False,)
    assert any("different traffic" in note for note in forced.notes)
    changed = copy.deepcopy(first.data)
    changed.requests.target_tokens[:7] += 1
    with pytest.raises(InputError, match="answer lengths of 7 requests"):
        compare([first, Subject.of(changed)])
    with pytest.raises(InputError, match="two runs or more"):
        compare([first])


def test_settings_that_differ_are_told_in_full(first):
    other = copy.deepcopy(first.data)
    other.config["engine"]["preset"]["value"] = "sglang"
    other.config["extra"] = {"value": 1, "source": "user"}
    found = compare([first, Subject.of(other)])
    assert found.settings == {"engine.preset": (first.config["engine.preset"], "sglang"), "extra": (None, 1)}


def test_simulated_beside_measured(first, tmp_path):
    from reports.export import write_vllm_result

    write_vllm_result(first.data, tmp_path / "v.json", detailed=True)
    (measured,) = read_results(tmp_path / "v.json")
    found = compare([first, measured])
    assert found.paired == (False,)
    assert any("taken for the same traffic by" in note for note in found.notes)
    assert rows(found)["mean_ttft_ms"].ratios[0].ratio == pytest.approx(1.0)
    (flat,) = read_results(_put(tmp_path / "flat.json", foreign.vllm(foreign.Known(), detailed=False)))
    with pytest.raises(InputError, match="requests 400 and 12"):
        compare([first, flat])
    forced = compare([first, flat], force=True)
    assert any("no requests in the file of" in note for note in forced.notes)
    assert rows(forced)["output_throughput"].ratios[0].low is None
    assert render_comparison(forced).count("<figure ") == 6


def test_unknown_facts_do_not_differ():
    from reports.traffic import differences

    known = Traffic(None, 100, 5000, 2000, "open", None, 3.0)
    assert differences(known, Traffic()) == []
    assert differences(known, Traffic(None, 100, 5050, 1990, "open", None, 3.1)) == []
    assert differences(known, Traffic(None, 100, 6000, 2000, "closed", 8, None)) == [
        "prompt tokens 5,000 and 6,000", "kind of load open and closed",
    ]  # fmt: skip


def _put(path, content):
    path.write_text(json.dumps(content), "utf-8")
    return path


# how it reads


def test_json_markdown_and_console(first, slower):
    found = compare([first, slower])
    plain = json.loads(strict_json.dumps(found.plain()))
    assert [r["name"] for r in plain["runs"]] == ["chat on one H100", "slower"]
    assert any(f["key"] == "output_throughput" and f["ratios"][0]["ratio"] for f in plain["figures"])
    text = markdown(found)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table[: len(found.rows) + 2]}) == 1
    for width, encoding in ((200, "utf-8"), (60, "ascii")):
        console = Console(width=width, record=True, file=_Sink(encoding))
        print_comparison(found, console)
        assert "mean TTFT" in console.export_text().replace("\n", "") or width == 60


class _Sink:
    def __init__(self, encoding):
        self.encoding = encoding

    def write(self, text):
        text.encode(self.encoding, "replace")
        return len(text)

    def flush(self):
        pass


def test_changes_read_well():
    def change(*ends):
        return told_change(ratio_of(1.0, ends[0], ends[1:] or None, "higher"))

    assert change(1.092, 1.049, 1.141) == "+9.2% (+4.9% .. +14.1%)"
    assert change(0.5) == "-50.0%"
    assert change(12.0, 10.0, 15.0) == "x12 (x10 .. x15)"
    assert told_change(ratio_of(None, 1.0, None, "")) == "-"


def test_the_page_survives_hostile_names_and_four_runs(first):
    subjects = [first.named(HOSTILE + str(i)) for i in range(4)]
    found = compare(subjects)
    page = render_comparison(found)
    parsed = Balanced(page)
    assert parsed.tags.count("script") == 2
    assert "img" not in parsed.tags
    assert parsed.tags.count("figure") == 6
    assert all(len(s.name) <= 66 for s in found.subjects)
    assert len({s.name for s in found.subjects}) == 4
    assert len(page) < 600_000
    assert "<script>" not in markdown(found).replace(r"\<", "")


# sweeps


def sweep_folder(folder, name, slow=1.0, loads=(1, 2, 4, 8), folders=True):
    points = []
    for load in loads:
        run = simulated_run(60, 4.0 * load, max_num_seqs=int(64 / slow))
        summary = summarize(run, with_intervals=False)
        place = f"points/concurrency={load}"
        if folders:
            write_run(run, folder / place, report=False, summary=summary)
        points.append(
            {
                "values": {"load.concurrency": load},
                "status": "done",
                "folder": place,
                "fingerprint": f"f{load}",
                "summary": summary,
            }
        )
    points.append({"values": {"load.concurrency": 99}, "status": "failed", "summary": {}, "folder": None})
    folder.mkdir(parents=True, exist_ok=True)
    content = {"schema_version": 1, "name": name, "axes": {"load.concurrency": list(loads)}, "points": points}
    (folder / "sweep.json").write_text(strict_json.dumps(content), "utf-8")
    return folder


def test_points_of_a_sweep_are_called_by_what_was_swept_between_them(tmp_path):
    folder = sweep_folder(tmp_path / "a", "s")

    def names(*runs):
        return [s.name for s in compare([Subject.of(read_run(r), str(r)) for r in runs], force=True).subjects]

    place = folder / "points"
    assert names(place / "concurrency=1", place / "concurrency=8") == ["concurrency 1", "concurrency 8"]
    raw = json.loads((folder / "sweep.json").read_text())
    for point, preset in zip(raw["points"], ["vllm", "sglang"], strict=False):
        point["values"] = {"load.concurrency": 4, "engine.preset": preset}
    (folder / "sweep.json").write_text(json.dumps(raw))
    assert names(place / "concurrency=1", place / "concurrency=2") == ["vllm", "sglang"]
    assert point_names([str(place / "concurrency=1" / "run.json"), str(tmp_path)]) == ["", ""]
    (folder / "sweep.json").write_text("{")
    assert names(place / "concurrency=1", place / "concurrency=2") == ["concurrency=1", "concurrency=2"]


def test_sweeps_are_held_point_by_point(tmp_path):
    a = read_sweep(sweep_folder(tmp_path / "a", HOSTILE))
    b = read_sweep(sweep_folder(tmp_path / "b", HOSTILE, slow=8, loads=(1, 2, 4, 16)))
    found = compare_sweeps([a, b])
    assert [s.name for s in found.sweeps] == ["a", "b"]
    points = {row[0].values["load.concurrency"] for row in found.rows}
    assert points == {1, 2, 4}
    ttft = [row[6][0] for row in found.rows if row[1] == "median_ttft_ms"]
    assert all(r.low is not None for r in ttft), "the points' folders are there"
    assert any("3 points in common" in note for note in found.notes)
    assert any("1 points are missing or failed" in note for note in found.notes)
    page = render_sweep_comparison(found)
    parsed = Balanced(page)
    assert parsed.tags.count("figure") == 4
    assert parsed.tags.count("script") == 2
    assert markdown_sweeps(found).count("\n|") > 3
    console = Console(width=120, record=True, file=_Sink("utf-8"))
    print_sweeps(found, console)
    assert "median TTFT" in console.export_text()
    assert json.loads(strict_json.dumps(found.plain()))["figures"][0]["point"] == {"load.concurrency": 1}


def test_sweeps_that_cannot_be_compared(tmp_path):
    a = read_sweep(sweep_folder(tmp_path / "a", "a", folders=False))
    other = read_sweep(sweep_folder(tmp_path / "b", "b", loads=(32,), folders=False))
    with pytest.raises(InputError, match="no point in common"):
        compare_sweeps([a, other])
    raw = json.loads((tmp_path / "a" / "sweep.json").read_text())
    raw["points"][0]["summary"]["requests"] = 7
    _put(tmp_path / "a" / "sweep.json", raw)
    changed = read_sweep(tmp_path / "a")
    with pytest.raises(
        InputError, match="different traffic at 1 of 4 common points, first at concurrency 1: requests 60 and 7"
    ):
        compare_sweeps([a, changed])
    assert compare_sweeps([a, changed], force=True).notes
    with pytest.raises(InputError, match="two sweeps"):
        compare_sweeps([a])
    more = read_sweep(sweep_folder(tmp_path / "c", "c"))
    rate = sweep_folder(tmp_path / "d", "d", loads=(1,))
    raw = json.loads((rate / "sweep.json").read_text())
    raw["points"][0]["folder"] = str(tmp_path / "c" / "points" / "concurrency=8")  # another traffic at the same point
    _put(rate / "sweep.json", raw)
    with pytest.raises(InputError, match="requests per second 4 and 32"):
        compare_sweeps([more, read_sweep(rate)])


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "not a readable sweep"), ("[]", "no list of points"), ('{"points": 3}', "no list of points"),
     ('{"points": [{"summary": {}}, 4]}', "no finished point")],
)  # fmt: skip
def test_broken_sweeps(tmp_path, content, said):
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(InputError, match=said):
        read_sweep(tmp_path)
