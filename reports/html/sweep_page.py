"""The page of a sweep: how throughput and latency trade against each other, where the knee is, where it is overloaded."""

from __future__ import annotations

from collections.abc import Sequence

from reports.html.sweep_figures import sweep_plots
from reports.html.sweep_series import TABLE, Sweep
from reports.html.template import render
from reports.knee import Knee
from reports.saturation import BACKLOGGED, OVERLOADED, saturation_along
from reports.uncertainty import interval_of, told
from reports.wording import between, clean, naming, number, share, short_keys


def render_sweep(
    points: Sequence[dict],
    axes: Sequence[str],
    *,
    name: str = "sweep",
    gpus: int = 1,
    slo: dict | None = None,
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    about: Sequence[tuple[str, str]] = (),
) -> str:
    """One self-contained HTML page of a sweep.

    Args:
        points: one a run: `settings` (dict of dotted key to value), `summary` (of `metrics.summarize`; None where the
            point failed, with `error`), and `path`, the run's folder relative to the page, optionally.
        axes: the swept keys. One that drives the load becomes x, else the first numeric one; the others name the series.
        gpus: by which throughput is divided for tokens/s/GPU; a point's own `gpus` wins.
        slo: limits in ms (`ttft_ms`), drawn where they belong.   about: what ran, for the line under the title.
    """
    sweep = Sweep(points, axes, gpus)
    knees = {name: sweep.knee(name) for name in sweep.series}
    plots = [plot.figure() for plot in sweep_plots(sweep, slo or {}, knees)]
    several = len(knees) > 1
    labels = {
        (point["summary"].get("saturation") or {}).get("label") for found in sweep.series.values() for _, point in found
    }
    return render(
        "sweep.html",
        name=clean(name, 200),
        axes=[clean(axis, 80) for axis in axes],
        heads=_heads(axes),
        count=len(points),
        about=[(clean(word, 40), clean(value, 200)) for word, value in about],
        ranges=next((said for p in points if (said := told(p.get("summary") or {}))), ""),
        knees=[(series if several else "", _said(knee)) for series, knee in knees.items() if sweep.loaded],
        saturated=[(series if several else "", said) for series in sweep.series if (said := _overload(sweep, series))],
        saturated_label=OVERLOADED if OVERLOADED in labels else BACKLOGGED,
        warnings=[clean(w) for w in warnings],
        notes=[clean(n) for n in notes],
        figures={f.key: f.data for f in plots if f.data},
        charts=plots,
        columns=[title for title, _ in TABLE],
        with_slo=any((point.get("summary") or {}).get("slo_attainment") is not None for point in points),
        rows=_rows(sweep, axes),
    )


def _overload(sweep: Sweep, series: str) -> str:
    """What is to be said of the saturation of a series."""
    found = sweep.series[series]
    names = [sweep.named(point["settings"].get(sweep.axis)) for _, point in found]
    labels = [(point["summary"].get("saturation") or {}).get("label", "unknown") for _, point in found]
    return saturation_along(sweep.word, names, labels, ordered=sweep.loaded)


def _figure(summary: dict, key: str) -> tuple[str, str]:
    figure = number(summary.get(key))
    return figure, between(interval_of(summary, key), figure)


def _rows(sweep: Sweep, axes: Sequence[str]) -> list[dict]:
    rows = []
    named = {axis: naming([point["settings"].get(axis) for point in sweep.points], 120) for axis in axes}
    for point in sweep.points:
        summary = point.get("summary")
        rows.append(
            {
                "settings": [named[axis](point["settings"].get(axis)) for axis in axes],
                "figures": [_figure(summary, key) for _, key in TABLE] if summary else None,
                "slo": share(summary["slo_attainment"])
                if summary and summary.get("slo_attainment") is not None
                else "",
                "label": summary["saturation"]["label"] if summary and summary.get("saturation") else "",
                "error": clean(point.get("error") or "failed", 300) if not summary else "",
                "path": _link(point.get("path")),
            }
        )
    return rows


def _heads(axes: Sequence[str]) -> list[str]:
    """Keys cut to what tells them apart."""
    return [clean(word, 80) for word in short_keys(axes).values()]


def _link(path: object) -> str:
    """A link to a run's page; only relative paths, so that no scheme can slip in."""
    text = str(path or "").replace("\\", "/")
    return "" if not text or ":" in text or text.startswith("/") else f"{text.rstrip('/')}/report.html"


def _said(knee: Knee | None) -> str:
    return f"Knee: {knee.sentence}." if knee else "No knee in the measured range."
