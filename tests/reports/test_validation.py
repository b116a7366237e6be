"""Errors of predictions, by hand."""

import math

import pytest

from reports.validation import by, errors, kept, rank_correlation, summary, warned, worst
from reports.validation_figure import draw
from reports.validation_page import render_validation


def record(ratio, measured=10.0, **changes):
    plain = {
        "source": "made", "table_id": "t", "file": "a.csv", "line": 2, "engine": "vLLM", "engine_version": "1", "family": "vllm",
        "model": "M", "gpu": "h100", "gpus": 1, "tensor": 1, "pipeline": 1, "expert": 1, "data": 1, "weights": "bf16",
        "kv": "auto", "isl": "1", "osl": "1", "load": "batch=1", "metric": "ttft_ms", "quantity": "ttft_ms",
        "measured": measured, "predicted": None if ratio is None else measured * ratio,
        "log_ratio": None if ratio is None else math.log(ratio), "excluded": "", "error": "", "warnings": [],
        "implausible": "", "config": {"engine.preset": "vllm@0.8"}, "role": "",
    }  # fmt: skip
    return plain | changes


def test_errors_are_logarithms_of_ratios():
    found = errors([record(1.0), record(1.1), record(0.8), record(4.0), record(None)])
    sizes = sorted([0.0, math.log(1.1), -math.log(0.8), math.log(4)])
    assert found.cells == 4
    assert found.median == pytest.approx((sizes[1] + sizes[2]) / 2)
    assert found.mean == pytest.approx(sum(sizes) / 4)
    assert found.bias == pytest.approx((0.0 + math.log(1.1)) / 2)
    assert found.close == 0.75  # a factor of 1.25 either way: 0.8 is just inside
    assert found.far == 1
    assert errors([record(None)]) is None


def test_kept_leaves_out_what_rules_and_physics_say():
    records = [record(1.0), record(1.0, excluded="unknown engine"), record(1.0, implausible="too fast")]
    assert len(kept(records)) == 1


def test_ranks_are_compared_inside_tables():
    rising = [record(1.0, measured=float(m)) for m in (1, 2, 3, 4, 5)]
    assert rank_correlation(rising) == pytest.approx(1.0)
    falling = [record((6 - m) / m, measured=float(m)) for m in (1, 2, 3, 4, 5)]
    assert rank_correlation(falling) == pytest.approx(-1.0)
    swapped = [record(p / m, measured=float(m)) for m, p in zip((1, 2, 3, 4, 5), (1, 3, 2, 4, 5), strict=True)]
    assert rank_correlation(swapped) == pytest.approx(0.9)
    assert rank_correlation(rising[:4]) is None
    apart = [*rising, *[{**r, "table_id": "u", "measured": r["measured"] * 100, "predicted": 1.0} for r in falling]]
    assert rank_correlation(apart) == pytest.approx(
        1.0
    )  # all predictions of the other table are equal: no order to compare


def test_groups_warnings_and_the_worst():
    records = [record(1.0), record(5.0, warnings=["queue"]), record(0.2), record(1.5, gpu="a100", warnings=["new"])]
    assert {name: e.cells for name, e in by(records, "gpu").items()} == {"h100": 3, "a100": 1}
    found = warned(records)
    assert (found.share, found.far, found.caught) == (0.5, 2, 1)
    assert [r["predicted"] for r in worst(records, 2)] == [50.0, 2.0]


def test_summary_page_and_figure():
    records = [
        record(1.1),
        record(0.5, excluded="unknown engine"),
        record(None, error="does not fit"),
        record(9.0, model="<b>&"),
    ]
    found = summary(records)
    assert (found["cells"], found["kept"], found["failed"]) == (4, 3, 1)
    assert found["overall"]["cells"] == 2 and found["with_excluded"]["cells"] == 3
    svg = draw(records)
    assert svg.count("<svg") == 1 and draw(records) == svg
    page = render_validation(
        records, [("unknown engine", 1, "why")], svg, name="x<y", facts=[("cells", "4")], notes=["a note"]
    )
    assert "x&lt;y" in page and "&lt;b&gt;" in page and "<b>&" not in page
    assert "vllm@0.8" in page and "a note" in page and "why" in page
