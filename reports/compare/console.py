"""Comparisons on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.compare.comparison import BETTER, SAME, WORSE, Comparison, Ratio
from reports.compare.sweeps import SweepComparison
from reports.compare.text import MARK, label, method, told_change, told_value
from reports.wording import clean, encodable, setting

_COLOUR = {BETTER: "green", WORSE: "red", SAME: "dim"}
MOST_SETTINGS = 15


def print_comparison(comparison: Comparison, console: Console) -> None:
    """The table of figures, what was set otherwise, and the notes."""
    names = [s.name for s in comparison.subjects]
    table = _table(["", names[0]], names[1:], console)
    for row in comparison.rows:
        cells = [label(row.words, row.unit), told_value(row.values[0], row.unit)]
        table.add_row(*_cells(cells, row.values[1:], row.ratios, row.unit, console))
    console.print(table)
    _say(method(comparison), console, "dim")
    _print_settings(comparison, console)
    for note in comparison.notes:
        _say(f"note: {note}", console, "yellow")


def print_sweeps(comparison: SweepComparison, console: Console) -> None:
    """The table of common points, and the notes."""
    names = [s.name for s in comparison.sweeps]
    table = _table(["point", "", names[0]], names[1:], console)
    last = None
    for point, _key, words, unit, _better, values, ratios in comparison.rows:
        if last not in (None, point.key):
            table.add_section()
        cells = [point.label() if last != point.key else "", label(words, unit), told_value(values[0], unit)]
        table.add_row(*_cells(cells, values[1:], ratios, unit, console))
        last = point.key
    console.print(table)
    _say(comparison.method, console, "dim")
    for note in comparison.notes:
        _say(f"note: {note}", console, "yellow")


def _table(first: Sequence[str], others: Sequence[str], console: Console) -> Table:
    table = Table()
    for i, name in enumerate(first):
        last = i == len(first) - 1
        table.add_column(Text(_shown(name, console)), justify="right" if last else "left", overflow="fold")
    for name in others:
        table.add_column(Text(_shown(name, console)), justify="right", overflow="fold")
        table.add_column("change", justify="right", overflow="fold")
        table.add_column("", overflow="fold")
    return table


def _cells(
    cells: Sequence[str], values: Sequence[float | None], ratios: Sequence[Ratio], unit: str, console: Console
) -> list[Text]:
    found = [Text(_shown(cell, console)) for cell in cells]
    for value, ratio in zip(values, ratios, strict=True):
        colour = _COLOUR.get(ratio.verdict, "")
        verdict = "=" if ratio.verdict == SAME else MARK.get(ratio.verdict, "")
        found += [Text(told_value(value, unit)), Text(told_change(ratio), colour), Text(verdict, colour)]
    return found


def _print_settings(comparison: Comparison, console: Console) -> None:
    if not comparison.settings:
        return
    table = Table(title=Text("Set otherwise", "bold"), title_justify="left")
    for name in ("setting", *(s.name for s in comparison.subjects)):
        table.add_column(Text(_shown(name, console)), overflow="fold")
    for key, values in list(comparison.settings.items())[:MOST_SETTINGS]:
        table.add_row(*(Text(_shown(cell, console)) for cell in (clean(key, 80), *(setting(v, 60) for v in values))))
    console.print(table)
    more = len(comparison.settings) - MOST_SETTINGS
    if more > 0:
        _say(f"and {more} more settings (--json and the page have all)", console, "dim")


def _say(text: str, console: Console, style: str = "") -> None:
    if text:
        console.print(Text(_shown(text, console), style), highlight=False, soft_wrap=not console.is_terminal)


def _shown(text: str, console: Console) -> str:
    return encodable(text, console.encoding)
