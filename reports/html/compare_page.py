"""The page of a comparison: the table, overlaid curves, what was set otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from reports.compare.comparison import Comparison, Ratio
from reports.compare.sweeps import Sweep, SweepComparison
from reports.compare.text import MARK, label, method, told_change, told_value
from reports.html.curves import Curve, Spot, curves
from reports.html.overlay import DASHES, latencies, over_the_run
from reports.html.svg import Figure
from reports.html.template import render
from reports.knee import LOAD_KEYS
from reports.subject import OURS
from reports.uncertainty import interval_of
from reports.wording import clean, number, setting, settings_told


def render_comparison(comparison: Comparison) -> str:
    """One self-contained HTML page of runs held against the first."""
    whole = [(s.name, s.data) for s in comparison.subjects if s.data is not None]
    timed = [(s.name, s.data) for s in comparison.subjects if s.data is not None and s.timed]
    charts = [*latencies(whole), *over_the_run(timed)]
    heads = [
        {"name": s.name, "tool": "" if s.tool == OURS else s.tool, "source": clean(s.source, 200)}
        for s in comparison.subjects
    ]
    rows = [
        {
            "group": "",
            "words": label(row.words, row.unit),
            "first": told_value(row.values[0], row.unit),
            "others": _cells(row.values[1:], row.ratios, row.unit),
        }
        for row in comparison.rows
    ]
    settings = [(clean(key, 120), [setting(v, 120) for v in values]) for key, values in comparison.settings.items()]
    return _render("runs", heads, rows, charts, settings, comparison.notes, method(comparison))


def render_sweep_comparison(comparison: SweepComparison) -> str:
    """One self-contained HTML page of sweeps held against the first."""
    charts = _sweep_curves(comparison.sweeps)
    heads = [{"name": s.name, "tool": "", "source": clean(s.source, 200)} for s in comparison.sweeps]
    rows, last = [], None
    for point, _key, words, unit, _better, values, ratios in comparison.rows:
        rows.append(
            {
                "group": point.label() if point.key != last else "",
                "words": label(words, unit),
                "first": told_value(values[0], unit),
                "others": _cells(values[1:], ratios, unit),
            }
        )
        last = point.key
    return _render("sweeps", heads, rows, charts, [], comparison.notes, comparison.method)


def _render(
    kind: str, heads: list[dict], rows: list[dict], charts: list[Figure], settings: list[tuple[str, list[str]]],
    notes: Sequence[str], method_told: str,
) -> str:  # fmt: skip
    return render(
        "compare.html",
        name=clean(" vs ".join(h["name"] for h in heads), 200),
        kind=kind,
        heads=heads,
        rows=rows,
        grouped=any(row["group"] for row in rows),
        charts=charts,
        figures={f.key: f.data for f in charts if f.data},
        settings=settings,
        notes=[clean(n) for n in notes],
        method=method_told,
    )


def _cells(values: Sequence[float | None], ratios: Sequence[Ratio], unit: str) -> list[dict]:
    return [
        {"value": told_value(v, unit), "change": told_change(r), "verdict": r.verdict, "said": MARK.get(r.verdict, "")}
        for v, r in zip(values, ratios, strict=True)
    ]


def _sweep_curves(sweeps: Sequence[Sweep]) -> list[Figure]:
    """Throughput against latency, and latencies against load where a load was swept; a line for each sweep and setting."""
    axis = next((key for key in LOAD_KEYS if all(key in s.axes for s in sweeps)), None)
    figures = [
        (
            "cmp_trade",
            "Throughput against TTFT",
            "output_throughput",
            "p95_ttft_ms",
            "output tokens/s",
            "p95 TTFT (ms)",
        ),
        (
            "cmp_tpot",
            "Throughput against TPOT",
            "output_throughput",
            "median_tpot_ms",
            "output tokens/s",
            "median TPOT (ms)",
        ),
    ]
    if axis:
        word = axis.rsplit(".", 1)[-1]
        figures += [
            ("cmp_throughput", "Throughput against load", axis, "output_throughput", word, "output tokens/s"),
            ("cmp_ttft", "TTFT against load", axis, "p95_ttft_ms", word, "p95 TTFT (ms)"),
        ]
    return [
        curves(key, title, _lines(sweeps, axis, x, y), x_title, y_title, log_x=x == axis and _wide(sweeps, axis))
        for key, title, x, y, x_title, y_title in figures
    ]


def _lines(sweeps: Sequence[Sweep], axis: str | None, x: str, y: str) -> list[Curve]:
    found: dict[tuple[int, str], list[tuple[float, Spot]]] = {}
    for i, sweep in enumerate(sweeps):
        for point in sweep.points:
            across = point.values.get(x) if x == axis else point.summary.get(x)
            up = point.summary.get(y)
            if not isinstance(across, int | float) or not isinstance(up, int | float):
                continue
            others = settings_told({k: v for k, v in point.values.items() if k != axis}, 30)
            ends = interval_of(point.summary, y)
            rows = ((x.rsplit(".", 1)[-1], number(across)), (y, number(up)))
            spot = Spot(
                float(across),
                float(up),
                clean(f"{sweep.name}: {point.label()}", 80),
                rows,
                tuple(ends) if ends else None,
            )
            order = point.values.get(axis) if axis else across
            found.setdefault((i, others), []).append((float(order) if isinstance(order, int | float) else 0.0, spot))
    lines = []
    for shade, ((i, others), spots) in enumerate(found.items()):
        name = sweeps[i].name + (f": {others}" if others else "")
        lines.append(
            Curve(clean(name, 60), [s for _, s in sorted(spots, key=lambda p: p[0])], shade, DASHES[i % len(DASHES)])
        )
    return lines


def _wide(sweeps: Sequence[Sweep], axis: str | None) -> bool:
    values = [v for s in sweeps for p in s.points if isinstance(v := p.values.get(axis), int | float) and v > 0]
    return bool(values) and max(values) / min(values) >= 16
