from __future__ import annotations

import copy
import json
from xml.etree import ElementTree

import pytest
from synthetic_runs import simulated_run

from reports.baseline import DEFAULTS
from reports.gate import gate, update_baseline
from reports.gate_output import (
    annotation_refused,
    annotations,
    bencher,
    benchmark_action,
    junit,
    junit_refused,
    markdown,
    unit,
    write_benchmark_action,
    write_text,
)
from workloads.errors import OutputError

HOSTILE = "</testsuite><script>alert(1)</script>|`]]>\x00\x1b[31m\n::error::x 名前 \ud800"


def head(**figures) -> dict:
    return {"summary": figures, "fingerprint": "abc", "info": {"name": HOSTILE, "complete": True}, "config": {}}


@pytest.fixture
def failed(tmp_path):
    update_baseline(head(output_throughput=100.0, p99_ttft_ms=50.0), tmp_path / "b,1.json", "first")
    return gate(head(output_throughput=90.0, p99_ttft_ms=50.0), tmp_path / "b,1.json")


@pytest.fixture
def passed(tmp_path):
    update_baseline(head(output_throughput=100.0), tmp_path / "b.json", "first")
    return gate(head(output_throughput=101.0), tmp_path / "b.json")


def test_junit_survives_hostile_names(failed):
    root = ElementTree.fromstring(junit(failed).encode())
    suite = root.find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    assert "<script>" in suite.get("name")
    cases = {case.get("name"): case for case in suite}
    assert cases["output_throughput"].find("failure").get("message").startswith("output_throughput: baseline 100")
    assert cases["p99_ttft_ms"].find("failure") is None


def test_junit_of_equality(tmp_path):
    run = simulated_run(30, 12)
    update_baseline(run, tmp_path / "b.json", exact=True)
    other = copy.deepcopy(run)
    other.tokens.start[0] += 1e-9
    for one, failures in ((run, "0"), (other, "1")):
        suite = ElementTree.fromstring(junit(gate(one, tmp_path / "b.json")).encode()).find("testsuite")
        assert suite.get("failures") == failures
        assert (suite[-1].get("name"), suite[-1].find("failure") is None) == ("equality", failures == "0")


def test_a_refusal_is_an_error():
    suite = ElementTree.fromstring(junit_refused("chat", HOSTILE).encode()).find("testsuite")
    assert (suite.get("errors"), suite[0].find("error").get("type")) == ("1", "refused")
    line = annotation_refused("b.json", HOSTILE)
    assert line.startswith("::error file=b.json,title=the gate could not be run::")
    assert "\n" not in line


def test_annotations_are_one_line_each_and_escaped(failed, passed):
    lines = annotations(failed)
    assert len(lines) == 1
    assert lines[0].startswith("::error file=")
    assert "b%2C1.json,title=output_throughput is worse::" in lines[0]
    assert "-10.00%25" in lines[0]
    assert "\n" not in lines[0]
    assert annotations(passed)[0].startswith("::notice ")


def test_the_step_summary_is_one_table(failed):
    text = markdown(failed)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert all(line.replace(r"\|", "").count("|") == 7 for line in rows)
    assert "<script>" not in text.replace(r"\<", "")
    assert "**worse**" in text
    assert "❌" in text


def test_points_for_github_action_benchmark_are_one_direction_a_file(failed, tmp_path):
    found = benchmark_action(failed)
    assert [p["name"].rpartition(": ")[2] for p in found["bigger"]] == ["output_throughput"]
    assert [(p["unit"], p["value"]) for p in found["smaller"]] == [("ms", 50.0)]
    files = write_benchmark_action(failed, tmp_path / "out" / "points.json")
    assert [f.name for f in files] == ["points.bigger.json", "points.smaller.json"]
    for file in files:
        for point in json.loads(file.read_text("utf-8")):
            assert set(point) <= {"name", "unit", "value", "range", "extra"}


def test_ranges_of_repeats(tmp_path):
    runs = [head(output_throughput=100.0 + i) for i in range(4)]
    update_baseline(runs, tmp_path / "b.json")
    result = gate(runs, tmp_path / "b.json")
    assert benchmark_action(result)["bigger"][0]["range"].startswith("± ")
    measures = next(iter(bencher(result, [r["summary"] for r in runs]).values()))
    assert measures["output_throughput"] == {"value": 101.5, "lower_value": 100.0, "upper_value": 103.0}


def test_bencher_takes_the_interval_of_a_single_run(passed):
    alone = {"output_throughput": 101.0}
    assert next(iter(bencher(passed, [alone]).values())) == {"output_throughput": {"value": 101.0}}
    known = alone | {"interval": {"figures": {"output_throughput": [95.0, 107.0]}}}
    measure = next(iter(bencher(passed, [known]).values()))["output_throughput"]
    assert (measure["lower_value"], measure["upper_value"]) == (95.0, 107.0)


def test_every_default_metric_has_a_unit():
    units = {name: unit(name) for name in DEFAULTS}
    assert units["output_throughput"] == "tokens/s"
    assert units["request_goodput"] == "requests/s"
    assert units["completed"] == "count"
    assert all(units.values())


def test_files_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        write_text(tmp_path / "file" / "x.xml", "")
    write_text(tmp_path / "s.md", "a\n", append=True)
    write_text(tmp_path / "s.md", "b\n", append=True)
    assert (tmp_path / "s.md").read_text() == "a\nb\n"
