"""Small pieces of SVG. Colours are CSS variables, so that a figure follows the page's light, dark or print theme."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from reports.html.scales import Scale, tick_label

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 24, 36


@dataclass(slots=True)
class Figure:
    """A figure as the template wants it.

    Attributes:
        key: id within the page.   title, note: text above it.   svg: the drawing, safe to insert.
        legend: (name, colour) of every series; one or none draws no legend.
        data: what the page's script needs to show values and to hide series.
        glyphs: the mark of every series in the legend, safe to insert; none of them draws squares of their colours.
    """

    key: str
    title: str
    svg: Markup
    note: str = ""
    legend: list[tuple[str, str]] = field(default_factory=list)
    data: dict = field(default_factory=dict)
    glyphs: Sequence[Markup] = ()


def across(low: float, high: float, log: bool = False) -> Scale:
    """The scale of the x axis: over the width of the drawing."""
    return Scale(low, high, LEFT, WIDTH - RIGHT, log)


def upwards(low: float, high: float, log: bool = False, *, room: float = 0) -> Scale:
    """The scale of the y axis: from the bottom up, with `room` pixels left free at the top."""
    return Scale(low, high, HEIGHT - BOTTOM, TOP + room, log)


def text(x: float, y: float, content: str, *, anchor: str = "start", kind: str = "tick") -> str:
    """A text element; `content` is escaped."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'


def path(points: Iterable[tuple[float, float]], *, close: bool = False) -> str:
    """The `d` of a path through points; a point with None breaks it."""
    parts, pen = [], "M"
    for x, y in points:
        if y is None:
            pen = "M"
            continue
        parts.append(f"{pen}{x:g} {y:g}")
        pen = "L"
    return "".join(parts) + ("Z" if close and parts else "")


def colour(index: int) -> str:
    """CSS colour of the series with this index (the palette has eight)."""
    return f"var(--c{index % 8 + 1})"


def square(paint: str) -> Markup:
    """A patch of colour for the legend."""
    return Markup(f'<i style="background:{paint}"></i>')


def stroke(paint: str, dash: str) -> Markup:
    """A piece of a line for the legend: a series is told by its dashes as well as by its colour."""
    return Markup(
        f'<svg viewBox="0 -5 18 10" class="glyph stroke" aria-hidden="true">'
        f'<path d="M0 0H18" class="line {dash}" style="stroke:{paint}"/></svg>'
    )


def frame(
    x: Scale, y: Scale, x_title: str, y_title: str, *, x_labels: Sequence[tuple[float, str]] | None = None,
    y_labels: Sequence[tuple[float, str]] | None = None,
) -> str:  # fmt: skip
    """Grid, axes, ticks and axis titles. `x_labels`, `y_labels`: (value, text) in place of computed ticks.

    The ticks of x stand in a group of their own, which the page's script renews when a reader zooms in.
    """
    parts = []
    rows = y_labels if y_labels is not None else [(value, tick_label(value)) for value in y.ticks(4)]
    for value, label in rows:
        at = y(value)
        parts.append(line(x.start, at, x.end, at, "grid"))
        parts.append(text(x.start - 7, at + 3.5, label, anchor="end"))
    parts.append(line(x.start, y.start, x.end, y.start, "axis"))
    labels = x_labels if x_labels is not None else [(value, tick_label(value)) for value in x.ticks(6)]
    parts.append(f'<g class="xticks{" named" if x_labels is not None else ""}">')
    for value, label in labels:
        at = x(value)
        parts.append(line(at, y.start, at, y.start + 4, "axis"))
        parts.append(text(at, y.start + 16, label, anchor="middle"))
    parts.append("</g>")
    parts.append(text((x.start + x.end) / 2, y.start + 31, x_title, anchor="middle", kind="title"))
    parts.append(text(x.start - 44, 12, y_title, kind="title"))
    return "".join(parts)


def drawing(content: str, label: str) -> Markup:
    """The whole SVG; `label` says in words what it shows, for those who cannot see it."""
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{content}'
        f'<line class="cursor" y1="0" y2="0" x1="0" x2="0"/></svg>'
    )


def empty(key: str, title: str, reason: str) -> Figure:
    """A figure without data says so."""
    content = text(WIDTH / 2, HEIGHT / 2, reason, anchor="middle", kind="none")
    return Figure(key, title, drawing(content, f"{title}: {reason}"))


def rounded(values: Iterable[float | None], digits: int = 5) -> list[float | None]:
    """Values with few significant digits, so that pages stay small; what is not finite becomes None."""
    return [None if v is None or not abs(v) < float("inf") else float(f"{v:.{digits}g}") for v in values]
