"""Two or more runs of the same traffic, figure by figure, the first being what the others are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reports.compare.bootstrap import LEVEL, ratio_intervals
from reports.compare.constants import Apart, apart, joined
from reports.compare.points import point_names
from reports.subject import OURS, Subject
from reports.traffic import differences
from reports.wording import clean
from workloads.errors import InputError

HIGHER, LOWER, NEITHER = "higher", "lower", ""
BETTER, WORSE, SAME, UNKNOWN = "better", "worse", "same", ""
EQUAL = 1e-12
_LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E latency"))
_STATS = ("mean", "median", "p90", "p95", "p99")
_NEEDS = {"p90": 10, "p95": 20, "p99": 100, "median": 2, "mean": 2}

# (key, words, unit, which way is better), in the order of reading
FIGURES: tuple[tuple[str, str, str, str], ...] = (
    ("completed", "finished requests", "", HIGHER),
    ("failed", "failed requests", "", LOWER),
    ("duration", "duration", "s", LOWER),
    ("output_throughput", "output throughput", "tokens/s", HIGHER),
    ("total_token_throughput", "total throughput", "tokens/s", HIGHER),
    ("request_throughput", "request throughput", "requests/s", HIGHER),
    ("request_goodput", "goodput", "requests/s", HIGHER),
    ("slo_attainment", "SLO met", "share", HIGHER),
    *(
        (f"{stat}_{key}_ms", f"{stat} {title}", "ms", LOWER)
        for key, title in _LATENCIES
        for stat in _STATS
    ),
    ("mean_concurrency", "mean concurrency", "requests", NEITHER),
    ("prefix_hit_rate", "prefix hit rate", "share", HIGHER),
    ("preemptions", "preemptions", "", LOWER),
    ("recomputed_tokens", "recomputed tokens", "tokens", LOWER),
    ("kv_used_mean", "KV used, mean", "share", NEITHER),
    ("kv_wasted_mean", "KV reserved or wasted, mean", "share", LOWER),
    ("mean_batch", "mean batch", "sequences", NEITHER),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ratio:
    """What a figure became, against the first run.

    Attributes:
        ratio: its value over the first's; None where either is missing or the first is 0.
        low, high: 95 % interval of that, of chance and of the cost models' errors; None where there are no requests to resample.
        verdict: "better" | "worse" where the interval leaves 1 out, "same" where it does not, "" where it cannot be told.
    """

    ratio: float | None
    low: float | None
    high: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of every run: key and words, unit, which way is better, a value each, and what the others are of the first."""

    key: str
    words: str
    unit: str
    better: str
    values: tuple[float | None, ...]
    ratios: tuple[Ratio, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison found.

    Attributes:
        subjects: the runs; the first is the reference.
        rows: figures that at least two runs have.
        settings: keys that differ, with a value for each run (None: not set, or not known).
        traffic: for every other run, in what its traffic differs; all empty unless it was forced.
        paired: for every other run, whether requests were held against the same requests.
        errors: for every other run, what the cost models' errors do to its ratios.
        notes: sentences for the reader.
    """

    subjects: tuple[Subject, ...]
    rows: tuple[Row, ...]
    settings: dict[str, tuple[Any, ...]]
    traffic: tuple[tuple[str, ...], ...]
    paired: tuple[bool, ...]
    errors: tuple[Apart, ...]
    notes: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "level": LEVEL,
            "runs": [
                {
                    "name": s.name, "source": s.source, "tool": s.tool,
                    "traffic": s.traffic.plain() | {"fingerprint": s.traffic.fingerprint},
                }
                for s in self.subjects
            ],
            "figures": [asdict(row) for row in self.rows],
            "settings": {key: list(values) for key, values in self.settings.items()},
            "traffic_differences": [list(found) for found in self.traffic],
            "paired": list(self.paired),
            "cost_errors": [
                {"counted": e.known, "independent": list(e.apart), "common": list(e.common)} for e in self.errors
            ],
            "notes": list(self.notes),
        }  # fmt: skip


def compare(subjects: Sequence[Subject], *, force: bool = False) -> Comparison:
    """Hold runs against the first of them.

    Args:
        force: compare them although their traffic differs; what differs is then told in the notes.

    Raises:
        InputError: fewer than two runs, or other traffic without `force`.
    """
    subjects = tuple(_labelled(subjects))
    if len(subjects) < 2:
        raise InputError("a comparison needs two runs or more", hint="name another run folder or result file")
    first, others = subjects[0], subjects[1:]
    traffic = tuple(tuple(differences(first.traffic, s.traffic, (first.data, s.data))) for s in others)
    if any(traffic) and not force:
        raise InputError(
            "the runs had different traffic, so their figures cannot be compared: "
            + "; ".join(_said(first, s, found) for s, found in zip(others, traffic, strict=True) if found),
            hint="--force compares them all the same",
        )
    paired = tuple(_pairs(first, s) for s in others)
    errors = tuple(apart(first, s, settings_apart((first, s)), LEVEL) for s in others)
    ends = [intervals(first, s, p, e) for s, p, e in zip(others, paired, errors, strict=True)]
    rows = tuple(row for figure in FIGURES if (row := _row(figure, subjects, ends)) is not None)
    settings = settings_apart(subjects)
    notes = [*_notes(subjects, traffic), *on_prices(subjects, errors, settings)]
    return Comparison(subjects, rows, settings, traffic, paired, errors, tuple(dict.fromkeys(notes)))


def intervals(first: Subject, second: Subject, paired: bool, errors: Apart) -> dict[str, tuple[float, float]]:
    """Intervals of the ratios of two runs: of chance, widened by the errors of their cost models."""
    chance = ratio_intervals(first, second, paired=paired)
    ratios = {}
    for key in chance:
        before, after = (figure_of(s.summary, key) for s in (first, second))
        ratios[key] = after / before if before and after else 0.0
    return joined(chance, ratios, errors)


def settings_apart(subjects: Sequence[Subject]) -> dict[str, tuple[Any, ...]]:
    """Settings that differ, in the first run's order; among runs of ours also those that only some have.

    What another tool does not record is not a difference, so with its runs only common keys are looked at; nor is what nobody
    knows of the engine of a remote server.
    """
    ours = all(s.tool == OURS for s in subjects)
    remote = any(s.config.get("backend.name") == "http" for s in subjects)
    keys = dict.fromkeys(key for s in subjects for key in s.config)
    found = {}
    for key in keys:
        values = tuple(s.config.get(key) for s in subjects)
        may_lack = ours and not (remote and key.startswith("engine."))
        if any(v != values[0] for v in values) and (may_lack or all(key in s.config for s in subjects)):
            found[key] = values
    return found


def figure_of(summary: dict[str, Any], key: str) -> float | None:
    """A figure of a summary; the wasted share of the KV pool is a sum of three."""
    if key == "kv_wasted_mean":
        parts = [summary.get(f"kv_{kind}_mean") for kind in ("reserved", "internal", "external")]
        return None if any(p is None for p in parts) else float(sum(parts))
    value = summary.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def ratio_of(before: float | None, after: float | None, ends: tuple[float, float] | None, better: str) -> Ratio:
    """What became of a figure, and whether that is more than chance."""
    if before is None or after is None or (not before and after):
        return Ratio(None, None, None, UNKNOWN)
    ratio = after / before if before else 1.0
    low, high = ends or (None, None)
    if abs(ratio - 1) <= EQUAL and (ends is None or low <= 1 <= high):
        return Ratio(ratio, low, high, SAME)
    if low is None or high is None:
        return Ratio(ratio, None, None, UNKNOWN)
    if low <= 1 <= high:
        return Ratio(ratio, low, high, SAME)
    if not better:
        return Ratio(ratio, low, high, UNKNOWN)
    return Ratio(ratio, low, high, BETTER if (ratio > 1) == (better == HIGHER) else WORSE)


def _row(figure: tuple[str, str, str, str], subjects: Sequence[Subject], ends: list[dict]) -> Row | None:
    key, words, unit, better = figure
    values = tuple(figure_of(s.summary, key) for s in subjects)
    if sum(v is not None for v in values) < 2 or (
        key in ("failed", "preemptions", "recomputed_tokens") and not any(values)
    ):
        return None
    first, stat = values[0], key.split("_", 1)[0]
    ratios = []
    for subject, value, known in zip(subjects[1:], values[1:], ends, strict=True):
        enough = min(_finished(subjects[0]), _finished(subject)) >= _NEEDS.get(stat, 2)
        ratios.append(ratio_of(first, value, known.get(key) if enough else None, better))
    return Row(key, words, unit, better, values, tuple(ratios))


def _finished(subject: Subject) -> float:
    return subject.summary.get("completed") or 0


def _pairs(first: Subject, second: Subject) -> bool:
    """Whether requests can be held against the same requests: equal traffic by fingerprint."""
    known = first.traffic.fingerprint is not None and first.traffic.fingerprint == second.traffic.fingerprint
    return bool(
        known and first.data is not None and second.data is not None
        and len(first.data.requests) == len(second.data.requests)
    )  # fmt: skip


def _labelled(subjects: Sequence[Subject]) -> list[Subject]:
    """Names that tell the runs apart: where two are alike, what was swept between them, or where they are from; then a number."""
    names = [clean(s.name, 60) for s in subjects]
    alike = {name for name in names if names.count(name) > 1}
    if alike:
        points = point_names([s.source if n in alike else "" for n, s in zip(names, subjects, strict=True)])
        own = [p or s.source.rstrip("/").rpartition("/")[2] for p, s in zip(points, subjects, strict=True)]
        names = [clean(o or n, 60) if n in alike else n for n, o in zip(names, own, strict=True)]
    found: list[Subject] = []
    for name, subject in zip(names, subjects, strict=True):
        taken, label, number = {s.name for s in found}, name, 2
        while label in taken:
            label, number = f"{name} ({number})", number + 1
        found.append(subject.named(label))
    return found


def _said(first: Subject, second: Subject, found: Sequence[str]) -> str:
    return f"{first.name!r} and {second.name!r} differ in {'; '.join(found)}"


def _notes(subjects: Sequence[Subject], traffic: Sequence[Sequence[str]]) -> list[str]:
    first, others = subjects[0], subjects[1:]
    notes = [
        f"different traffic, compared because it was asked for: {_said(first, s, found)}"
        for s, found in zip(others, traffic, strict=True) if found
    ]  # fmt: skip
    for s, found in zip(others, traffic, strict=True):
        if not found and (first.traffic.fingerprint is None or s.traffic.fingerprint is None):
            known = set(first.traffic.plain()) & set(s.traffic.plain())
            told = ", ".join(sorted(k.replace("_", " ") for k in known)) or "nothing that both files tell"
            notes.append(f"{first.name!r} and {s.name!r} are taken for the same traffic by {told}")
    notes += [f"{s.name!r} was cut short: its figures are of what was done by then" for s in subjects if not s.complete]
    notes += [
        f"of {s.name!r} {s.summary['failed']:,} of {s.summary['requests']:,} requests failed: its figures are of the others"
        for s in subjects
        if s.summary.get("failed") and s.summary.get("requests")
    ]
    notes += [f"{s.name}: {note}" for s in subjects if s.tool != OURS for note in s.notes]
    if any(s.data is None for s in subjects):
        names = ", ".join(repr(s.name) for s in subjects if s.data is None)
        notes.append(f"no requests in the file of {names}: no intervals and no curves")
    return notes


def on_prices(subjects: Sequence[Subject], errors: Sequence[Apart], settings: dict[str, tuple]) -> list[str]:
    """What a reader should know of the constants that runs were priced by."""
    first, notes = subjects[0], []
    for s, found in zip(subjects[1:], errors, strict=True):
        pair = f"{first.name!r} and {s.name!r}"
        if found.apart:
            common = f", of {_listed(found.common)} common to both" if found.common else ""
            notes.append(
                f"{pair} are priced by different constants for {_listed(found.apart)}: in the ranges their errors are "
                f"independent{common}"
            )
        elif found.known and simulated(first) != simulated(s):
            one, other = (first, s) if simulated(first) else (s, first)
            notes.append(
                f"{one.name!r} is simulated: the errors of its cost model are in the ranges; {other.name!r} was measured"
            )
        elif not found.known and simulated(first) and simulated(s):
            notes.append(f"{pair} state no errors of their cost models: ranges hold chance alone")
    hosts = settings.get("engine.host")
    if hosts is not None and all(map(simulated, subjects)):
        told = ", ".join(str(host) for host in hosts)
        notes.append(
            f"engine.host differs ({told}): host time, CUDA graphs and kernels are those of different engines, so that "
            "differences are not of scheduling and memory alone; set it alike to compare these"
        )
    return notes


def ranges_told(paired: Sequence[bool], errors: Sequence[Apart]) -> str:
    """How intervals of pairs of runs were made, in a sentence.

    Args:
        paired: whether requests were held against the same ones.   errors: of their cost models.
    """
    pairs = "paired by request" if all(paired) else "each run drawn by itself"
    if any(paired) and not all(paired):
        pairs = "paired by request where the traffic is the same"
    told = f"Ranges: {LEVEL:.0%} intervals by a bootstrap over blocks of successive requests, {pairs}"
    if not any(each.known for each in errors):
        return f"{told}."
    some = "" if all(each.known for each in errors) else ", where they are known"
    return f"{told}, and of the cost models' errors{some}."


def simulated(subject: Subject) -> bool:
    """Whether a run is of the simulator."""
    return subject.tool == OURS and subject.data is not None and subject.data.info.get("backend", "sim") == "sim"


def _listed(kinds: Sequence[str]) -> str:
    return ", ".join(kind.replace("_", " ") for kind in kinds)
