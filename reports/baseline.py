"""Baselines: a small JSON file, kept in version control, of what a workload should reach.

    {"schema_version": 1, "reason": "...", "history": [{"reason": "...", "changes": {"mean_ttft_ms": [31.2, 28.9]}}],
     "traffic": "<fingerprint>", "asked": {"requests": 2000, ...}, "config": {...},
     "metrics": {"output_throughput": {"values": [5120.3], "better": "higher", "tolerance": 0.02}, ...},
     "digests": {"requests.finish": "..."}, "versions": {...}}

`values` has one figure for every run that the baseline was made from. Tolerances and directions (`higher`, `lower`, `equal`)
may be edited by hand and outlive an update; so does a metric that was removed or added. `digests` are there where runs are to
be equal to the last bit. `history` says why figures moved, the newest last; who moved them is the version control's to know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from reports import strict_json
from reports.digest import changed, column_digests
from reports.run_data import RunData
from reports.run_folder import versions
from reports.subject import Subject
from reports.traffic import Traffic, differences
from reports.wording import clean
from reports.write_file import replace_text
from workloads.errors import InputError, OutputError, Place, unknown_name

SCHEMA_VERSION = 1
HIGHER, LOWER, EQUAL = "higher", "lower", "equal"
DIRECTIONS = (HIGHER, LOWER, EQUAL)
HISTORY = 20
_KEYS = ("schema_version", "reason", "history", "traffic", "asked", "metrics", "config", "digests", "versions")
SPEED = "simulator_speed_ratio"
"""How fast a run is simulated, in units of what this machine does otherwise (`experiments.cli.gate_speed`)."""

# (direction, tolerated worsening as a share of the baseline's mean)
DEFAULTS: dict[str, tuple[str, float]] = {
    "output_throughput": (HIGHER, 0.02),
    "request_throughput": (HIGHER, 0.02),
    "request_goodput": (HIGHER, 0.02),
    "mean_ttft_ms": (LOWER, 0.03),
    "p99_ttft_ms": (LOWER, 0.05),
    "mean_tpot_ms": (LOWER, 0.02),
    "p99_itl_ms": (LOWER, 0.05),
    "mean_e2el_ms": (LOWER, 0.02),
    "p99_e2el_ms": (LOWER, 0.05),
    "completed": (HIGHER, 0.0),
    # wide: it is measured on whatever machine there is, and is to catch what makes the simulator several times slower
    SPEED: (HIGHER, 0.6),
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a metric was, which way is better (`higher` | `lower` | `equal`: neither), and the worsening tolerated as a share."""

    values: tuple[float, ...]
    better: str
    tolerance: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """A parsed baseline file.

    Attributes:
        traffic: what was asked.   metrics: what was reached, by key of the summary.   reason: why it is as it is.
        config: flat settings it was made with.   digests: of every column, where equality is wanted.
        versions: of what made it.   history: earlier reasons with what moved, the newest last.
    """

    traffic: Traffic
    metrics: dict[str, Expectation]
    reason: str = ""
    config: dict = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    versions: dict = field(default_factory=dict)
    history: tuple[dict, ...] = ()


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
    if not isinstance(raw, dict) or not _is_version(raw.get("schema_version")):
        found = raw.get("schema_version") if isinstance(raw, dict) else None
        raise InputError(f"must be {SCHEMA_VERSION}, is {found!r}", place=Place(file=file, key="schema_version"))
    _check_keys(raw, _KEYS, Place(file=file))
    if not isinstance(raw.get("traffic"), str):
        raise InputError("must be the fingerprint of the traffic", place=Place(file=file, key="traffic"))
    if not isinstance(raw.get("metrics"), dict) or not raw["metrics"]:
        raise InputError("must name at least one metric", place=Place(file=file, key="metrics"))
    for key in ("asked", "config", "digests", "versions"):
        if not isinstance(raw.get(key, {}), dict):
            raise InputError("must be an object", place=Place(file=file, key=key))
    if not isinstance(raw.get("reason", ""), str):
        raise InputError("must be text", place=Place(file=file, key="reason"))
    for key, value in raw.get("digests", {}).items():
        if not isinstance(value, str):
            raise InputError("must be text", place=Place(file=file, key=f"digests.{clean(key, 60)}"))
    _check_history(raw.get("history", []), file)
    _check_asked(raw.get("asked", {}), Place(file=file, key="asked"))
    metrics = {
        name: _expectation(item, Place(file=file, key=f"metrics.{name}")) for name, item in raw["metrics"].items()
    }
    return Baseline(
        Traffic.read(raw.get("asked"), raw["traffic"]), metrics, raw.get("reason", ""), raw.get("config", {}),
        raw.get("digests", {}), raw.get("versions", {}), tuple(raw.get("history", [])),
    )  # fmt: skip


