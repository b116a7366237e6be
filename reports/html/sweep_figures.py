"""The figures of a sweep, as plots that the page and the exported files both draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reports.html.curves import Curve, Marks, curves, pareto
from reports.html.svg import Figure
from reports.html.sweep_series import MOST_BANDS, Sweep, Take, on_axis, take
from reports.knee import Knee

FRONT = "broad line: points that no other beats in both"
OPEN = "hollow points: overloaded, so that latency depends on how long the run lasted"
_STATS = (("p50", 0, "median"), ("p95", 1, "p95"), ("p99", 4, "p99"))
_VARIES = 1.5  # longest by shortest context, from which on concurrency is drawn against it


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure before it is drawn; see `reports.html.curves.curves` for the fields."""

    key: str
    title: str
    lines: Sequence[Curve]
    x_title: str
    y_title: str
    log_x: bool = False
    log_y: bool = False
    x_labels: Sequence[tuple[float, str]] | None = None
    marks: Marks = field(default_factory=Marks)
    note: str = ""
    apart: bool = False

    def figure(self) -> Figure:
        """For the page."""
        return curves(
            self.key, self.title, self.lines, self.x_title, self.y_title, log_x=self.log_x, log_y=self.log_y,
            x_labels=self.x_labels, marks=self.marks, note=self.note, apart=self.apart,
        )  # fmt: skip

    @property
    def spots(self) -> list[tuple[float, float]]:
        """All points."""
        return [(s.x, s.y) for curve in self.lines for s in curve.spots]


def sweep_plots(sweep: Sweep, slo: dict, knees: dict[str, Knee | None]) -> list[Plot]:
    """Every figure that the sweep has something for."""
    found = [
        _throughput(sweep, knees),
        _against_latency(sweep, knees),
        *_percentiles(sweep, "ttft", "TTFT", slo),
        _interactivity(sweep, knees),
        *_percentiles(sweep, "tpot", "TPOT", slo),
        *_goodput(sweep),
        *_context(sweep),
        *_memory(sweep),
        *_hits(sweep),
    ]
    return [plot for plot in found if plot.spots] or found[:1]


def _over_axis(sweep: Sweep, key: str, title: str, lines: list[Curve], unit: str, marks: Marks | None = None) -> Plot:
    spots = [(s.x, s.y) for curve in lines for s in curve.spots]
    wide = unit.endswith(", ms") and _wide(spots)
    hollow = any(s.hollow for curve in lines for s in curve.spots)
    return Plot(
        key, title, lines, sweep.label(), unit, sweep.log_x, wide, sweep.ticks, marks or Marks(), OPEN if hollow else ""
    )


def _throughput(sweep: Sweep, knees: dict[str, Knee | None]) -> Plot:
    lines = sweep.curves(on_axis, take("output_throughput"), "output_throughput")
    marks = Marks(knees=_rings(sweep, knees, on_axis, take("output_throughput")))
    return _over_axis(sweep, "throughput", sweep.headed("Throughput"), lines, "output tokens/s", marks)


def _rings(sweep: Sweep, knees: dict[str, Knee | None], x: Take, y: Take) -> list[tuple[float, float, str]]:
    """Where the knees are in a figure of these coordinates; none of so many series that rings would hide the curves."""
    if len(knees) > MOST_BANDS:
        return []
    found = []
    for name, knee in knees.items():
        if knee is None:
            continue
        value, point = sweep.series[name][knee.index]
        a, b = (get(value, point["summary"], point.get("gpus", sweep.gpus)) for get in (x, y))
        if a is not None and b is not None:
            # of several series only rings: their names would hide the curves
            found.append((a, b, f"knee at {knee.load:g}" if len(knees) == 1 else ""))
    return found


def _against_latency(sweep: Sweep, knees: dict[str, Knee | None]) -> Plot:
    x, y = take("output_throughput"), take("median_e2el_ms")
    lines = sweep.curves(x, y)
    spots = [(s.x, s.y) for curve in lines for s in curve.spots]
    front = pareto(spots, low_y=True) if len(lines) > 1 else []
    return Plot(
        "latency", "Latency against throughput", lines, "output tokens/s", "median E2E, ms", log_y=_wide(spots),
        marks=Marks(knees=_rings(sweep, knees, x, y), front=front), note=FRONT if front else "", apart=sweep.ticks is not None,
    )  # fmt: skip


def _percentiles(sweep: Sweep, name: str, title: str, slo: dict) -> list[Plot]:
    """p50, p95 and p99 of a latency: in one figure of a single series, in one each of several."""
    limit = slo.get(f"{name}_ms")
    marks = Marks(limit=(float(limit), f"SLO {limit:g} ms") if limit else None)
    unit = f"{title}, ms"
    if len(sweep.series) == 1:
        only = next(iter(sweep.series))
        lines = [
            sweep.curve(only, shade, on_axis, take(f"{stat}_{name}_ms"), title=label, key=f"{stat}_{name}_ms")
            for label, shade, stat in _STATS
        ]
        return [_over_axis(sweep, name, sweep.headed(title), lines, unit, marks)]
    return [
        _over_axis(
            sweep, f"{name}_{label}", sweep.headed(f"{title} {label}"),
            sweep.curves(on_axis, take(f"{stat}_{name}_ms"), f"{stat}_{name}_ms"), unit, marks,
        )
        for label, _, stat in _STATS
    ]  # fmt: skip


