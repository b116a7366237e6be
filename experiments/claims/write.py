"""Results on disk and on the terminal: `result.json`, `report.md` and a figure a chart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.claims.base import RULE, Result, Table, Verdict, show
from workloads.folders import whole_folder

if TYPE_CHECKING:
    from rich.console import Console

RESULT, REPORT = "result.json", "report.md"


def write_result(result: Result, folder: Path, *, overwrite: bool = False) -> None:
    """Write a result's folder, complete or not at all.

    Raises:
        OutputError: it is there already, or cannot be written.
    """
    from experiments.claims.figures import svg

    with whole_folder(folder, RESULT, overwrite=overwrite) as made:
        (made / RESULT).write_text(json.dumps(result.plain(), indent=1, allow_nan=False) + "\n", "utf-8")
        (made / REPORT).write_text("\n".join(markdown(result)) + "\n", "utf-8")
        for number, chart in enumerate(result.charts, 1):
            (made / figure_name(number)).write_bytes(svg(chart))


def figure_name(number: int) -> str:
    """File name of a result's chart, counted from 1."""
    return f"figure-{number}.svg"


def markdown(result: Result, level: int = 1) -> Iterator[str]:
    """The report as lines of Markdown, headings from `level` on."""
    yield f"{'#' * level} {_cell(result.title)}"
    if result.ran_on:
        yield ""
        yield f"*{_cell(result.ran_on)}.*"
    for verdict in result.verdicts:
        yield ""
        yield from verdict_lines(verdict)
    for table in result.tables:
        yield ""
        yield f"**{_cell(table.title)}**"
        yield ""
        yield from table_lines(table)
    for number, chart in enumerate(result.charts, 1):
        yield ""
        yield f"![{_cell(chart.title)}]({figure_name(number)})"
    yield ""
    yield RULE + (" This was the small, rough run." if result.small else "")


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """A verdict as Markdown."""
    yield f"**Claim:** {_cell(verdict.claim)} ({_cell(verdict.source)})"
    yield ""
    rows = tuple((check.part, check.claimed, check.ours, "yes" if check.met else "no") for check in verdict.checks)
    yield from table_lines(Table("", ("part of the claim", "claimed", "ours", "met"), rows))
    yield ""
    yield f"**Verdict: {verdict.verdict}.** {_cell(verdict.why)}"
    if verdict.scope:
        yield ""
        yield f"*Tested:* {_cell(verdict.scope)}."


def table_lines(table: Table) -> Iterator[str]:
    """A table as Markdown."""
    right = [
        all(isinstance(row[i], int | float) or row[i] is None for row in table.rows) for i in range(len(table.columns))
    ]
    yield "| " + " | ".join(_cell(name) for name in table.columns) + " |"
    yield "|" + "|".join("--:" if side else "---" for side in right) + "|"
    for row in table.rows:
        yield "| " + " | ".join(_cell(show(cell)) for cell in row) + " |"


def _cell(text: Any) -> str:
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


def print_result(result: Result, console: Console) -> None:
    """The result on a terminal: tables, then verdicts."""
    from rich.table import Table as Grid
    from rich.text import Text

    console.print(Text(result.title + (" (small)" if result.small else ""), "bold"))
    if result.ran_on:
        console.print(Text(f"{result.ran_on}.", "yellow"))
    for table in result.tables:
        grid = Grid(title=Text(table.title), title_justify="left")
        for place, name in enumerate(table.columns):
            numbers = all(isinstance(row[place], int | float) or row[place] is None for row in table.rows)
            grid.add_column(Text(name), justify="right" if numbers else "left", overflow="fold")
        for row in table.rows:
            grid.add_row(*(Text(show(cell)) for cell in row))
        console.print(grid)
    for verdict in result.verdicts:
        console.print(Text.assemble(("Claim: ", "bold"), verdict.claim, (f" ({verdict.source})", "dim")))
        for check in verdict.checks:
            mark = ("  met      ", "green") if check.met else ("  not met  ", "red")
            console.print(Text.assemble(mark, f"{check.part}: claimed {check.claimed}, ours {check.ours}"))
        console.print(Text.assemble((f"Verdict: {verdict.verdict}. ", "bold"), verdict.why))
        if verdict.scope:
            console.print(Text(f"Tested: {verdict.scope}.", "dim"))
    if result.small:
        console.print(Text("This was the small, rough run; the verdict of the full one counts.", "dim"))
