"""Sweeps held against each other: the points that they have in common, and their curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from reports import strict_json
from reports.compare.bootstrap import LEVEL
from reports.compare.comparison import (
    HIGHER,
    LOWER,
    Ratio,
    _pairs,
    figure_of,
    intervals,
    on_prices,
    ranges_told,
    ratio_of,
    settings_apart,
)
from reports.compare.constants import Apart, apart
from reports.run_folder import RUN, read_head, read_run
from reports.subject import Subject
from reports.traffic import Traffic, differences
from reports.wording import clean, settings_told
from workloads.errors import InputError, Place

SWEEP = "sweep.json"
FIGURES = (
    ("output_throughput", "output throughput", "tokens/s", HIGHER), ("request_goodput", "goodput", "requests/s", HIGHER),
    ("median_ttft_ms", "median TTFT", "ms", LOWER), ("p95_ttft_ms", "p95 TTFT", "ms", LOWER),
    ("median_tpot_ms", "median TPOT", "ms", LOWER), ("p95_tpot_ms", "p95 TPOT", "ms", LOWER),
    ("p95_e2el_ms", "p95 E2E latency", "ms", LOWER),
)  # fmt: skip


def _plain(value: Any) -> Any:
    """1 and 1.0 are one value, and so is what the last digits of a logarithmic axis make of 4."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return float(f"{value:.12g}")


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a sweep: its values by key, its summary, and where its folder is there, that and its traffic."""

    values: dict[str, Any]
    summary: dict[str, Any]
    traffic: Traffic
    folder: Path | None

    @property
    def key(self) -> str:
        """What finds the same point in another sweep, however its numbers are written there."""
        return json.dumps({key: _plain(value) for key, value in self.values.items()}, sort_keys=True, default=str)

    def label(self) -> str:
        """The values in short."""
        return settings_told(self.values, 40)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that was read: name, folder, axes, finished points, and how many are missing or failed."""

    name: str
    source: str
    axes: dict[str, list]
    points: tuple[Point, ...]
    missing: int


@dataclass(frozen=True, slots=True)
class SweepComparison:
    """What a comparison of sweeps found.

    Attributes:
        sweeps: the first is the reference.
        rows: one a common point and figure: (point, key, words, unit, better, values, ratios).
        notes: sentences for the reader.   method: how intervals were made; "" where there are none.
    """

    sweeps: tuple[Sweep, ...]
    rows: tuple[tuple[Point, str, str, str, str, tuple[float | None, ...], tuple[Ratio, ...]], ...]
    notes: tuple[str, ...]
    method: str = ""

    def plain(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "level": LEVEL,
            "sweeps": [{"name": s.name, "source": s.source, "axes": s.axes, "points": len(s.points)} for s in self.sweeps],
            "figures": [
                {
                    "point": point.values, "key": key, "words": words, "unit": unit, "better": better,
                    "values": list(values), "ratios": [asdict(r) for r in ratios],
                }
                for point, key, words, unit, better, values, ratios in self.rows
            ],
            "notes": list(self.notes),
        }  # fmt: skip


def read_sweep(folder: Path) -> Sweep:
    """Read `sweep.json`.

    Raises:
        InputError: it is missing or broken, or no point of it is finished.
    """
    file = folder / SWEEP
    place = Place(file=str(file))
    try:
        raw = strict_json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"is not a readable sweep ({error})", place=place) from None
    points = raw.get("points") if isinstance(raw, dict) else None
    if not isinstance(points, list):
        raise InputError("has no list of points", place=Place(file=str(file), key="points"))
    found = [point for item in points if (point := _point(item, folder)) is not None]
    if not found:
        raise InputError("has no finished point", place=place, hint="let the sweep finish")
    axes = raw.get("axes") if isinstance(raw.get("axes"), dict) else {}
    return Sweep(clean(raw.get("name") or folder.name, 60), str(folder), axes, tuple(found), len(points) - len(found))


