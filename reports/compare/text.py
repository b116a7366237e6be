"""Comparisons as text: cells that console, Markdown and page share, and the Markdown itself."""

from __future__ import annotations

import re

from reports.compare.comparison import BETTER, SAME, WORSE, Comparison, Ratio, ranges_told
from reports.compare.sweeps import SweepComparison
from reports.wording import clean, number, setting, share

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~!&$@])")
MARK = {BETTER: "better", WORSE: "worse", SAME: "no difference"}


def told_value(value: float | None, unit: str) -> str:
    """A figure with its unit left out; shares as per cent."""
    return share(value) if unit == "share" else number(value)


def told_change(ratio: Ratio) -> str:
    """A ratio as a change, with its interval: `+9.2% (+4.9% .. +14.1%)`; from threefold on as a factor."""
    if ratio.ratio is None:
        return "-"
    factor = ratio.ratio >= 3 or (ratio.high or 0) >= 3

    def told(value: float) -> str:
        return f"x{value:.3g}" if factor else f"{value - 1:+.1%}"

    if ratio.low is None or ratio.high is None:
        return told(ratio.ratio)
    return f"{told(ratio.ratio)} ({told(ratio.low)} .. {told(ratio.high)})"


def label(words: str, unit: str) -> str:
    """What a figure is called, with its unit."""
    return f"{words} ({unit})" if unit and unit != "share" else words


def method(comparison: Comparison) -> str:
    """How the intervals were made, in a sentence; nothing where there are none."""
    if not any(r.low is not None for row in comparison.rows for r in row.ratios):
        return ""
    return ranges_told(comparison.paired, comparison.errors)


def markdown(comparison: Comparison) -> str:
    """The table of a comparison, what was set otherwise, and the notes."""
    names = [_md(s.name) for s in comparison.subjects]
    head = ["", names[0]]
    for name in names[1:]:
        head += [name, "change", ""]
    lines = [_line(head), _line(["---", "---:", *["---:", "---:", "---"] * (len(names) - 1)])]
    for row in comparison.rows:
        cells = [_md(label(row.words, row.unit)), told_value(row.values[0], row.unit)]
        for value, ratio in zip(row.values[1:], row.ratios, strict=True):
            cells += [told_value(value, row.unit), told_change(ratio), _mark(ratio)]
        lines.append(_line(cells))
    if comparison.settings:
        lines += ["", _line(["setting", *names]), _line(["---"] * (len(names) + 1))]
        lines += [
            _line([f"`{clean(key, 80)}`", *(_md(setting(v, 80)) for v in values)])
            for key, values in comparison.settings.items()
        ]
    lines += ["", *(f"- {_md(text)}" for text in [*filter(None, [method(comparison)]), *comparison.notes])]
    return "\n".join(lines) + "\n"


def markdown_sweeps(comparison: SweepComparison) -> str:
    """The table of a comparison of sweeps, and its notes."""
    names = [_md(s.name) for s in comparison.sweeps]
    head = ["point", "", names[0]]
    for name in names[1:]:
        head += [name, "change", ""]
    lines = [_line(head), _line(["---", "---", "---:", *["---:", "---:", "---"] * (len(names) - 1)])]
    for point, _key, words, unit, _better, values, ratios in comparison.rows:
        cells = [_md(point.label()), _md(label(words, unit)), told_value(values[0], unit)]
        for value, ratio in zip(values[1:], ratios, strict=True):
            cells += [told_value(value, unit), told_change(ratio), _mark(ratio)]
        lines.append(_line(cells))
    lines += ["", *(f"- {_md(note)}" for note in [*filter(None, [comparison.method]), *comparison.notes])]
    return "\n".join(lines) + "\n"


def _mark(ratio: Ratio) -> str:
    return {BETTER: "🟢 better", WORSE: "🔴 worse", SAME: "="}.get(ratio.verdict, "")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _md(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", clean(text))
