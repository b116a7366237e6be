"""The gate: fail when a run is worse than its baseline by more than is tolerated.

A metric fails when its mean is worse than the baseline's mean by more than the tolerance *and*, where there is more
than one run on either side, the worsening is beyond what their own scatter explains (Student's t, one-sided, `alpha`).
Simulated runs have no scatter, so one run a side is enough; for wall-clock runs make the baseline from several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from reports.baseline import HIGHER, Expectation, Measured, measured, read_baseline, update_baseline
from reports.run_data import RunData
from reports.significance import p_value_of_increase
from workloads.errors import InputError, Place

__all__ = ["Check", "GateResult", "gate", "update_baseline"]

ALPHA = 0.02


@dataclass(frozen=True, slots=True)
class Check:
    """One metric against its expectation.

    Attributes:
        before, after: means; `after` is None when the run cannot tell it (which fails).
        change: (after - before) / |before|; None when before is 0 or after unknown.
        tolerance: the worsening allowed, as a share.   better: "higher" | "lower".
        p: chance that scatter alone gives such a worsening; None when unknown.
        passed, why: the verdict and a word on it.
    """

    metric: str
    before: float
    after: float | None
    change: float | None
    tolerance: float
    better: str
    p: float | None
    passed: bool
    why: str


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gate found.

    Attributes:
        checks: one a metric, in the baseline's order.
        changed_settings: keys whose value differs from the baseline's, with (before, after).
        runs, baseline_runs: how many runs stand on either side.
    """

    checks: tuple[Check, ...]
    changed_settings: dict[str, tuple]
    runs: int
    baseline_runs: int

    @property
    def passed(self) -> bool:
        """Whether every metric passed."""
        return all(check.passed for check in self.checks)

    @property
    def exit_code(self) -> int:
        """0 when passed, else 1."""
        return 0 if self.passed else 1

    def rows(self) -> list[tuple[str, str, str, str, str, str]]:
        """The table as text: metric, baseline, now, change, allowed, verdict."""
        return [
            (
                c.metric,
                _figure(c.before),
                "-" if c.after is None else _figure(c.after),
                "-" if c.change is None else f"{c.change:+.2%}" if abs(c.change) < 10 else f"x {1 + c.change:,.0f}",
                f"{'-' if c.better == HIGHER else '+'}{c.tolerance:.2%}",
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
        failed = [c.metric for c in self.checks if not c.passed]
        said = ["Gate passed." if self.passed else f"Gate failed: {', '.join(failed)}."]
        if self.changed_settings:
            keys = ", ".join(list(self.changed_settings)[:8])
            more = len(self.changed_settings) - 8
            said.append(f"Settings differ from the baseline's: {keys}{f' and {more} more' if more > 0 else ''}.")
        return said


def gate(run: RunData | dict | Sequence[RunData | dict], baseline: Path, *, alpha: float = ALPHA) -> GateResult:
    """Hold one run, or several repeats of it, against a baseline file.

    Args:
        run: a run, the contents of its `run.json`, or several of either.
        alpha: chance of a false alarm per metric where scatter is known.

    Raises:
        InputError: the baseline is missing or malformed, the run was cut short, or it had other traffic.
    """
    expected = read_baseline(baseline)
    runs = measured(run)
    if runs[0].traffic != expected.traffic:
        raise InputError(
            f"run {runs[0].name!r} had other traffic ({runs[0].traffic}) than the baseline ({expected.traffic}), "
            "so their figures cannot be compared",
            place=Place(file=str(baseline), key="traffic"),
            hint="run the baseline's workload, or update the baseline",
        )
    checks = tuple(_check(name, e, runs, alpha) for name, e in expected.metrics.items())
    now = runs[0].config
    changed = {
        key: (expected.config.get(key), now.get(key))
        for key in sorted({*expected.config, *now})
        if expected.config.get(key) != now.get(key)
    }
    sides = max(len(e.values) for e in expected.metrics.values())
    return GateResult(checks, changed if expected.config else {}, len(runs), sides)


def _check(name: str, expected: Expectation, runs: list[Measured], alpha: float) -> Check:
    before = fmean(expected.values)
    after = [run.summary.get(name) for run in runs]
    if not all(isinstance(value, int | float) for value in after):
        why = "the run does not tell it"
        return Check(name, before, None, None, expected.tolerance, expected.better, None, False, why)
    mean = fmean(after)
    sign = -1.0 if expected.better == HIGHER else 1.0
    worse = sign * (mean - before)
    # rounding of the last bits must not fail a tolerance of zero
    beyond = worse > expected.tolerance * abs(before) + 1e-12 * abs(before)
    p = p_value_of_increase([sign * v for v in expected.values], [sign * v for v in after])
    scatter = beyond and p is not None and p > alpha
    why = "within the scatter of the runs" if scatter else ""
    change = (mean - before) / abs(before) if before else None
    return Check(name, before, mean, change, expected.tolerance, expected.better, p, not beyond or scatter, why)


def _figure(value: float) -> str:
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) >= 10 else f"{value:.4g}"