def _interactivity(sweep: Sweep, knees: dict[str, Knee | None]) -> Plot:
    def speed(value: float, summary: dict, gpus: int) -> float | None:
        tpot = summary.get("median_tpot_ms")
        return 1e3 / tpot if tpot else None

    def per_gpu(value: float, summary: dict, gpus: int) -> float | None:
        rate = summary.get("output_throughput")
        return rate / gpus if rate is not None else None

    lines = sweep.curves(speed, per_gpu)
    front = pareto([(s.x, s.y) for curve in lines for s in curve.spots]) if len(lines) > 1 else []
    return Plot(
        "interactivity", "Throughput per GPU against interactivity", lines, "tokens/s for one user (1 / median TPOT)",
        "output tokens/s/GPU", marks=Marks(knees=_rings(sweep, knees, speed, per_gpu), front=front),
        note=FRONT if front else "", apart=sweep.ticks is not None,
    )  # fmt: skip


def _goodput(sweep: Sweep) -> list[Plot]:
    """Requests a second that met the SLO, beside all of them where there is room, and their share."""
    good = sweep.curves(on_axis, take("request_goodput"), "request_goodput")
    if not any(curve.spots for curve in good):
        return []
    if len(sweep.series) == 1:
        only = next(iter(sweep.series))
        done = sweep.curve(only, 7, on_axis, take("request_throughput"), "dotted", "all that finished")
        good = [Curve("met the SLO", good[0].spots, 0), done]
    met = sweep.curves(on_axis, take("slo_attainment", 100))
    return [
        _over_axis(sweep, "goodput", sweep.headed("Goodput under the SLO"), good, "requests/s"),
        _over_axis(sweep, "slo", sweep.headed("Requests that met the SLO"), met, "%"),
    ]


def _context(sweep: Sweep) -> list[Plot]:
    """How many requests run at once, and how many fit, against their length; where lengths differ."""
    lengths = [
        length for found in sweep.series.values() for _, point in found if (length := _length(0, point["summary"], 1))
    ]
    if len(lengths) < 2 or max(lengths) < _VARIES * min(lengths):
        return []

    def room(value: float, summary: dict, gpus: int) -> float | None:
        pool, length = summary.get("kv_pool_tokens"), _length(value, summary, gpus)
        return pool / length if pool and length else None

    lines = []
    for i, name in enumerate(list(sweep.series)[:MOST_BANDS]):
        told = "" if len(sweep.series) == 1 else f", {name}"
        lines.append(sweep.curve(name, i, _length, take("mean_batch"), title=f"decoding at once, mean{told}"))
        lines.append(sweep.curve(name, i, _length, room, "dashed", f"room in the KV pool{told}"))
    for k, curve in enumerate(lines):
        lines[k] = Curve(curve.name, sorted(curve.spots, key=lambda s: s.x), curve.shade, curve.dash)
    spots = [(s.x, s.y) for curve in lines for s in curve.spots]
    return [
        Plot(
            "context", "Concurrency against context length", lines, "tokens a request (prompt and answer, mean)",
            "requests", log_x=max(lengths) >= 8 * min(lengths), log_y=_wide(spots),
        )
    ]  # fmt: skip


def _length(value: float, summary: dict, gpus: int) -> float | None:
    done = summary.get("completed")
    tokens = (summary.get("total_input_tokens") or 0) + (summary.get("total_output_tokens") or 0)
    return tokens / done if done and tokens else None


def _memory(sweep: Sweep) -> list[Plot]:
    """How full the KV pool is, and what of it is of no use to anybody."""

    def waste(value: float, summary: dict, gpus: int) -> float | None:
        parts = [summary.get(f"kv_{kind}_mean") for kind in ("reserved", "internal", "external")]
        return None if None in parts else 100 * sum(parts)

    if len(sweep.series) == 1:
        only = next(iter(sweep.series))
        named = (("in use", 0, take("kv_used_mean", 100)), ("cached prefixes", 2, take("kv_cached_mean", 100)),
                 ("reserved or wasted", 1, waste), ("in use, peak", 7, take("kv_used_peak", 100)))  # fmt: skip
        lines = [sweep.curve(only, shade, on_axis, y, title=title) for title, shade, y in named]
        return [_over_axis(sweep, "kv", sweep.headed("KV cache"), lines, "% of the pool")]
    return [
        _over_axis(
            sweep,
            "kv",
            sweep.headed("KV cache in use"),
            sweep.curves(on_axis, take("kv_used_mean", 100)),
            "% of the pool",
        ),
        _over_axis(
            sweep, "waste", sweep.headed("KV cache reserved or wasted"), sweep.curves(on_axis, waste), "% of the pool"
        ),
    ]


def _hits(sweep: Sweep) -> list[Plot]:
    lines = sweep.curves(on_axis, take("prefix_hit_rate", 100))
    if not any(s.y > 0 for curve in lines for s in curve.spots):
        return []
    return [_over_axis(sweep, "hits", sweep.headed("Prompt tokens from the prefix cache"), lines, "% of prompt tokens")]


def _wide(spots: Sequence[tuple[float, float]]) -> bool:
    """Whether y spans so much that only a logarithmic axis shows its low end."""
    values = [y for _, y in spots]
    return bool(values) and min(values) > 0 and max(values) / min(values) > 20
