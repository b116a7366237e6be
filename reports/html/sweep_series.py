"""The points of a sweep, sorted into series along one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reports.html.curves import Curve, Spot
from reports.knee import LOAD_KEYS, Knee, find_knee
from reports.saturation import OVERLOADED
from reports.uncertainty import interval_of
from reports.wording import clean, naming, number, short_keys

MOST_SERIES, MOST_BANDS = 16, 4
TABLE = (
    ("output tok/s", "output_throughput"), ("req/s", "request_throughput"), ("TTFT p50", "median_ttft_ms"),
    ("TTFT p95", "p95_ttft_ms"), ("TTFT p99", "p99_ttft_ms"), ("TPOT p50", "median_tpot_ms"),
    ("E2E p50", "median_e2el_ms"),
)  # fmt: skip
Take = Callable[[float, dict, int], float | None]
"""A coordinate of a point, from its value on the axis, its summary and its number of GPUs."""


class Sweep:
    """The points of a sweep sorted into series.

    Attributes:
        axis: the key on x.   loaded: whether it drives the load.
        ticks: (place, text) where x is not a number, else None.
        word: the key on x in short.
        named: what a value on x is called.
        series: name to points, each (x, point), by ascending x; failed points are left out.
    """

    def __init__(self, points: Sequence[dict], axes: Sequence[str], gpus: int = 1) -> None:
        self.points, self.gpus = list(points), gpus
        numeric = [a for a in axes if all(is_number(p["settings"].get(a)) for p in points)]
        driving = [key for key in LOAD_KEYS if key in numeric] or [a for a in numeric if a.startswith("load.")]
        self.axis = (driving or numeric or list(axes) or [""])[0]
        self.loaded = self.axis in driving
        self.word = clean(short_keys(axes).get(self.axis, ""), 40)
        others = [a for a in axes if a != self.axis]
        words = short_keys(others)
        told = [(a, words[a], naming([point["settings"].get(a) for point in points], 40)) for a in others]
        self.ticks = None
        values = [point["settings"].get(self.axis) for point in points]
        self.named = naming(values, 40)
        short = naming(values, 24)
        places: dict[str, int] = {}
        if self.axis not in numeric:
            for value in values:
                places.setdefault(short(value), len(places))
            self.ticks = [(float(place), text) for text, place in places.items()]
        self.series: dict[str, list[tuple[float, dict]]] = {}
        for point in points:
            if point.get("summary") is None:
                continue
            value = point["settings"].get(self.axis)
            x = float(value) if self.ticks is None else float(places[short(value)])
            title = ", ".join(f"{word} {say(point['settings'].get(key))}" for key, word, say in told)
            self.series.setdefault(title or "all", []).append((x, point))
        for found in self.series.values():
            found.sort(key=lambda pair: pair[0])
        at = [x for found in self.series.values() for x, _ in found]
        self.log_x = self.ticks is None and bool(at) and min(at) > 0 and max(at) / min(at) >= 16

    def label(self) -> str:
        """The swept key as an axis title."""
        return clean(self.axis, 60)

    def headed(self, what: str) -> str:
        """Title of a figure of `what` over the axis."""
        return f"{what} against load" if self.loaded else f"{what} by {self.word}"

    def curve(self, name: str, shade: int, x: Take, y: Take, dash: str = "", title: str = "", key: str = "") -> Curve:
        """A curve of a series.

        Args:
            x, y: coordinates; a point of which one is None is left out.
            key: the figure that y is, if its range is to be drawn.
        """
        spots = []
        for value, point in self.series[name]:
            summary = point["summary"]
            arguments = (value, summary, point.get("gpus", self.gpus))
            a, b = x(*arguments), y(*arguments)
            if a is not None and b is not None:
                ends = interval_of(summary, key)
                hollow = (summary.get("saturation") or {}).get("label") == OVERLOADED
                spots.append(Spot(a, b, self.title(name, point), _shown(summary), ends and tuple(ends), hollow))
        return Curve(title or name, spots, shade, dash)

    def title(self, name: str, point: dict) -> str:
        """What a point is called."""
        if name == "all" and self.ticks is not None:
            return self.named(point["settings"].get(self.axis))
        value = f"{self.word} {self.named(point['settings'].get(self.axis))}"
        return value if name == "all" else f"{value}, {name}"

    def curves(self, x: Take, y: Take, key: str = "") -> list[Curve]:
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
            overloaded=[(s.get("saturation") or {}).get("label") == OVERLOADED for s in summaries],
        )


def on_axis(value: float, summary: dict, gpus: int) -> float:
    """The value on the axis itself."""
    return value


def take(key: str, scale: float = 1.0) -> Take:
    """A figure of the summary, times `scale`."""

    def found(value: float, summary: dict, gpus: int) -> float | None:
        figure = summary.get(key)
        return None if figure is None else figure * scale

    return found


def is_number(value: object) -> bool:
    """A number that is not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(summary: dict) -> tuple[tuple[str, str], ...]:
    rows = [(f"{title}, ms" if key.endswith("_ms") else title, number(summary.get(key))) for title, key in TABLE]
    label = (summary.get("saturation") or {}).get("label")
    return (*rows, ("load", label)) if label else tuple(rows)
