"""Verdicts follow from their checks; tables and charts bear any text."""

from __future__ import annotations

import pytest

from experiments.claims.base import FAILS, HOLDS, IN_PART, Chart, Check, Result, Table, Verdict, more, show, times
from experiments.claims.figures import png, svg
from experiments.claims.write import markdown

HOSTILE = "<script>alert(1)</script> | `x` \n ∑ 日本語"


def verdict(*met: bool) -> Verdict:
    return Verdict("a claim", "a source", tuple(Check("part", "1", "2", each) for each in met), "so")


@pytest.mark.parametrize(
    ("met", "expected"), [((True, True), HOLDS), ((True, False), IN_PART), ((False, False), FAILS), ((True,), HOLDS)]
)
def test_a_verdict_is_computed_from_its_checks(met: tuple[bool, ...], expected: str) -> None:
    assert verdict(*met).verdict == expected
    assert verdict(*met).plain()["verdict"] == expected
    assert f"Verdict: {expected}." in verdict(*met)._repr_html_()


def test_hostile_words_stay_words() -> None:
    bad = Verdict(HOSTILE, HOSTILE, (Check(HOSTILE, HOSTILE, HOSTILE, True),), HOSTILE, HOSTILE)
    table = Table(HOSTILE, (HOSTILE, "b"), ((HOSTILE, 1.5),))
    assert "<script>" not in bad._repr_html_() + table._repr_html_()
    text = "\n".join(markdown(Result("n", "t", (table,), (), (bad,))))
    assert "<script>" not in text
    row = next(line for line in text.splitlines() if "1.5" in line)
    assert row.replace("\\|", "").count("|") == 3, "a bar in a cell does not make a column"


@pytest.mark.filterwarnings("ignore:Glyph")
def test_charts_of_every_kind_are_drawn_and_the_same_twice() -> None:
    lines = Chart(
        "t", "lines", (1, 2, 4), {"a": (1.0, None, 3.0), "b": (3.0, 2.0, 1.0)}, log_x=True, log_y=True, marks={2.0: "here"},
        level=(2.0, "limit"),
    )  # fmt: skip
    bars = Chart(
        HOSTILE,
        "bars",
        ("x", "a long name " * 5, "z"),
        {"a": (1, None, 3), "b": (1, 2, 3)},
    )
    stacked = Chart("t", "stacked", ("x", "y"), {"a": (1, 2), "b": (3, 4)})
    for chart in (lines, bars, stacked):
        drawn = svg(chart)
        assert drawn == svg(chart) and b"<script>" not in drawn
        assert png(chart).startswith(b"\x89PNG") and len(png(chart)) < 60_000


def test_figures_are_shown_as_people_read_them() -> None:
    assert [show(value) for value in (None, True, 1234567, 1234.5, 0.01234, "x")] == [
        "-", "yes", "1,234,567", "1,234", "0.0123", "x",
    ]  # fmt: skip
    assert (times(1.5), more(1.126), more(0.9)) == ("1.5x", "+13 %", "−10 %")
