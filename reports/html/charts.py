"""The kinds of figure: lines and bars over time, stacked areas, distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.gantt import DECODE, FIRST, PREFILL, QUEUE, Bar
from reports.html.scales import Scale, fit, linear_ticks
from reports.html.svg import (
    TOP,
    Figure,
    across,
    colour,
    drawing,
    empty,
    frame,
    line,
    path,
    rounded,
    square,
    stroke,
    text,
    upwards,
)
from reports.percentiles import Distribution
from reports.wording import number

DASHES = ("", "dashed", "dotted")
_PHASES = {QUEUE: 7, PREFILL: 1, FIRST: 1, DECODE: 0}  # shades


@dataclass(frozen=True, slots=True)
class Series:
    """One thing over a shared x. `kind`: "line" | "area" (a line over a tint) | "bar". `shade`: colour index."""

    name: str
    values: np.ndarray
    shade: int
    kind: str = "line"


def over_time(
    key: str,
    title: str,
    times: np.ndarray,
    series: Sequence[Series],
    unit: str,
    *,
    note: str = "",
    limit: tuple[float, str] | None = None,
    top: float | None = None,
) -> Figure:
    """Lines and bars over time.

    Args:
        times: seconds.   unit: of the y axis.   limit: (value, name) of a dashed line across.   top: end of the y axis.
    """
    if not len(times):
        return empty(key, title, "nothing was recorded over time")
    span, span_unit = time_axis(times)
    tops = [v for s in series for v in s.values] + ([limit[0]] if limit else [])
    x = across(*_ends(span))
    y = upwards(0.0, top) if top else upwards(*fit(tops))
    parts = [frame(x, y, span_unit, unit)]
    for i, s in enumerate(series):
        points = [(x(a), y(b) if math.isfinite(b) else None) for a, b in zip(span, s.values, strict=True)]
        parts.append(f'<g data-series="{i}">{_mark(points, s, x, y, _dash(i, s))}</g>')
    if limit:
        parts.append(line(x.start, y(limit[0]), x.end, y(limit[0]), "limit"))
        parts.append(text(x.end, y(limit[0]) - 5, limit[1], anchor="end", kind="mark"))
    data = chart_data("lines", x, y, span, [s.name for s in series], [s.values for s in series], unit, span_unit)
    legend = [(s.name, colour(s.shade)) for s in series]
    glyphs = [
        square(colour(s.shade)) if s.kind == "bar" else stroke(colour(s.shade), _dash(i, s))
        for i, s in enumerate(series)
    ]
    return Figure(key, title, drawing("".join(parts), _spoken(title, series, unit)), note, legend, data, glyphs)


def _dash(place: int, s: Series) -> str:
    return DASHES[place % len(DASHES)] if s.kind == "line" else ""


def stacked(
    key: str, title: str, times: np.ndarray, series: Sequence[Series], unit: str, *, note: str = "",
    top: float | None = None,
) -> Figure:  # fmt: skip
    """Areas on top of each other over time; `top` fixes the upper end of the axis."""
    if not len(times):
        return empty(key, title, "nothing was recorded over time")
    span, span_unit = time_axis(times)
    total = np.sum([s.values for s in series], axis=0)
    x = across(*_ends(span))
    y = upwards(0.0, top or fit(total)[1])
    parts, below = [frame(x, y, span_unit, unit)], np.zeros(len(times))
    for i, s in enumerate(series):
        above = below + s.values
        there = [(x(a), y(b)) for a, b in zip(span, above, strict=True)]
        back = [(x(a), y(b)) for a, b in zip(span[::-1], below[::-1], strict=True)]
        shape = path(there + back, close=True)
        parts.append(f'<g data-series="{i}"><path d="{shape}" class="layer" style="fill:{_layer(s.shade)}"/></g>')
        below = above
    data = chart_data("stack", x, y, span, [s.name for s in series], [s.values for s in series], unit, span_unit)
    legend = [(s.name, _layer(s.shade)) for s in series]
    return Figure(key, title, drawing("".join(parts), _spoken(title, series, unit)), note, legend, data)


def distribution(key: str, title: str, d: Distribution, *, shade: int = 0, weight: str = "requests") -> Figure:
    """A histogram of seconds, with p50, p95 and p99 marked where the sample allows them."""
    if not d.count:
        return empty(key, title, "no request finished, so there is nothing to show")
    factor, unit = (1.0, "s") if d.quantile(99) >= 10 else (1e3, "ms")
    log = _long_tailed(d)
    edges = _edges(d, log)
    counts = _binned(d, edges)
    edges = edges * factor
    room = 14.0 * 3
    x = across(float(edges[0]), float(edges[-1]), log)
    shares = counts / d.count * 100
    y = upwards(0.0, float(shares.max()) or 1.0, room=room)
    parts = [frame(x, y, f"{unit}{', logarithmic' if log else ''}", f"% of {weight}")]
    bars = []
    for a, b, v in zip(edges[:-1], edges[1:], shares, strict=True):
        if v > 0:
            left, right, upper = x(a), x(b), min(y(v), y.start - 0.8)
            bars.append(
                f'<rect x="{left:g}" y="{upper:g}" width="{max(right - left - 0.7, 0.6):.1f}" '
                f'height="{y.start - upper:.1f}"/>'
            )
    parts.append(f'<g style="fill:{colour(shade)}" class="bars">{"".join(bars)}</g>')
    parts.append(_percentile_marks(d, factor, unit, x, y))
    data = chart_data("hist", x, y, edges, [weight], [shares], "%", unit) | {"n": d.count}
    note = f"{d.count:,} {weight}" if weight != "gaps" else f"{d.count:,} gaps between tokens"
    label = f"Distribution of {title}: median {number(d.median() * factor, unit)} over {note}"
    return Figure(key, title, drawing("".join(parts), label), note, [], data)


def gantt(
    key: str, title: str, parts: Sequence[Bar], names: Sequence[str], phases: Sequence[str], end: float
) -> Figure:
    """A row for every request, with a bar for each of its phases.

    Args:
        parts: in seconds, rows from 0.   names: of the rows.   end: of the run, seconds.
    """
    if not parts:
        return empty(key, title, "no request was sent")
    edges, unit = time_axis(np.array([0.0, end]))
    factor = edges[1] / end if end else 1.0
    size = len(names)
    x, y = across(0.0, max(float(edges[1]), 1e-9)), upwards(-float(size), 0.0)
    labels = [(0.5 - n, str(n)) for n in (1, *(int(t) for t in linear_ticks(0, size, 4) if t >= 2))]
    drawn = [frame(x, y, unit, "request, in order of sending", y_labels=labels)]
    thick = max((y.start - y.end) / size * 0.82, 0.8)
    for i, phase in enumerate(phases):
        rects = "".join(
            f'<rect x="{x(b.start * factor):g}" y="{y(-b.row - 0.5) - thick / 2:.1f}" '
            f'width="{max(x(b.end * factor) - x(b.start * factor), 0.6):.1f}" height="{thick:.1f}"/>'
            for b in parts
            if b.phase == phase
        )
        drawn.append(f'<g data-series="{i}" style="fill:{colour(_PHASES[phase])}">{rects}</g>')
    data = chart_data("gantt", x, y, [], list(phases), [], unit, unit)
    data |= {
        "rows": list(names),
        "bars": [[b.row, *rounded([b.start * factor, b.end * factor]), phases.index(b.phase)] for b in parts],
    }
    legend = [(phase, colour(_PHASES[phase])) for phase in phases]
    said = f"{title}: {size} requests, their time in {', '.join(phases)}"
    return Figure(key, title, drawing("".join(drawn), said), f"{size} requests", legend, data)


def time_axis(times: np.ndarray) -> tuple[np.ndarray, str]:
    """Times in the unit that suits their span, and an axis title that names it."""
    last = float(times[-1])
    for limit, factor, unit in ((0.2, 1e3, "ms"), (300, 1.0, "s"), (10_800, 1 / 60, "min")):
        if last < limit:
            return times * factor, f"time in the run ({unit})"
    return times / 3600, "time in the run (h)"


def _mark(points: list, s: Series, x: Scale, y: Scale, dash: str) -> str:
    if s.kind == "bar":
        step = max((x.end - x.start) / max(len(points), 1) - 0.5, 1.0)
        return "".join(
            f'<rect x="{a:g}" y="{b:g}" width="{step:.1f}" height="{y.start - b:.1f}" style="fill:{colour(s.shade)}"/>'
            for a, b in points
            if b is not None and b < y.start
        )
    drawn = f'<path d="{path(points)}" class="line {dash}" style="stroke:{colour(s.shade)}"/>'
    if s.kind == "area" and points:
        known = [(a, b) for a, b in points if b is not None]
        ground = [(known[-1][0], y.start), (known[0][0], y.start)] if known else []
        drawn = f'<path d="{path(known + ground, close=True)}" class="tint" style="fill:{colour(s.shade)}"/>' + drawn
    return drawn


def _percentile_marks(d: Distribution, factor: float, unit: str, x: Scale, y: Scale) -> str:
    """A line at each percentile, with its name beside it in a row of its own.

    A line starts in its row and goes down, so that a name crosses no other line: right of its line where the lines to the right
    start lower; where the last would not fit there, all names are left of theirs, and the lines to the left start lower.
    """
    found = [(p, x(value * factor), f"p{p} {number(value * factor, unit)}")
             for p in (50, 95, 99) if (value := d.percentile(p)) is not None]  # fmt: skip
    left = bool(found) and any(at + 5 + _wide(label) > x.end for _, at, label in found)
    parts = []
    for row, (p, at, label) in enumerate(reversed(found) if left else found):
        height = TOP + 2 + 14 * row
        flip = left and at - 5 - _wide(label) >= x.start
        parts.append(line(at, height - 8, at, y.start, f"pct p{p}"))
        parts.append(text(at + (-5 if flip else 5), height, label, anchor="end" if flip else "start", kind="mark"))
    return "".join(parts)


def _wide(label: str) -> float:
    """Pixels that a label takes, rather more than less."""
    return 6.8 * len(label)


def _long_tailed(d: Distribution) -> bool:
    middle = d.quantile(50)
    return middle > 0 and float(d.values[-1]) / middle > 8


def _edges(d: Distribution, log: bool, bins: int = 56) -> np.ndarray:
    low, high = float(d.values[0]), float(d.values[-1])
    if log:
        low = max(low, d.quantile(50) / 1e3)
        return np.geomspace(low * 0.98, high * 1.02, bins + 1)
    if high - low < 1e-9 * max(abs(high), 1e-9):
        pad = max(abs(high) * 0.05, 1e-6)
        return np.linspace(max(low - pad, 0.0), high + pad, bins + 1)
    # one value never fills a bin of its own: small samples get fewer bins
    bins = min(bins, max(8, round(4 * math.sqrt(d.count))))
    start = 0.0 if low < 0.5 * high else low - 0.02 * (high - low)
    return np.linspace(start, high, bins + 1)


def _binned(d: Distribution, edges: np.ndarray) -> np.ndarray:
    """Counts per bin; what lies below the first edge goes into the first bin."""
    before = np.concatenate([[0], np.cumsum(d.counts)])
    below = before[np.searchsorted(d.values, edges, side="right")]
    below[0] = 0
    below[-1] = d.count
    return np.diff(below)


def chart_data(
    kind: str,
    x: Scale,
    y: Scale,
    xs: Sequence[float],
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    unit: str,
    x_unit: str,
) -> dict:
    """What the page's script reads of a figure. `kind`: "lines" | "stack" | "hist" | "points"."""
    return {
        "kind": kind,
        "x": rounded(xs),
        "y": [rounded(v, 4) for v in values],
        "names": list(names),
        "unit": unit,
        "xUnit": x_unit.rpartition("(")[2].rstrip(")"),
        "xs": [x.low, x.high, x.start, x.end, int(x.log)],
        "ys": [y.low, y.high, y.start, y.end, int(y.log)],
    }


def _spoken(title: str, series: Sequence[Series], unit: str) -> str:
    peaks = ", ".join(f"{s.name} up to {number(float(np.nanmax(s.values)))}" for s in series if len(s.values))
    return f"{title} ({unit}): {peaks}"


def _ends(span: np.ndarray) -> tuple[float, float]:
    low, high = float(span[0]), float(span[-1])
    return (low, high) if high > low else (low, low + 1.0)


def _layer(shade: int) -> str:
    return "var(--free)" if shade < 0 else colour(shade)
