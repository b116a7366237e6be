"""Curves through measured points: one point a run, one line a series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from reports.html.charts import chart_data
from reports.html.scales import Scale, fit
from reports.html.svg import Figure, across, colour, drawing, empty, frame, line, path, text, upwards
from reports.wording import clean, number


@dataclass(frozen=True, slots=True)
class Spot:
    """One run in a figure: where it is, what it is called, what to show of it, and the range that its y may lie in.

    `hollow`: drawn as a ring, since its figures are not to be taken for the engine's own.
    """

    x: float
    y: float
    label: str
    rows: tuple[tuple[str, str], ...] = ()
    ends: tuple[float, float] | None = None
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """Spots joined in the order given. `dash`: "" | "dashed" | "dotted"."""

    name: str
    spots: list[Spot]
    shade: int
    dash: str = ""


@dataclass(frozen=True, slots=True)
class Marks:
    """What else a figure shows: knees (x, y, label or ""), a limit (y, label), a front of best points."""

    knees: list[tuple[float, float, str]] = field(default_factory=list)
    limit: tuple[float, str] | None = None
    front: list[tuple[float, float]] = field(default_factory=list)


def curves(
    key: str,
    title: str,
    lines: Sequence[Curve],
    x_title: str,
    y_title: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    x_labels: Sequence[tuple[float, str]] | None = None,
    marks: Marks | None = None,
    note: str = "",
    apart: bool = False,
) -> Figure:
    """Lines with a dot at every measured point.

    Args:
        log_x, log_y: logarithmic axes; only where all values are positive.
        x_labels: (value, text) of the ticks, where x is not a number.
        apart: points are alternatives, not steps of a path: no line joins them and each carries its name.
    """
    marks = marks or Marks()
    spots = [s for curve in lines for s in curve.spots]
    if not spots:
        return empty(key, title, "no point of the sweep has this figure")
    lines = [curve for curve in lines if curve.spots]  # others would be names in the legend alone
    x = across(*_span([s.x for s in spots], log_x, x_labels), log_x)
    limit = [marks.limit[0]] if marks.limit else []
    reach = [end for s in spots for end in s.ends or () if end > 0 or not log_y]
    y = upwards(*fit([s.y for s in spots] + limit + reach, log=log_y), log_y)
    parts = [frame(x, y, x_title, y_title, x_labels=x_labels)]
    if len(marks.front) > 1:  # broad and under the curves, which it often follows
        parts.append(f'<path d="{path([(x(a), y(b)) for a, b in marks.front])}" class="front"/>')
    for i, curve in enumerate(lines):
        points = [(x(s.x), y(s.y)) for s in curve.spots]
        paint = colour(curve.shade)
        ranges = _whiskers(curve.spots, x, y, paint) if x_labels or apart else _band(curve.spots, x, y, paint)
        dots = "".join(_dot(a, b, s.hollow, paint, curve.shade) for (a, b), s in zip(points, curve.spots, strict=True))
        drawn = (
            "" if x_labels or apart else f'<path d="{path(points)}" class="line {curve.dash}" style="stroke:{paint}"/>'
        )
        parts.append(f'<g data-series="{i}">{ranges}{drawn}{dots}</g>')
    parts += _marks(marks, x, y)
    if apart and len(lines) == 1:
        parts += _names(spots, x, y)
    data = chart_data("points", x, y, [], [c.name for c in lines], [], y_title, x_title)
    data["points"] = [
        {"x": s.x, "y": s.y, "s": i, "label": s.label, "rows": s.rows} for i, c in enumerate(lines) for s in c.spots
    ]
    label = f"{title}: {y_title} from {number(min(s.y for s in spots))} to {number(max(s.y for s in spots))}"
    legend = [(c.name, colour(c.shade)) for c in lines]
    return Figure(key, title, drawing("".join(parts), label), note, legend, data, [_glyph(c.shade) for c in lines])


_SHAPES = (
    "",
    "M-3.4-3.4H3.4V3.4H-3.4Z",
    "M0-4.4L4.1 3H-4.1Z",
    "M0-4.8L4.8 0L0 4.8L-4.8 0Z",
    "M0 4.4L4.1-3H-4.1Z",
    "M0-4.5L4.3-1.4L2.6 3.6H-2.6L-4.3-1.4Z",
    "M-1.6-4.4H1.6V-1.6H4.4V1.6H1.6V4.4H-1.6V1.6H-4.4V-1.6H-1.6Z",
    "M-4.6-2.4H4.6V2.4H-4.6Z",
)
"""Outlines around 0 of the points of each colour, so that curves differ without it too; the first is a circle."""


def _dot(a: float, b: float, hollow: bool, paint: str, shade: int) -> str:
    style = f"fill:var(--card);stroke:{paint}" if hollow else f"fill:{paint}"
    shape = _SHAPES[shade % 8]
    if not shape:
        return f'<circle cx="{a:g}" cy="{b:g}" r="3.6" class="point" style="{style}"/>'
    # a drawing in the drawing, whose x the page's script moves as it moves a circle's centre when a reader zooms in
    return f'<svg x="{a:g}" y="{b:g}" class="mark"><path d="{shape}" class="point" style="{style}"/></svg>'


def _glyph(shade: int) -> Markup:
    """A point for the legend."""
    drawn = _dot(0, 0, False, colour(shade), shade)
    return Markup(f'<svg viewBox="-5.5 -5.5 11 11" class="glyph" aria-hidden="true">{drawn}</svg>')


def _band(spots: Sequence[Spot], x: Scale, y: Scale, paint: str) -> str:
    """What the ranges of a curve's points cover; nothing unless every point has one."""
    if len(spots) < 2 or not all(s.ends for s in spots):
        return ""
    lowest = y.low if y.log else float("-inf")
    upper = [(x(s.x), y(s.ends[1])) for s in spots]
    lower = [(x(s.x), y(max(s.ends[0], lowest))) for s in spots]
    return f'<path d="{path(upper + lower[::-1], close=True)}" class="band" style="fill:{paint}"/>'


