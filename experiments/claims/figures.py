"""Charts as pictures, with matplotlib: for notebooks (PNG), for papers and the documentation (SVG)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from experiments.claims.base import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which people who see colours differently can tell apart; lines differ in their markers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#8C6D1F")
MARKERS = "os^Dvp*X"
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")


def png(chart: Chart) -> bytes:
    """A chart as PNG, small enough for notebooks."""
    return _saved(chart, "png", dpi=88)


def svg(chart: Chart) -> bytes:
    """A chart as SVG; the same chart gives the same bytes."""
    return _saved(chart, "svg", metadata={"Date": None})


def _saved(chart: Chart, form: str, **options: Any) -> bytes:
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "twinserve", "svg.fonttype": "none", "font.size": 9.5}):
        out = io.BytesIO()
        draw(chart).savefig(out, format=form, bbox_inches="tight", **options)
    return out.getvalue()


def draw(chart: Chart) -> Figure:
    """A chart as a figure of its own, outside of pyplot's list of open ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.6, 3.5))
    axes = figure.add_subplot()
    {"lines": _lines, "bars": _bars, "stacked": _stacked}[chart.kind](axes, chart)
    axes.set_title(chart.title, loc="left", fontsize=10.5)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(axis="y" if chart.kind != "lines" else "both", alpha=0.25)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if chart.log_y:
        from matplotlib.ticker import LogLocator

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        _plain_ticks(axes.yaxis)
    elif all(value is None or value >= 0 for values in chart.series.values() for value in values):
        axes.set_ylim(bottom=0)
    if chart.level is not None:
        axes.axhline(chart.level[0], color="#555555", linewidth=1.2, linestyle=":", label=chart.level[1])
    if len(chart.series) > 1 or chart.level is not None:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8.5)
    return figure


def _plain_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _lines(axes: Axes, chart: Chart) -> None:
    for index, (name, values) in enumerate(chart.series.items()):
        points = [(x, y) for x, y in zip(chart.x, values, strict=True) if y is not None]
        marker = MARKERS[index % len(MARKERS)] if len(points) <= 40 else None
        axes.plot(
            [x for x, _ in points], [y for _, y in points], marker=marker, markersize=4.5, linewidth=1.6,
            color=COLOURS[index % len(COLOURS)], label=name,
        )  # fmt: skip
    if chart.log_x:
        axes.set_xscale("log", base=2)
        axes.set_xticks([x for x in chart.x if x > 0])
        _plain_ticks(axes.xaxis)
        axes.tick_params(axis="x", labelrotation=45 if len(chart.x) > 10 else 0)
    for x, word in chart.marks.items():
        axes.axvline(x, color="#555555", linewidth=1, linestyle="--")
        axes.annotate(
            word, (x, 1), xycoords=("data", "axes fraction"), ha="right", va="top", rotation=90, fontsize=8.5,
            color="#555555", textcoords="offset points", xytext=(-2, -2),
        )  # fmt: skip


def _bars(axes: Axes, chart: Chart) -> None:
    width = 0.8 / len(chart.series)
    for index, (name, values) in enumerate(chart.series.items()):
        at = [place + (index - (len(chart.series) - 1) / 2) * width for place in range(len(chart.x))]
        heights = [0 if value is None else value for value in values]
        drawn = axes.bar(
            at, heights, width * 0.92, label=name, color=COLOURS[index % len(COLOURS)],
            hatch=HATCHES[index % len(HATCHES)], edgecolor="white", linewidth=0,
        )  # fmt: skip
        if len(chart.x) * len(chart.series) <= 16:
            axes.bar_label(drawn, ["" if v is None else _short(v) for v in values], fontsize=7.5, padding=1)
    _names(axes, chart)


def _stacked(axes: Axes, chart: Chart) -> None:
    base = [0.0] * len(chart.x)
    for index, (name, values) in enumerate(chart.series.items()):
        heights = [0.0 if value is None else float(value) for value in values]
        axes.bar(
            range(len(chart.x)), heights, 0.7, bottom=base, label=name, color=COLOURS[index % len(COLOURS)],
            hatch=HATCHES[index % len(HATCHES)], edgecolor="white", linewidth=0,
        )  # fmt: skip
        base = [low + height for low, height in zip(base, heights, strict=True)]
    _names(axes, chart)


def _names(axes: Axes, chart: Chart) -> None:
    axes.set_xticks(range(len(chart.x)), [str(name) for name in chart.x])
    if sum(len(str(name)) for name in chart.x) > 60:
        axes.tick_params(axis="x", labelrotation=25)
        for label in axes.get_xticklabels():
            label.set_ha("right")


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
