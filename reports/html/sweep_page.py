"""The page of a sweep: how throughput and latency trade against each other, and where the knee is."""

from __future__ import annotations

from collections.abc import Sequence

from reports.html.curves import Curve, Marks, Spot, curves, pareto
from reports.html.svg import Figure
from reports.html.template import render
from reports.knee import LOAD_KEYS, Knee, find_knee
from reports.uncertainty import interval_of, told
from reports.wording import between, clean, number, setting, share

MOST_SERIES, MOST_BANDS = 16, 4
FRONT = "dashed: points that no other beats in both"
TABLE = (
    ("output tok/s", "output_throughput"), ("req/s", "request_throughput"), ("TTFT p50", "median_ttft_ms"),
    ("TTFT p95", "p95_ttft_ms"), ("TTFT p99", "p99_ttft_ms"), ("TPOT p50", "median_tpot_ms"),
    ("E2E p50", "median_e2el_ms"),
)  # fmt: skip


def render_sweep(
    points: Sequence[dict],
    axes: Sequence[str],
    *,
    name: str = "sweep",
    gpus: int = 1,
    slo: dict | None = None,
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> str:
    """One self-contained HTML page of a sweep.

    Args:
        points: one a run: `settings` (dict of dotted key to value), `summary` (of `metrics.summarize`; None where the
            point failed, with `error`), and `path`, the run's folder relative to the page, optionally.
        axes: the swept keys. One that drives the load becomes x, else the first numeric one; the others name the series.
        gpus: by which throughput is divided for tokens/s/GPU; a point's own `gpus` wins.
        slo: limits in ms (`ttft_ms`), drawn where they belong.
    """
    sweep = Sweep(points, axes, gpus)
    slo = slo or {}
    knees = {name: sweep.knee(name) for name in sweep.series}
    figures = [
        _throughput(sweep, knees),
        _against_latency(sweep),
        *_ttft(sweep, slo),
        _interactivity(sweep),
        _tpot(sweep, slo),
        *_attainment(sweep),
    ]
    return render(
        "sweep.html",
        name=clean(name, 200),
        axes=[clean(axis, 80) for axis in axes],
        heads=_heads(axes),
        count=len(points),
        ranges=next((said for p in points if (said := told(p.get("summary") or {}))), ""),
        knees=[(series if len(knees) > 1 else "", _said(knee)) for series, knee in knees.items() if sweep.loaded],
        warnings=[clean(w) for w in warnings],
        notes=[clean(n) for n in notes],
        figures={f.key: f.data for f in figures if f.data},
        charts=figures,
        columns=[title for title, _ in TABLE],
        with_slo=any((point.get("summary") or {}).get("slo_attainment") is not None for point in points),
        rows=_rows(sweep, axes),
    )


class Sweep:
    """The points of a sweep sorted into series.

    Attributes:
        axis: the key on x.   loaded: whether it drives the load.
        ticks: (place, text) where x is not a number, else None.
        series: name to points, each (x, point), by ascending x; failed points are left out.
    """

    def __init__(self, points: Sequence[dict], axes: Sequence[str], gpus: int) -> None:
        self.points, self.gpus = list(points), gpus
        numeric = [a for a in axes if all(_is_number(p["settings"].get(a)) for p in points)]
        driving = [key for key in LOAD_KEYS if key in numeric] or [a for a in numeric if a.startswith("load.")]
        self.axis = (driving or numeric or list(axes) or [""])[0]
        self.loaded = self.axis in driving
        others = [a for a in axes if a != self.axis]
        self.ticks = None
        places: dict[str, int] = {}
        if self.axis not in numeric:
            for point in points:
                places.setdefault(setting(point["settings"].get(self.axis), 24), len(places))
            self.ticks = [(float(place), text) for text, place in places.items()]
        self.series: dict[str, list[tuple[float, dict]]] = {}
        for point in points:
            if point.get("summary") is None:
                continue
            value = point["settings"].get(self.axis)
            x = float(value) if self.ticks is None else float(places[setting(value, 24)])
            title = ", ".join(f"{a.rpartition('.')[2]} {setting(point['settings'].get(a), 40)}" for a in others)
            self.series.setdefault(title or "all", []).append((x, point))
        for found in self.series.values():
            found.sort(key=lambda pair: pair[0])
        values = [x for found in self.series.values() for x, _ in found]
        self.log_x = self.ticks is None and bool(values) and min(values) > 0 and max(values) / min(values) >= 16

    def label(self) -> str:
        """The swept key as an axis title."""
        return clean(self.axis, 60)

    def headed(self, what: str) -> str:
        """Title of a figure of `what` over the axis."""
        return f"{what} against load" if self.loaded else f"{what} by {clean(self.axis.rpartition('.')[2], 40)}"

    def curve(
        self, name: str, shade: int, x: object, y: object, dash: str = "", title: str = "", key: str = ""
    ) -> Curve:
        """A curve of a series; `x`, `y`: functions of (axis value, summary, gpus) that may give None; `key`: the figure
        that y is, if its range is to be drawn."""
        spots = []
        for value, point in self.series[name]:
            arguments = (value, point["summary"], point.get("gpus", self.gpus))
            a, b = x(*arguments), y(*arguments)
            if a is not None and b is not None:
                ends = interval_of(point["summary"], key)
                spots.append(Spot(a, b, self.title(name, point), _shown(point["summary"]), ends and tuple(ends)))
        return Curve(title or name, spots, shade, dash)

    def title(self, name: str, point: dict) -> str:
        """What a point is called."""
        if name == "all" and self.ticks is not None:
            return setting(point["settings"].get(self.axis), 40)
        value = f"{self.axis.rpartition('.')[2]} {setting(point['settings'].get(self.axis), 40)}"
        return value if name == "all" else f"{value}, {name}"

    def curves(self, x: object, y: object, key: str = "") -> list[Curve]:
        """One curve a series, as many as can be told apart, with the ranges of a few."""
        key = key if len(self.series) <= MOST_BANDS else ""
        return [
            self.curve(name, i, x, y, "" if i < 8 else "dashed", key=key)
            for i, name in enumerate(list(self.series)[:MOST_SERIES])
        ]

    def knee(self, name: str) -> Knee | None:
        """The knee of a series, where x drives the load."""
        if not self.loaded:
            return None
        summaries = [point["summary"] for _, point in self.series[name]]
        return find_knee(
            [x for x, _ in self.series[name]],
            [s["output_throughput"] for s in summaries],
            [s.get("p95_ttft_ms") or s.get("median_ttft_ms") for s in summaries],
        )


def _axis(value: float, summary: dict, gpus: int) -> float:
    return value


def _take(key: str):
    return lambda value, summary, gpus: summary.get(key)


def _throughput(sweep: Sweep, knees: dict[str, Knee | None]) -> Figure:
    found = [(name, knee) for name, knee in knees.items() if knee is not None]
    # with several series one ring each would hide the curves: only a lone knee is drawn
    mark = (
        (found[0][1].load, found[0][1].throughput, f"knee at {found[0][1].load:g}")
        if len(knees) == 1 and found
        else None
    )
    return curves(
        "throughput", sweep.headed("Throughput"), sweep.curves(_axis, _take("output_throughput"), "output_throughput"),
        sweep.label(),
        "output tokens/s", log_x=sweep.log_x, x_labels=sweep.ticks, marks=Marks(knee=mark),
    )  # fmt: skip


def _against_latency(sweep: Sweep) -> Figure:
    lines = sweep.curves(_take("output_throughput"), _take("median_e2el_ms"))
    spots = [(s.x, s.y) for curve in lines for s in curve.spots]
    front = pareto(spots, low_y=True) if len(lines) > 1 else []
    return curves(
        "latency", "Latency against throughput", lines, "output tokens/s", "median E2E, ms", log_y=_wide(spots),
        marks=Marks(front=front), note=FRONT if front else "", apart=sweep.ticks is not None,
    )  # fmt: skip


def _ttft(sweep: Sweep, slo: dict) -> list[Figure]:
    limit = (float(slo["ttft_ms"]), f"SLO {slo['ttft_ms']:g} ms") if slo.get("ttft_ms") else None
    if len(sweep.series) == 1:
        name = next(iter(sweep.series))
        styles = (("p50", 0, "median_ttft_ms"), ("p95", 1, "p95_ttft_ms"), ("p99", 4, "p99_ttft_ms"))
        lines = [sweep.curve(name, shade, _axis, _take(key), title=title, key=key) for title, shade, key in styles]
        return [_loaded(sweep, "ttft", sweep.headed("TTFT"), lines, "TTFT, ms", limit)]
    stats = (("p50", "median_ttft_ms"), ("p95", "p95_ttft_ms"), ("p99", "p99_ttft_ms"))
    return [
        _loaded(
            sweep,
            f"ttft_{stat}",
            sweep.headed(f"TTFT {stat}"),
            sweep.curves(_axis, _take(key), key),
            "TTFT, ms",
            limit,
        )
        for stat, key in stats
    ]


def _tpot(sweep: Sweep, slo: dict) -> Figure:
    limit = (float(slo["tpot_ms"]), f"SLO {slo['tpot_ms']:g} ms") if slo.get("tpot_ms") else None
    lines = sweep.curves(_axis, _take("median_tpot_ms"), "median_tpot_ms")
    return _loaded(sweep, "tpot", sweep.headed("TPOT"), lines, "median TPOT, ms", limit)


def _loaded(sweep: Sweep, key: str, title: str, lines: list[Curve], unit: str, limit: tuple | None) -> Figure:
    spots = [(s.x, s.y) for curve in lines for s in curve.spots]
    return curves(
        key, title, lines, sweep.label(), unit, log_x=sweep.log_x, log_y=_wide(spots), x_labels=sweep.ticks,
        marks=Marks(limit=limit),
    )  # fmt: skip


def _interactivity(sweep: Sweep) -> Figure:
    def speed(value: float, summary: dict, gpus: int) -> float | None:
        tpot = summary.get("median_tpot_ms")
        return 1e3 / tpot if tpot else None

    def per_gpu(value: float, summary: dict, gpus: int) -> float | None:
        rate = summary.get("output_throughput")
        return rate / gpus if rate is not None else None

    lines = sweep.curves(speed, per_gpu)
    front = pareto([(s.x, s.y) for curve in lines for s in curve.spots]) if len(lines) > 1 else []
    return curves(
        "interactivity", "Throughput per GPU against interactivity", lines, "tokens/s for one user (1 / median TPOT)",
        "output tokens/s/GPU", marks=Marks(front=front), note=FRONT if front else "", apart=sweep.ticks is not None,
    )  # fmt: skip


def _attainment(sweep: Sweep) -> list[Figure]:
    def met(value: float, summary: dict, gpus: int) -> float | None:
        attained = summary.get("slo_attainment")
        return None if attained is None else attained * 100

    lines = sweep.curves(_axis, met)
    if not any(curve.spots for curve in lines):
        return []
    return [
        curves(
            "slo",
            "Requests that met the SLO",
            lines,
            sweep.label(),
            "%",
            log_x=sweep.log_x,
            x_labels=sweep.ticks,
        )
    ]


def _wide(spots: Sequence[tuple[float, float]]) -> bool:
    """Whether y spans so much that only a logarithmic axis shows its low end."""
    values = [y for _, y in spots]
    return bool(values) and min(values) > 0 and max(values) / min(values) > 20


def _shown(summary: dict) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"{title}, ms" if key.endswith("_ms") else title, number(summary.get(key)))
        for title, key in TABLE
    )  # fmt: skip


def _rows(sweep: Sweep, axes: Sequence[str]) -> list[dict]:
    rows = []
    for point in sweep.points:
        summary = point.get("summary")
        rows.append(
            {
                "settings": [setting(point["settings"].get(axis), 60) for axis in axes],
                "figures": [(number(summary.get(key)), between(interval_of(summary, key))) for _, key in TABLE]
                if summary
                else None,
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
    """Keys cut to their last word where that is enough to tell them apart."""
    last = [clean(axis.rpartition(".")[2], 60) for axis in axes]
    return [word if last.count(word) == 1 else clean(axis, 80) for word, axis in zip(last, axes, strict=True)]


def _link(path: object) -> str:
    """A link to a run's page; only relative paths, so that no scheme can slip in."""
    text = str(path or "").replace("\\", "/")
    return "" if not text or ":" in text or text.startswith("/") else f"{text.rstrip('/')}/report.html"


def _said(knee: Knee | None) -> str:
    return f"Knee: {knee.sentence}." if knee else "No knee in the measured range."


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