def _whiskers(spots: Sequence[Spot], x: Scale, y: Scale, paint: str) -> str:
    """The range of each point as an upright stroke, where no line joins the points."""
    lowest = y.low if y.log else float("-inf")
    strokes = [f"M{x(s.x):g} {y(s.ends[1]):g}V{y(max(s.ends[0], lowest)):g}" for s in spots if s.ends]
    return f'<path d="{"".join(strokes)}" class="whisker" style="stroke:{paint}"/>' if strokes else ""


def pareto(points: Sequence[tuple[float, float]], *, low_y: bool = False) -> list[tuple[float, float]]:
    """Points that no other beats in both, by ascending x; more x is better, and more y (or less, with `low_y`)."""
    sign = -1.0 if low_y else 1.0
    best, front = float("-inf"), []
    for x, y in sorted(points, key=lambda p: (-p[0], -sign * p[1])):
        if sign * y > best:
            best = sign * y
            front.append((x, y))
    return front[::-1]


def _names(spots: Sequence[Spot], x: Scale, y: Scale) -> list[str]:
    """What each point is called, beside, above or below it, wherever nothing else is; no name where there is no room."""
    dots = [(x(spot.x), y(spot.y)) for spot in spots]
    taken = [(a - 5, b - 5, a + 5, b + 5) for a, b in dots]
    found = []
    for spot, (a, b) in zip(spots, dots, strict=True):
        name = clean(spot.label, 32)
        wide = 6.4 * len(name)
        for left, down, anchor in (
            (a + 9, b + 4, "start"), (a - 9 - wide, b + 4, "end"), (a - wide / 2, b - 9, "middle"),
            (a - wide / 2, b + 17, "middle"), (a + 9, b - 9, "start"), (a - 9 - wide, b + 17, "end"),
        ):  # fmt: skip
            box = (left, down - 10, left + wide, down + 2)
            inside = x.start <= box[0] and box[2] <= x.end and box[3] <= y.start
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                at = {"start": left, "middle": a, "end": left + wide}[anchor]
                found.append(text(at, down, name, anchor=anchor, kind="mark"))
                break
    return found


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _marks(marks: Marks, x: Scale, y: Scale) -> list[str]:
    parts = []
    if marks.limit:
        value, label = marks.limit
        parts.append(line(x.start, y(value), x.end, y(value), "limit"))
        # below the line where the axis title stands above it
        parts.append(text(x.start + 6, y(value) + (14 if y(value) < y.end + 14 else -5), label, kind="mark"))
    for place, height, label in marks.knees:
        a, b = x(place), y(height)
        if label:
            flip = a > x.end - 130
            parts.append(line(a, y.start, a, y.end, "limit"))
            text_at = a + (-7 if flip else 7)
            parts.append(text(text_at, y.start - 8, label, anchor="end" if flip else "start", kind="mark"))
        parts.append(f'<circle cx="{a:g}" cy="{b:g}" r="8" class="knee"/>')
    return parts


def _span(values: Sequence[float], log: bool, labels: Sequence[tuple[float, str]] | None) -> tuple[float, float]:
    if labels:
        return min(v for v, _ in labels) - 0.5, max(v for v, _ in labels) + 0.5
    return fit(values, log=log)
