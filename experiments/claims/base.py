"""What an experiment on a published claim gives: tables, charts, and a verdict that was computed.

A claim is taken apart into checks, each a sentence with what was claimed, what we found, and whether that meets it.
The verdict follows from the checks and from nothing else: all met, the claim *holds*; some, it *holds in part*; none,
it *does not hold*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold"
RULE = "A claim holds when every check on it is met, holds in part when some are, and does not hold when none is."


@dataclass(frozen=True, slots=True)
class Check:
    """One part of a claim that can be true or false.

    Attributes:
        part: what is looked at.   claimed, ours: figures as people read them.   met: whether ours meets it.
    """

    part: str
    claimed: str
    ours: str
    met: bool


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """What became of a claim.

    Attributes:
        claim: the published sentence, in our words.   source: who published it, and about what.
        checks: its parts.   why: why our figure and theirs differ, or agree.
        scope: what of the claim can be tested here, where that is not all of it.
    """

    claim: str
    source: str
    checks: tuple[Check, ...]
    why: str
    scope: str = ""

    @property
    def verdict(self) -> str:
        """`holds`, `holds in part` or `does not hold`."""
        met = [check.met for check in self.checks]
        return HOLDS if all(met) else IN_PART if any(met) else FAILS

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "checks": [asdict(check) for check in self.checks], "verdict": self.verdict}

    def __repr__(self) -> str:
        return f"<Verdict: {self.verdict}: {self.claim}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(check.part)}</td><td>{escape(check.claimed)}</td>"
            f"<td>{escape(check.ours)}</td><td>{'yes' if check.met else 'no'}</td></tr>"
            for check in self.checks
        )
        return (
            f"<p><b>Claim.</b> {escape(self.claim)}<br><i>{escape(self.source)}</i></p><table><thead><tr><th>part "
            "of the "
            f"claim</th><th>claimed</th><th>ours</th><th>met</th></tr></thead><tbody>{rows}</tbody></table><p><b>Verdict: "
            f"{escape(self.verdict)}.</b> {escape(self.why)}</p>"
            + (f"<p><b>Tested:</b> {escape(self.scope)}</p>" if self.scope else "")
        )


@dataclass(frozen=True, slots=True, repr=False)
class Table:
    """Rows under headings; cells are text or numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __repr__(self) -> str:
        return f"<Table: {self.title}>"

    def _repr_html_(self) -> str:
        sides = [_side(cell) for cell in self.rows[0]] if self.rows else ["left"] * len(self.columns)
        head = "".join(
            f"<th style='text-align:{side}'>{escape(name)}</th>" for name, side in zip(self.columns, sides, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(f"<td style='text-align:{_side(cell)}'>{escape(show(cell))}</td>" for cell in row)
            + "</tr>"
            for row in self.rows
        )
        return (
            f"<table><caption>{escape(self.title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


@dataclass(frozen=True, slots=True, repr=False)
class Chart:
    """A figure as data; `experiments.claims.figures` draws it.

    Attributes:
        kind: `lines` (x are numbers), `bars` (x are names, series side by side) or `stacked` (series on top of each other).
        series: name → values, one for each x; None leaves a gap.
        marks: x → a word written there (lines only).   level: (y, a word) of a horizontal line.
    """

    title: str
    kind: str
    x: tuple[Any, ...]
    series: Mapping[str, Sequence[float | None]]
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    log_y: bool = False
    marks: Mapping[float, str] = field(default_factory=dict)
    level: tuple[float, str] | None = None

    def __repr__(self) -> str:
        return f"<Chart: {self.title}>"

    def _repr_png_(self) -> bytes:
        from experiments.claims.figures import png

        return png(self)


@dataclass(frozen=True, slots=True)
class Result:
    """What an experiment found.

    Attributes:
        ran_on: where, if not in the simulator.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...]
    verdicts: tuple[Verdict, ...]
    small: bool = False
    ran_on: str = ""

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "small": self.small,
            "ran_on": self.ran_on or None,
            "rule": RULE,
            "verdicts": [verdict.plain() for verdict in self.verdicts],
            "tables": [asdict(table) for table in self.tables],
            "charts": [asdict(chart) for chart in self.charts],
        }


def _side(cell: Any) -> str:
    return "left" if isinstance(cell, str) else "right"


def show(value: Any) -> str:
    """A cell as people read it: three significant digits below a thousand, none after the point above."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def times(ratio: float) -> str:
    """A ratio: 1.45x."""
    return f"{ratio:.3g}x"


def per_cent(share: float, digits: int = 0) -> str:
    """A share: 45 %."""
    return f"{share * 100:.{digits}f} %"


def more(ratio: float) -> str:
    """How much more or less a ratio is: +12 %, −8 %."""
    return f"{round((ratio - 1) * 100):+d} %".replace("-", "−")