def compare_sweeps(sweeps: Sequence[Sweep], *, force: bool = False) -> SweepComparison:
    """Hold the points that sweeps have in common against those of the first.

    Raises:
        InputError: fewer than two sweeps, no point in common, or other traffic at the same point without `force`.
    """
    if len(sweeps) < 2:
        raise InputError("a comparison needs two sweeps or more")
    sweeps = tuple(_labelled(sweeps))
    tables = [{point.key: point for point in sweep.points} for sweep in sweeps]
    common = [key for key in tables[0] if all(key in table for table in tables)]
    if not common:
        first = "; ".join(f"{s.name}: {s.points[0].label()} …" for s in sweeps)
        raise InputError(
            f"the sweeps have no point in common ({first})", hint="sweep the same keys over the same values"
        )
    apart = {key: found for key in common if (found := _apart([table[key] for table in tables]))}
    if apart and not force:
        key, found = next(iter(apart.items()))
        raise InputError(
            f"the sweeps had different traffic at {len(apart)} of {len(common)} common points, first at "
            f"{tables[0][key].label()}: {'; '.join(found)}",
            hint="--force compares them all the same",
        )
    rows, told = [], _Prices()
    for key in common:
        points = [table[key] for table in tables]
        ends = _ends(points, [s.name for s in sweeps], told)
        for figure, words, unit, better in FIGURES:
            values = tuple(figure_of(p.summary, figure) for p in points)
            if sum(v is not None for v in values) < 2:
                continue
            ratios = tuple(ratio_of(values[0], v, e.get(figure), better) for v, e in zip(values[1:], ends, strict=True))
            rows.append((points[0], figure, words, unit, better, values, ratios))
    notes = []
    if apart:
        notes.append(f"different traffic at {len(apart)} of {len(common)} points, compared because it was asked for")
    only = max(len(table) for table in tables) - len(common)
    if only:
        notes.append(f"{len(common)} points in common; others are drawn in the curves only")
    notes += [f"{s.name}: {s.missing} points are missing or failed" for s in sweeps if s.missing]
    notes += dict.fromkeys(told.notes)
    method = ranges_told(told.paired, told.errors) if told.paired else ""
    return SweepComparison(tuple(sweeps), tuple(rows), tuple(notes), method)


def _apart(points: Sequence[Point]) -> list[str]:
    """In what the traffic of the same point differs between sweeps."""
    return [said for other in points[1:] for said in differences(points[0].traffic, other.traffic)]


def _point(item: Any, folder: Path) -> Point | None:
    if not isinstance(item, dict) or not isinstance(item.get("summary"), dict) or not item["summary"]:
        return None
    values = item.get("values") if isinstance(item.get("values"), dict) else {}
    name = item.get("folder")
    place = folder / name if isinstance(name, str) and name and (folder / name / RUN).is_file() else None
    return Point(values, item["summary"], _traffic(place, item["summary"]), place)


def _traffic(folder: Path | None, summary: dict[str, Any]) -> Traffic:
    """The traffic of a point: by its fingerprint where its run is there, else only how many requests there were."""
    if folder is None:
        return Traffic.read({"requests": summary.get("requests")})
    return Subject.of(read_head(folder)).traffic


@dataclass(slots=True)
class _Prices:
    """What is to be told of the intervals of all points: how they were paired, what they hold, and sentences."""

    paired: list[bool] = field(default_factory=list)
    errors: list[Apart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _ends(points: Sequence[Point], names: Sequence[str], told: _Prices) -> list[dict[str, tuple[float, float]]]:
    """Intervals of the ratios of each other point, where the run folders of both are there."""
    if points[0].folder is None:
        return [{} for _ in points[1:]]
    first = _subject(points[0], names[0])
    found: list[dict[str, tuple[float, float]]] = []
    for point, name in zip(points[1:], names[1:], strict=True):
        if point.folder is None:
            found.append({})
            continue
        other = _subject(point, name)
        settings = settings_apart((first, other))
        errors, paired = apart(first, other, settings, LEVEL), _pairs(first, other)
        found.append(intervals(first, other, paired, errors))
        told.paired.append(paired)
        told.errors.append(errors)
        told.notes += on_prices((first, other), (errors,), settings)
    return found


def _subject(point: Point, name: str) -> Subject:
    return Subject.of(read_run(point.folder), summary=point.summary).named(name)


def _labelled(sweeps: Sequence[Sweep]) -> list[Sweep]:
    """Names that tell the sweeps apart: their own, else that of the folder, else with a number."""
    names = [s.name for s in sweeps]
    found: list[Sweep] = []
    for number, sweep in enumerate(sweeps, 1):
        label = sweep.name
        if names.count(label) > 1:
            label = clean(sweep.source.rstrip("/").rpartition("/")[2], 60)
        if label in {s.name for s in found}:
            label = f"{label} ({number})"
        found.append(replace(sweep, name=label))
    return found
