"""The figures of a run for papers: SVG, PDF or PNG, drawn by matplotlib from what the page is drawn from.

matplotlib takes most of a second to import and is loaded when a figure is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from reports.gantt import DECODE, FIRST, MOST_REQUESTS, PREFILL, QUEUE, bars, phases_of
from reports.html.scales import log_ticks, tick_label
from reports.html.sweep_export import KINDS, PALETTE
from reports.html.timeline_figures import Thinned, hit_rates
from reports.kv_use import KINDS as KV_KINDS
from reports.metrics import distributions
from reports.percentiles import Distribution
from reports.run_data import RunData
from reports.wording import clean

__all__ = ["KINDS", "export_run_figures"]

_SETTINGS = {
    "svg.hashsalt": "twinserve", "svg.fonttype": "none", "pdf.fonttype": 42, "font.size": 9, "text.usetex": False,
    "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False,
}  # fmt: skip
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "Twinserve"},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": "Twinserve"},
    "png": {"Software": "Twinserve"},
}
_SIZE = (5.2, 3.2)
_POINTS = 800
_TITLES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E latency"))
_KV = {"used": 0, "cached": 5, "reserved": 4, "internal": 1, "external": 3}


def export_run_figures(data: RunData, folder: Path, kinds: Iterable[str]) -> list[Path]:
    """Write `<figure>.<kind>` of every figure that the run has.

    Args:
        kinds: of KINDS.

    Returns:
        The files. The same run gives the same bytes: no date or random id goes in.

    Raises:
        OSError: they cannot be written.
    """
    import matplotlib

    written = []
    with matplotlib.rc_context(_SETTINGS):
        for key, draw in _drawers(data).items():
            figure, axes = _empty()
            draw(axes)
            _plain_numbers(axes)
            axes.grid(color="#dddddd", linewidth=0.6)
            axes.set_axisbelow(True)
            for kind in kinds:
                path = folder / f"{key}.{kind}"
                figure.savefig(path, format=kind, dpi=200, metadata=_METADATA[kind])
                written.append(path)
    return written


def _drawers(data: RunData) -> dict[str, Any]:
    """What draws each figure onto axes; only those that have something to show."""
    found: dict[str, Any] = {}
    known = distributions(data)
    for key, title in _TITLES:
        if known[key].count and (key != "itl" or data.info.get("tokens_seen", True)):
            found[f"{key}_cdf"] = lambda axes, d=known[key], t=title: _cumulative(axes, d, t)
    if len(data.timeline.time):
        thin = Thinned(data)
        found |= {"throughput": lambda axes: _throughput(axes, thin), "queue": lambda axes: _queue(axes, thin)}
        if data.timeline.steps.any():
            found["batch"] = lambda axes: _batch(axes, thin)
        if data.info.get("kv_pool_tokens") and np.isfinite(data.timeline.kv_used).all():
            found["kv"] = lambda axes: _kv(axes, thin, float(data.info["kv_pool_tokens"]))
    if hit_rates(data) is not None:
        found["hits"] = lambda axes: _hits(axes, data)
    if 0 < len(data.requests) <= MOST_REQUESTS:
        found["gantt"] = lambda axes: _gantt(axes, data)
    return found


def _empty() -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(_SIZE, layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state
    return figure, figure.add_subplot()


def _plain_numbers(axes: Any) -> None:
    """Ticks as on the page: 1.5k for thousands."""
    from matplotlib.ticker import FuncFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value)))


def _logarithmic(axes: Any, low: float, high: float) -> None:
    """A logarithmic x with ticks at round values."""
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(log_ticks(low, high)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _cumulative(axes: Any, d: Distribution, title: str) -> None:
    """The share of values at or below each, with p50, p95 and p99 marked where the sample allows."""
    seconds = d.quantile(99) >= 10
    factor, unit = (1.0, "s") if seconds else (1e3, "ms")
    places = np.unique(np.linspace(0, d.count - 1, min(d.count, _POINTS)).astype(np.int64))
    values = d.at(places) * factor
    axes.step(values, (places + 1) / d.count * 100, where="post", color=PALETTE[0], linewidth=1.4)
    for p, style in ((50, "-"), (95, "--"), (99, ":")):
        value = d.percentile(p)
        if value is not None:
            axes.axvline(
                value * factor,
                color="#555555",
                linewidth=0.9,
                linestyle=style,
                label=f"p{p} {value * factor:.4g} {unit}",
            )
    if values[0] > 0 and values[-1] / max(d.quantile(50) * factor, 1e-12) > 8:
        _logarithmic(axes, float(values[0]), float(values[-1]))
    axes.set_ylim(0, 100)
    axes.set_xlabel(f"{title} ({unit})")
    axes.set_ylabel("% of gaps" if title == "ITL" else "% of requests")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="lower right")


def _throughput(axes: Any, t: Thinned) -> None:
    _over(
        axes,
        t,
        [("output", t.rate("output_tokens"), 0), ("prefill (computed)", t.rate("prefill_tokens"), 1)],
        "tokens/s",
    )


def _queue(axes: Any, t: Thinned) -> None:
    _over(axes, t, [("running", t.mean("running"), 0), ("waiting", t.mean("waiting"), 1)], "sequences")


def _over(axes: Any, t: Thinned, series: list[tuple[str, np.ndarray, int]], unit: str) -> None:
    for (name, values, shade), style in zip(series, ("-", "--", ":"), strict=False):
        if values.any():
            axes.plot(t.time, values, style, color=PALETTE[shade], linewidth=1.2, label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time in the run (s)")
    axes.set_ylabel(unit)
    axes.legend(frameon=False, fontsize=8)


def _batch(axes: Any, t: Thinned) -> None:
    steps = np.maximum(t.sums("steps"), 1)
    layers = [t.sums("decode_tokens") / steps, t.sums("prefill_tokens") / steps]
    _stack(axes, t, layers, ["decode", "prefill"], [0, 4], "tokens per step")


def _kv(axes: Any, t: Thinned, pool: float) -> None:
    kinds = [k for k in KV_KINDS if k != "free" and (k == "used" or np.nan_to_num(t.mean(f"kv_{k}")).any())]
    layers = [t.mean(f"kv_{k}") / pool * 100 for k in kinds]
    _stack(axes, t, layers, kinds, [_KV[k] for k in kinds], "% of the KV pool")
    axes.set_ylim(0, 100)


def _stack(axes: Any, t: Thinned, layers: list[np.ndarray], names: list[str], shades: list[int], unit: str) -> None:
    """Layers with hatches, so that they are told apart in grey too."""
    areas = axes.stackplot(t.time, *layers, labels=names, colors=[PALETTE[s] for s in shades], linewidth=0)
    for area, hatch in zip(areas, ("", "///", "...", "xxx", "|||"), strict=False):
        area.set_hatch(hatch)
        area.set_edgecolor("white")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time in the run (s)")
    axes.set_ylabel(unit)
    axes.legend(frameon=False, fontsize=8, loc="upper right")


def _hits(axes: Any, data: RunData) -> None:
    found = hit_rates(data)
    assert found is not None  # else it is not drawn
    times, rates, running = found
    axes.plot(times, rates, "o", color=PALETTE[5], markersize=2.5, label="of each stretch")
    axes.plot(times, running, color=PALETTE[0], linewidth=1.4, label="since the start")
    axes.set_ylim(0, 100)
    axes.set_xlabel("time in the run (s)")
    axes.set_ylabel("% of prompt tokens from cache")
    axes.legend(frameon=False, fontsize=8)


def _gantt(axes: Any, data: RunData) -> None:
    shades = {QUEUE: "#BBBBBB", PREFILL: PALETTE[4], FIRST: PALETTE[4], DECODE: PALETTE[0]}
    for phase in phases_of(data):
        parts = [b for b in bars(data) if b.phase == phase]
        axes.barh(
            [b.row + 1 for b in parts], [b.end - b.start for b in parts], left=[b.start for b in parts], height=0.8,
            color=shades[phase],
            label=clean(phase),
        )  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlabel("time in the run (s)")
    axes.set_ylabel("request, in order of sending")
    axes.legend(frameon=False, fontsize=8)
