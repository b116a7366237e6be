"""The figures of a sweep as files for papers, drawn by matplotlib from the same plots as the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from reports.html.curves import Curve
from reports.html.scales import fit, log_ticks, tick_label
from reports.html.sweep_figures import Plot, sweep_plots
from reports.html.sweep_series import Sweep
from reports.wording import clean

KINDS = ("svg", "pdf", "png")
# Okabe and Ito's colours, told apart by colour-blind readers and in grey; markers tell series apart where colour cannot.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
MARKERS = "osD^vP*X"
_WIDTH, _HEIGHT = 5.2, 3.4
_STYLES = {"": "-", "dashed": "--", "dotted": ":"}


def export_figures(
    points: Sequence[dict], axes: Sequence[str], folder: Path, kinds: Iterable[str], *, slo: dict | None = None
) -> list[Path]:
    """Write `<figure>.<kind>` of every figure that the sweep has.

    Args:
        points, axes, slo: as for `reports.html.render_sweep`.   kinds: of KINDS.

    Returns:
        The files. The same sweep gives the same bytes: no date or random id goes in.

    Raises:
        OSError: they cannot be written.
    """
    import matplotlib

    sweep = Sweep(points, axes)
    knees = {name: sweep.knee(name) for name in sweep.series}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    settings = {
        "svg.hashsalt": "twinserve", "svg.fonttype": "none", "pdf.fonttype": 42, "font.size": 9, "text.usetex": False,
        "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        for plot in sweep_plots(sweep, slo or {}, knees):
            figure = _draw(plot)
            for kind in kinds:
                path = folder / f"{plot.key}.{kind}"
                figure.savefig(path, format=kind, dpi=200, metadata=_METADATA[kind])
                written.append(path)
    return written


_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "Twinserve"},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": "Twinserve"},
    "png": {"Software": "Twinserve"},
}


def _draw(plot: Plot) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((_WIDTH, _HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state
    axes = figure.add_subplot()
    for curve in plot.lines:
        _curve(axes, curve, plot)
    _scale(axes.xaxis, plot.log_x, [x for x, _ in plot.spots])
    _scale(axes.yaxis, plot.log_y, [y for _, y in plot.spots])
    if not plot.log_y:
        axes.set_ylim(bottom=0)
    if plot.x_labels:
        axes.set_xticks([value for value, _ in plot.x_labels], [clean(text, 24) for _, text in plot.x_labels])
    _marks(axes, plot)
    axes.set_title(clean(plot.title, 90), loc="left", fontsize=10)
    axes.set_xlabel(clean(plot.x_title, 80))
    axes.set_ylabel(clean(plot.y_title, 60))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    if len([curve for curve in plot.lines if curve.spots]) > 1:
        axes.legend(frameon=False, fontsize=8)
    return figure


def _scale(axis: Any, log: bool, values: Sequence[float]) -> None:
    """An axis with the page's ticks: round numbers, 1.5k for thousands."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    if log:
        getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
        axis.set_major_locator(FixedLocator(log_ticks(*fit(values, log=True))))
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value)))


def _curve(axes: Any, curve: Curve, plot: Plot) -> None:
    """A line with its points, those of overloaded runs as rings, and the ranges as a band."""
    if not curve.spots:
        return
    colour, x, y = PALETTE[curve.shade % 8], [s.x for s in curve.spots], [s.y for s in curve.spots]
    apart = bool(plot.x_labels) or plot.apart
    style = "none" if apart else _STYLES[curve.dash]
    marker = MARKERS[curve.shade % 8]
    # the marker belongs to the line, so that the legend has it too: colour alone is not for everybody
    axes.plot(x, y, style, marker=marker, markersize=4, color=colour, linewidth=1.4, label=clean(curve.name, 60))
    rings = [s for s in curve.spots if s.hollow]
    axes.plot([s.x for s in rings], [s.y for s in rings], marker, color=colour, markersize=4, markerfacecolor="white")
    if len(curve.spots) > 1 and not apart and all(s.ends for s in curve.spots):
        axes.fill_between(
            x, [s.ends[0] for s in curve.spots], [s.ends[1] for s in curve.spots], color=colour, alpha=0.15
        )


def _marks(axes: Any, plot: Plot) -> None:
    for x, y, label in plot.marks.knees:
        axes.plot([x], [y], "o", markersize=11, markerfacecolor="none", markeredgecolor="black", markeredgewidth=1)
        if label:
            axes.annotate(clean(label, 40), (x, y), xytext=(6, -14), textcoords="offset points", fontsize=8)
    if plot.marks.limit:
        value, label = plot.marks.limit
        axes.axhline(value, color="#555555", linewidth=1, linestyle="--")
        where = axes.get_yaxis_transform()
        axes.text(0.01, value, clean(label, 40), transform=where, va="bottom", fontsize=8).set_in_layout(False)
    if len(plot.marks.front) > 1:
        axes.plot(*zip(*plot.marks.front, strict=True), color="black", linewidth=6, alpha=0.16, zorder=1)