def update_baseline(
    run: RunData | dict | Subject | Sequence[RunData | dict | Subject], path: Path, reason: str = "", *,
    exact: bool | None = None,
) -> Baseline:  # fmt: skip
    """Write what one or several runs of the same traffic reached as the new baseline.

    Metrics, directions and tolerances of an existing file are kept; metrics that cannot be told (None) are left out.

    Args:
        reason: why the figures moved; kept in the file with what moved.
        exact: keep digests of every column, so that runs must be equal from then on; None does as the file did.

    Raises:
        InputError: runs differ in traffic, were cut short, share no metric, or are not equal although `exact`.
        OutputError: the file cannot be written.
    """
    runs = measured(run)
    kept = read_baseline(path) if Path(path).exists() else None
    rules = {n: (e.better, e.tolerance) for n, e in kept.metrics.items()} if kept else DEFAULTS
    if kept and any(SPEED in run.summary for run in runs):
        rules = {**rules, **({} if SPEED in rules else {SPEED: DEFAULTS[SPEED]})}
    metrics = {}
    for name, (better, tolerance) in rules.items():
        values = [m.summary.get(name) for m in runs]
        if all(_number(v) for v in values):
            metrics[name] = Expectation(tuple(float(v) for v in values), better, tolerance)
    if not metrics:
        raise InputError("the run has none of the baseline's metrics", hint="nothing finished?")
    digests = _digests(runs) if (bool(kept and kept.digests) if exact is None else exact) else {}
    baseline = Baseline(
        runs[0].traffic, metrics, reason.strip(), runs[0].config, digests, versions(), _history(kept, metrics, reason)
    )
    try:
        _write(baseline, Path(path))
    except OSError as error:
        raise OutputError(f"cannot write the baseline {path}: {error.strerror or error}") from error
    return baseline


def measured(run: RunData | dict | Subject | Sequence[RunData | dict | Subject]) -> list[Subject]:
    """One or several runs, checked to be whole and of one traffic.

    Raises:
        InputError: there is none, one was cut short, or they differ in traffic.
    """
    runs = [Subject.of(one) for one in ([run] if isinstance(run, RunData | dict | Subject) else run)]
    if not runs:
        raise InputError("there is no run to look at")
    for one in runs:
        if not one.complete:
            raise InputError(f"run {one.name!r} was cut short, so its figures mean little", hint="let it finish")
        found = differences(runs[0].traffic, one.traffic, (runs[0].data, one.data))
        if found:
            raise InputError(f"runs {runs[0].name!r} and {one.name!r} had different traffic: {'; '.join(found)}")
    return runs


def _digests(runs: list[Subject]) -> dict[str, str]:
    if any(one.data is None for one in runs):
        raise InputError("equality needs run folders: a summary has no columns to be equal", hint="leave --exact out")
    found = [column_digests(one.data) for one in runs]
    for other in found[1:]:
        if columns := changed(found[0], other):
            raise InputError(
                f"the runs are not equal ({', '.join(columns[:3])} …), so that equality cannot be asked of others",
                hint="--exact is for simulated runs",
            )
    return found[0]


