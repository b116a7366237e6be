"""Curves of several runs in one figure: shares of requests below a latency, tokens and requests over time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reports.concurrency import InFlight
from reports.html.charts import DASHES, chart_data, time_axis
from reports.html.scales import fit
from reports.html.svg import Figure, across, colour, drawing, empty, frame, path, stroke, upwards
from reports.metrics import distributions
from reports.percentiles import Distribution
from reports.run_data import FINISHED, UNFINISHED, RunData
from reports.token_series import token_counts
from reports.wording import number

POINTS = 240
LONG_TAIL = 8


def cumulative(key: str, title: str, named: Sequence[tuple[str, Distribution]], *, weight: str = "requests") -> Figure:
    """Cumulative distributions: which share of `weight` took at most so long.

    Args:
        named: name and distribution (seconds) of each run; empty ones are left out.
    """
    series = [(name, d) for name, d in named if d.count]
    if not series:
        return empty(key, title, "no run tells this for single requests")
    largest, middle = (max(d.quantile(p) for _, d in series) for p in (100, 50))
    factor, unit = (1.0, "s") if largest >= 10 else (1e3, "ms")
    smallest = min(float(d.values[0]) for _, d in series)
    log = middle > 0 and largest / middle > LONG_TAIL and smallest > 0
    low, high = smallest * factor, max(largest * factor, 1e-9)
    if log:
        grid = np.geomspace(low / 1.05, high * 1.05, POINTS)
    else:
        grid = np.linspace(*fit([low, high], zero=low < 0.5 * high), POINTS)
    shares = [_below(d, grid / factor) for _, d in series]
    return _lines(
        key, title, grid, [name for name, _ in series], shares, f"{unit}{', logarithmic' if log else ''}",
        f"% of {weight}", log=log, top=100.0, x_unit=unit,
    )  # fmt: skip


def latencies(named: Sequence[tuple[str, RunData]]) -> list[Figure]:
    """Cumulative distributions of TTFT, TPOT, ITL and E2E latency."""
    found = [(name, distributions(data)) for name, data in named]
    seen = [(name, d) for (name, d), (_, data) in zip(found, named, strict=True) if data.info.get("tokens_seen", True)]
    titles = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E latency"))
    return [
        cumulative(
            f"cdf_{key}", title, [(name, d[key]) for name, d in (seen if key == "itl" else found)],
            weight="gaps" if key == "itl" else "requests",
        )
        for key, title in titles
    ]  # fmt: skip


def over_the_run(named: Sequence[tuple[str, RunData]]) -> list[Figure]:
    """Output tokens a second, and requests in flight, of every run from its own start."""
    ends = [float(data.info["end"]) for _, data in named]
    if not named or not max(ends) > 0:
        title = "Output tokens over time"
        return [empty("over_tokens", title, "no run tells when its tokens came")]
    edges = np.linspace(0, max(ends), POINTS + 1)
    names = [name for name, _ in named]
    tokens = [_rate(data, edges, end) for (_, data), end in zip(named, ends, strict=True)]
    flight = [_in_flight(data, edges[:-1], end) for (_, data), end in zip(named, ends, strict=True)]
    span, unit = time_axis(edges)
    return [
        _lines("over_tokens", "Output tokens over time", span[:-1], names, tokens, unit, "tokens/s"),
        _lines("over_flight", "Requests in flight", span[:-1], names, flight, unit, "requests"),
    ]


def _lines(
    key: str, title: str, xs: np.ndarray, names: Sequence[str], values: Sequence[np.ndarray], x_title: str, y_title: str,
    *, log: bool = False, top: float | None = None, x_unit: str = "",
) -> Figure:  # fmt: skip
    """One line a run over a shared x, with dashes from the second on, so that colour alone never tells them apart."""
    x = across(float(xs[0]), float(xs[-1]) if xs[-1] > xs[0] else float(xs[0]) + 1.0, log)
    y = upwards(0.0, top) if top else upwards(*fit([v for line in values for v in line]))
    parts = [frame(x, y, x_title, y_title)]
    for i, line in enumerate(values):
        points = [(x(a), y(b) if math.isfinite(b) else None) for a, b in zip(xs, line, strict=True)]
        dash = DASHES[i % len(DASHES)]
        parts.append(
            f'<g data-series="{i}"><path d="{path(points)}" class="line {dash}" style="stroke:{colour(i)}"/></g>'
        )
    data = chart_data("lines", x, y, xs, names, values, y_title, f"({x_unit})" if x_unit else x_title)
    peaks = ", ".join(f"{name} up to {number(float(np.nanmax(v)))}" for name, v in zip(names, values, strict=True))
    legend = [(name, colour(i)) for i, name in enumerate(names)]
    glyphs = [stroke(colour(i), DASHES[i % len(DASHES)]) for i in range(len(names))]
    return Figure(key, title, drawing("".join(parts), f"{title} ({y_title}): {peaks}"), "", legend, data, glyphs)


def _below(d: Distribution, grid: np.ndarray) -> np.ndarray:
    """Per cent of the values that are at most each grid point."""
    before = np.concatenate([[0], np.cumsum(d.counts)])
    return before[np.searchsorted(d.values, grid * (1 + 1e-12), side="right")] / d.count * 100


def _rate(data: RunData, edges: np.ndarray, end: float) -> np.ndarray:
    """Tokens a second in each bucket; nothing after the run's end."""
    times, counts = token_counts(data.tokens)
    reached = np.concatenate([[0], counts])[np.searchsorted(times, edges, side="right")]
    rate = np.diff(reached) / np.diff(edges)
    return np.where(edges[:-1] <= end, rate, np.nan)


def _in_flight(data: RunData, times: np.ndarray, end: float) -> np.ndarray:
    r = data.requests
    until = np.where(r.status == UNFINISHED, end, np.where(r.status == FINISHED, r.finish, r.sent))
    return np.where(times <= end, InFlight.of(r.sent, until).at(times).astype(float), np.nan)
