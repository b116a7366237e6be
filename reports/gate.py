"""The gate: fail when a run is worse than its baseline by more than is tolerated.

A metric fails when its mean is worse than the baseline's mean by more than the tolerance *and*, where there is more than one
run on either side, the worsening is beyond what their own scatter explains (the bootstrap interval of the change leaves
"no change" out, see `reports.significance`). Simulated runs have no scatter, so one run a side is enough; for wall-clock runs
make the baseline from several. Where the baseline has digests, the run must also be equal to it, column by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from reports.baseline import EQUAL, HIGHER, Baseline, Expectation, measured, read_baseline, update_baseline
from reports.digest import changed, column_digests
from reports.run_data import RunData
from reports.run_folder import versions
from reports.significance import change_interval
from reports.subject import Subject
from reports.traffic import differences
from reports.wording import setting
from workloads.errors import InputError, Place

__all__ = ["Check", "Equality", "GateResult", "gate", "update_baseline"]

ALPHA = 0.02
_SIGN = {"higher": "-", "lower": "+", "equal": "+-"}


@dataclass(frozen=True, slots=True)
class Check:
    """One metric against its expectation.

    Attributes:
        before, after: means; `after` is None when the run cannot tell it (which fails).
        change: (after - before) / |before|; None when before is 0 or after unknown.
        low, high: interval of the change, in the same share; None where scatter is not known.
        tolerance: the worsening allowed, as a share.   better: "higher" | "lower" | "equal".
        passed, why: the verdict and a word on it.
    """

    metric: str
    before: float
    after: float | None
    change: float | None
    low: float | None
    high: float | None
    tolerance: float
    better: str
    passed: bool
    why: str


@dataclass(frozen=True, slots=True)
class Equality:
    """Whether a run is the baseline's to the last bit.

    Attributes:
        columns: how many were held against each other.   differ: those that differ, as "table.column".
        versions: versions that differ, with (before, after); they may be why.
    """

    columns: int
    differ: tuple[str, ...]
    versions: dict[str, tuple]

    @property
    def passed(self) -> bool:
        """Whether every column is equal."""
        return not self.differ

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        if self.passed:
            return f"Equal to the baseline in all {self.columns} columns."
        shown = ", ".join(self.differ[:4]) + (f" and {len(self.differ) - 4} more" if len(self.differ) > 4 else "")
        other = ", ".join(f"{name} {a} then, {b} now" for name, (a, b) in self.versions.items())
        return f"Not equal to the baseline: {shown} differ" + (f" ({other})." if other else ".")


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gate found.

    Attributes:
        checks: one a metric, in the baseline's order.
        changed_settings: keys whose value differs from the baseline's, with (before, after).
        runs, baseline_runs: how many runs stand on either side.
        equality: of columns, where the baseline asks for it.
        name: of the run.   baseline: the file.   reason: what the baseline says of itself.
        skipped: metrics of the baseline that were not looked at.
    """

    checks: tuple[Check, ...]
    changed_settings: dict[str, tuple]
    runs: int
    baseline_runs: int
    equality: Equality | None = None
    name: str = ""
    baseline: str = ""
    reason: str = ""
    skipped: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every metric passed, and the run is equal where it has to be."""
        return all(check.passed for check in self.checks) and (self.equality is None or self.equality.passed)

    @property
    def exit_code(self) -> int:
        """0 when passed, else 1."""
        return 0 if self.passed else 1

    def failed(self) -> list[str]:
        """What failed, by name."""
        names = [c.metric for c in self.checks if not c.passed]
        return names + (["equality"] if self.equality is not None and not self.equality.passed else [])

    def rows(self) -> list[tuple[str, str, str, str, str, str]]:
        """The table as text: metric, baseline, now, change, allowed, verdict."""
        return [
            (
                c.metric,
                _figure(c.before),
                "-" if c.after is None else _figure(c.after),
                _change(c),
                f"{_SIGN[c.better]}{c.tolerance:.2%}",
                ("ok" if c.passed else "FAIL") + (f": {c.why}" if c.why else ""),
            )
            for c in self.checks
        ]

    def text(self) -> str:
        """The table and the verdict in plain ASCII, for logs."""
        head = ("metric", "baseline", "now", "change", "allowed", "verdict")
        rows = [head, *self.rows()]
        width = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(w) if i in (0, 5) else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(row, width, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, "", *self.remarks()])

    def remarks(self) -> list[str]:
        """The verdict and what a reader should know beside it, a sentence each."""
        said = ["Gate passed." if self.passed else f"Gate failed: {', '.join(self.failed())}."]
        if self.equality is not None:
            said.append(self.equality.sentence)
        if any(c.low is not None and c.high is not None and c.low < c.high for c in self.checks):
            level = f"{1 - 2 * ALPHA:.0%}"
            said.append(f"Runs: {self.runs} against {self.baseline_runs}; ranges of changes hold with {level}.")
        if self.skipped:
            said.append(f"Not looked at: {', '.join(self.skipped)}.")
        if self.changed_settings:
            keys = [f"{key} ({setting(a, 40)} -> {setting(b, 40)})" for key, (a, b) in self.changed_settings.items()]
            more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
            said.append(f"Settings differ from the baseline's: {', '.join(keys[:8])}{more}.")
        return said

    def plain(self) -> dict[str, Any]:
        """JSON-ready."""
        from dataclasses import asdict

        return {"passed": self.passed, "failed": self.failed(), **asdict(self)}


def gate(
    run: RunData | dict | Subject | Sequence[RunData | dict | Subject], baseline: Path, *, alpha: float = ALPHA,
    skip: Sequence[str] = (), other_target: bool = False,
) -> GateResult:  # fmt: skip
    """Hold one run, or several repeats of it, against a baseline file.

    Args:
        run: a run, the contents of its `run.json`, what another tool measured, or several of these.
        alpha: chance of a false alarm per metric where scatter is known.
        skip: metrics that are not looked at although the baseline has them.
        other_target: runs may be of another model or GPU.

    Raises:
        InputError: the baseline is missing or malformed, the run was cut short, or it had other traffic, another model or GPU.
    """
    expected = read_baseline(baseline)
    runs = measured(run)
    check_traffic(runs[0], expected, baseline)
    if not other_target:
        for one in runs:
            check_target(one, expected, baseline)
    checks = tuple(_check(name, e, runs, alpha) for name, e in expected.metrics.items() if name not in skip)
    sides = max(len(e.values) for e in expected.metrics.values())
    return GateResult(
        checks, _changed_settings(expected, runs[0]), len(runs), sides, _equality(expected, runs, baseline),
        runs[0].name, str(baseline), expected.reason, tuple(name for name in expected.metrics if name in skip),
    )  # fmt: skip


def check_traffic(run: Subject, expected: Baseline, baseline: Path) -> None:
    """Refuse to hold a run against a baseline of other traffic.

    Raises:
        InputError: saying in what they differ.
    """
    found = differences(expected.traffic, run.traffic)
    if not found:
        return
    keys = [
        f"{key} {setting(a, 60)} -> {setting(b, 60)}" for key, (a, b) in _changed_settings(expected, run).items()
        if key.split(".")[0] in ("traffic", "load", "seed", "model")
    ]  # fmt: skip
    said = "; ".join(found) + (f"; settings: {', '.join(keys[:6])}" if keys else "")
    raise InputError(
        f"run {run.name!r} had other traffic than the baseline, so their figures cannot be compared "
        f"(baseline, then run: {said})",
        place=Place(file=str(baseline), key="traffic"),
        hint="run the baseline's workload, or update the baseline",
    )


def check_target(run: Subject, expected: Baseline, baseline: Path) -> None:
    """Refuse to hold a run against a baseline of another model or GPU, where both say which: it would tell nothing of a change.

    Raises:
        InputError: saying in what they differ.
    """
    other = [
        f"{what} {setting(before, 60)} -> {setting(after, 60)}"
        for what, key, same in (("model", "model", _same_model), ("GPU", "backend.gpu", _same_gpu))
        if isinstance(before := expected.config.get(key), str)
        and isinstance(after := run.config.get(key), str)
        and not same(before, after)
    ]
    if other:
        raise InputError(
            f"run {run.name!r} is of another target than the baseline (baseline, then run: {', '.join(other)})",
            place=Place(file=str(baseline), key="config"),
            hint="a baseline for each target; --other-target compares them all the same, and --update renews the baseline",
        )


def _same_model(one: str, other: str) -> bool:
    """Whether two names are of one shape: fine-tunes of a model cost the same."""
    from sim.models import find_model

    def shape(name: str) -> str:
        try:
            return find_model(name).name
        except InputError:
            return _last(name)

    return _last(one) == _last(other) or shape(one) == shape(other)


def _same_gpu(one: str, other: str) -> bool:
    from sim.hardware import load_gpu

    def card(name: str) -> str:
        try:
            return _last(name) if name.endswith(".toml") else load_gpu(name).name
        except InputError:
            return _last(name)

    return card(one) == card(other)


def _last(name: str) -> str:
    """The end of a path or id: checkouts lie in other folders on other machines."""
    return name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()


def _changed_settings(expected: Baseline, run: Subject) -> dict[str, tuple]:
    if not expected.config or not run.config:
        return {}
    before, now = expected.config, run.config
    keys = [*before, *(key for key in now if key not in before)]
    return {key: (before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)}


def _equality(expected: Baseline, runs: list[Subject], baseline: Path) -> Equality | None:
    if not expected.digests:
        return None
    place = Place(file=str(baseline), key="digests")
    differ: dict[str, None] = {}
    for run in runs:
        if run.data is None:
            raise InputError(
                f"asks for equality, but {run.name!r} is a summary without requests", place=place,
                hint="give a run folder, or update the baseline with --no-exact",
            )  # fmt: skip
        differ |= dict.fromkeys(changed(expected.digests, column_digests(run.data)))
    now = versions()
    other = {k: (v, now.get(k)) for k, v in expected.versions.items() if v != now.get(k)} if differ else {}
    return Equality(len(expected.digests), tuple(differ), other)


def _check(name: str, expected: Expectation, runs: list[Subject], alpha: float) -> Check:
    before = fmean(expected.values)
    values = [run.summary.get(name) for run in runs]
    better, tolerance = expected.better, expected.tolerance
    if not all(isinstance(value, int | float) for value in values):
        return Check(name, before, None, None, None, None, tolerance, better, False, "the run does not tell it")
    after = fmean(values)
    moved = after - before
    worse = abs(moved) if better == EQUAL else -moved if better == HIGHER else moved
    # rounding of the last bits must not fail a tolerance of zero
    beyond = worse > tolerance * abs(before) + 1e-12 * abs(before)
    ends = change_interval(expected.values, values, alpha)
    scatter = beyond and ends is not None and ends[0] <= 0 <= ends[1] and ends[0] < ends[1]
    change = moved / abs(before) if before else None
    low, high = (end / abs(before) for end in ends) if ends and before else (None, None)
    why = "within the scatter of the runs" if scatter else ""
    return Check(name, before, after, change, low, high, tolerance, better, not beyond or scatter, why)


def _change(check: Check) -> str:
    if check.change is None:
        return "-"
    text = f"{check.change:+.2%}" if abs(check.change) < 10 else f"x {1 + check.change:,.0f}"
    if check.low is None or check.high is None or max(abs(check.low), abs(check.high)) > 10:
        return text
    return f"{text} ({check.low:+.1%} .. {check.high:+.1%})" if check.low < check.high else text


def _figure(value: float) -> str:
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) >= 10 else f"{value:.4g}"