def _history(kept: Baseline | None, metrics: dict[str, Expectation], reason: str) -> tuple[dict, ...]:
    """The old history with this update, which says what moved by more than rounding; the last few only."""
    if kept is None:
        return ()
    moved = {}
    for name, new in metrics.items():
        old = kept.metrics.get(name)
        if old is None or name == SPEED:
            continue
        before, after = (sum(e.values) / len(e.values) for e in (old, new))
        if abs(after - before) > 1e-9 * abs(before):
            moved[name] = [before, after]
    return (*kept.history, {"reason": reason.strip(), "changes": moved})[-HISTORY:]


def _expectation(item: object, place: Place) -> Expectation:
    if not isinstance(item, dict):
        raise InputError("must be an object with values, better and tolerance", place=place)
    _check_keys(item, ("values", "better", "tolerance"), place)
    values = item.get("values")
    if not isinstance(values, list) or not values or not all(_number(v) for v in values):
        raise InputError("must be a list of numbers", place=Place(place.file, key=f"{place.key}.values"))
    if not isinstance(item.get("better"), str) or item["better"] not in DIRECTIONS:
        raise InputError(
            f"must be 'higher', 'lower' or 'equal', is {item.get('better')!r}",
            place=Place(place.file, key=f"{place.key}.better"),
        )
    tolerance = item.get("tolerance")
    if not _number(tolerance) or tolerance < 0:
        raise InputError(
            f"must be a share such as 0.02, is {tolerance!r}",
            place=Place(place.file, key=f"{place.key}.tolerance"),
        )
    return Expectation(tuple(float(v) for v in values), item["better"], float(tolerance))


def _is_version(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == SCHEMA_VERSION


def _check_keys(item: dict, known: Sequence[str], place: Place) -> None:
    """A misspelt key would otherwise be an expectation that nobody checks."""
    for key in item:
        if key not in known:
            where = f"{place.key}.{clean(key, 60)}" if place.key else clean(key, 60)
            raise unknown_name("key", clean(key, 60), known, place=Place(place.file, key=where))


def _check_asked(asked: dict, place: Place) -> None:
    _check_keys(asked, [f.name for f in fields(Traffic) if f.name != "fingerprint"], place)
    for name, value in asked.items():
        right = isinstance(value, str) if name == "mode" else _number(value)
        if value is not None and not right:
            kind = "text" if name == "mode" else "a number"
            raise InputError(f"must be {kind}, is {value!r}"[:120], place=Place(place.file, key=f"{place.key}.{name}"))


def _check_history(history: object, file: str) -> None:
    if not isinstance(history, list):
        raise InputError("must be a list", place=Place(file=file, key="history"))
    for number, item in enumerate(history):
        place = Place(file=file, key=f"history[{number}]")
        if not isinstance(item, dict):
            raise InputError("must be an object with reason and changes", place=place)
        _check_keys(item, ("reason", "changes"), place)
        if not isinstance(item.get("reason", ""), str) or not isinstance(item.get("changes", {}), dict):
            raise InputError("must have a reason in words and changes as an object", place=place)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _write(baseline: Baseline, path: Path) -> None:
    content = {
        "schema_version": SCHEMA_VERSION,
        "reason": baseline.reason,
        **({"history": list(baseline.history)} if baseline.history else {}),
        "traffic": baseline.traffic.fingerprint or "",
        "asked": baseline.traffic.plain(),
        "metrics": {
            name: {"values": list(e.values), "better": e.better, "tolerance": e.tolerance}
            for name, e in baseline.metrics.items()
        },
        "config": baseline.config,
        **({"digests": baseline.digests} if baseline.digests else {}),
        "versions": baseline.versions,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, strict_json.dumps(content) + "\n")
