"""Baselines: a small JSON file, kept in version control, of what a workload should reach.

    {"schema_version": 1, "traffic": "<fingerprint>", "reason": "...", "config": {...},
     "metrics": {"output_throughput": {"values": [5120.3], "better": "higher", "tolerance": 0.02}, ...}}

`values` has one figure for every run that the baseline was made from. Tolerances and directions may be edited by hand
and outlive an update; so does a metric that was removed or added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reports import strict_json
from reports.fingerprint import settings, traffic_fingerprint
from reports.run_data import RunData
from workloads.errors import InputError, OutputError, Place

SCHEMA_VERSION = 1
HIGHER, LOWER = "higher", "lower"

# (direction, tolerated worsening as a share of the baseline's mean)
DEFAULTS: dict[str, tuple[str, float]] = {
    "output_throughput": (HIGHER, 0.02),
    "request_throughput": (HIGHER, 0.02),
    "request_goodput": (HIGHER, 0.02),
    "mean_ttft_ms": (LOWER, 0.05),
    "p99_ttft_ms": (LOWER, 0.05),
    "mean_tpot_ms": (LOWER, 0.03),
    "p99_itl_ms": (LOWER, 0.05),
    "p99_e2el_ms": (LOWER, 0.05),
    "completed": (HIGHER, 0.0),
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a metric was, which way is better (`higher` | `lower`), and the worsening tolerated as a share."""

    values: tuple[float, ...]
    better: str
    tolerance: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """A parsed baseline file. `config`: flat settings it was made with."""

    traffic: str
    metrics: dict[str, Expectation]
    reason: str = ""
    config: dict = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the gate needs of a run: its figures, its traffic, its settings, and whether it ran to the end."""

    name: str
    summary: dict
    traffic: str
    config: dict
    complete: bool

    @classmethod
    def of(cls, run: RunData | dict) -> Measured:
        """From a run, or from the contents of its `run.json`.

        Raises:
            InputError: the dict lacks a key.
        """
        if isinstance(run, RunData):
            from reports.metrics import summarize

            summary = summarize(run, with_intervals=False)
            info, traffic, config = run.info, traffic_fingerprint(run), settings(run.config)
        else:
            for key in ("summary", "fingerprint", "info", "config"):
                if key not in run:
                    raise InputError("the run lacks this key", place=Place(file="run.json", key=key))
            info, summary, traffic, config = (
                run["info"],
                run["summary"],
                run["fingerprint"],
                settings(run["config"]),
            )
        return cls(str(info.get("name", "run")), summary, traffic, config, bool(info.get("complete", True)))


def read_baseline(path: Path) -> Baseline:
    """Parse a baseline.

    Raises:
        InputError: naming the file and the key that is missing or wrong.
    """
    file = str(path)
    try:
        raw = strict_json.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(
            "there is no such baseline",
            place=Place(file=file),
            hint="make one from a run with `bench gate --update`",
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"is not a readable baseline ({error})", place=Place(file=file)) from error
    if not isinstance(raw, dict) or raw.get("schema_version") != SCHEMA_VERSION:
        found = raw.get("schema_version") if isinstance(raw, dict) else None
        raise InputError(f"must be {SCHEMA_VERSION}, is {found!r}", place=Place(file=file, key="schema_version"))
    if not isinstance(raw.get("traffic"), str):
        raise InputError("must be the fingerprint of the traffic", place=Place(file=file, key="traffic"))
    if not isinstance(raw.get("metrics"), dict) or not raw["metrics"]:
        raise InputError("must name at least one metric", place=Place(file=file, key="metrics"))
    metrics = {
        name: _expectation(item, Place(file=file, key=f"metrics.{name}")) for name, item in raw["metrics"].items()
    }
    config = raw.get("config")
    return Baseline(raw["traffic"], metrics, str(raw.get("reason", "")), config if isinstance(config, dict) else {})


def update_baseline(run: RunData | dict | Sequence[RunData | dict], path: Path, reason: str) -> Baseline:
    """Write what one or several runs of the same traffic reached as the new baseline.

    Metrics, directions and tolerances of an existing file are kept; metrics that cannot be told (None) are left out.

    Raises:
        InputError: no reason is given, runs differ in traffic, were cut short, or share no metric.
        OutputError: the file cannot be written.
    """
    if not reason.strip():
        raise InputError("a baseline needs a reason", hint="say why the numbers moved")
    runs = measured(run)
    kept = read_baseline(path) if Path(path).exists() else None
    rules = {n: (e.better, e.tolerance) for n, e in kept.metrics.items()} if kept else DEFAULTS
    metrics = {}
    for name, (better, tolerance) in rules.items():
        values = [m.summary.get(name) for m in runs]
        if all(isinstance(v, int | float) and math.isfinite(v) for v in values):
            metrics[name] = Expectation(tuple(float(v) for v in values), better, tolerance)
    if not metrics:
        raise InputError("the run has none of the baseline's metrics", hint="nothing finished?")
    baseline = Baseline(runs[0].traffic, metrics, reason.strip(), runs[0].config)
    try:
        _write(baseline, Path(path))
    except OSError as error:
        raise OutputError(f"cannot write the baseline {path}: {error.strerror or error}") from error
    return baseline


def measured(run: RunData | dict | Sequence[RunData | dict]) -> list[Measured]:
    """One or several runs, checked to be whole and of one traffic.

    Raises:
        InputError: there is none, one was cut short, or they differ in traffic.
    """
    runs = [Measured.of(one) for one in ([run] if isinstance(run, RunData | dict) else run)]
    if not runs:
        raise InputError("there is no run to look at")
    for one in runs:
        if not one.complete:
            raise InputError(f"run {one.name!r} was cut short, so its figures mean little", hint="let it finish")
        if one.traffic != runs[0].traffic:
            raise InputError(f"runs {runs[0].name!r} and {one.name!r} had different traffic")
    return runs


def _expectation(item: object, place: Place) -> Expectation:
    if not isinstance(item, dict):
        raise InputError("must be an object with values, better and tolerance", place=place)
    values = item.get("values")
    if not isinstance(values, list) or not values or not all(_number(v) for v in values):
        raise InputError("must be a list of numbers", place=Place(place.file, key=f"{place.key}.values"))
    if item.get("better") not in (HIGHER, LOWER):
        raise InputError(
            f"must be 'higher' or 'lower', is {item.get('better')!r}",
            place=Place(place.file, key=f"{place.key}.better"),
        )
    tolerance = item.get("tolerance")
    if not _number(tolerance) or tolerance < 0:
        raise InputError(
            f"must be a share such as 0.02, is {tolerance!r}",
            place=Place(place.file, key=f"{place.key}.tolerance"),
        )
    return Expectation(tuple(float(v) for v in values), item["better"], float(tolerance))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _write(baseline: Baseline, path: Path) -> None:
    content = {
        "schema_version": SCHEMA_VERSION,
        "reason": baseline.reason,
        "traffic": baseline.traffic,
        "metrics": {
            name: {"values": list(e.values), "better": e.better, "tolerance": e.tolerance}
            for name, e in baseline.metrics.items()
        },
        "config": baseline.config,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_text(strict_json.dumps(content) + "\n", "utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
