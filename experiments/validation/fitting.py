"""`--fit-deployment`: one figure a deployment, fitted on half of its points.

What a deployment's host does between steps, and how fast its clocks and kernels run, differs by machine, driver and version
and is in no data sheet. The figure is either milliseconds added to every engine step or a factor on its time, whichever
leaves the smaller median error in TPOT on the fitted half; both are tried. The points of a deployment are split by a digest
of their key, so the split is the same every time and owes nothing to the values. Each is the median of what is missing over
the fitted half, which a second simulation corrects once; the other half then tells what it is worth. Deployments with fewer
than four points in TPOT or ITL are left as they are.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from experiments.validation.cells import Cell, points_of, settle
from experiments.validation.points import Point
from experiments.validation.pool import Progress, Store, run_points

FEWEST = 4
_ROUNDS = 2
NEUTRAL = {"host_ms": 0.0, "pace": 1.0}
KINDS = tuple(NEUTRAL)
"""Milliseconds a step, and a factor on a step's time."""


def in_training(point: Point) -> bool:
    """Whether a point belongs to the half that is fitted; independent of what was measured."""
    plain = repr((sorted(point.workload["load"].items()), point.workload["traffic"]))
    return hashlib.sha256(plain.encode()).digest()[0] % 2 == 0


def fit_deployments(
    cells: Iterable[Cell], store: Store, jobs: int, progress: Progress | None
) -> tuple[dict[tuple, tuple[str, float]], bool]:
    """Fit every deployment that has enough points, and settle its cells anew.

    Cells learn which half they are in (`Cell.role`).

    Returns:
        Deployment → kind and figure, and whether everything ran to its end.
    """
    groups: dict[tuple, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.point is not None and cell.predicted is not None and cell.excluded is None:
            groups[cell.group].append(cell)
    chosen = {group: members for group, members in groups.items() if _fittable(members)}
    found: dict[str, tuple[dict[tuple, float], dict[tuple, float]]] = {}
    for kind in KINDS:
        fitted = dict.fromkeys(chosen, NEUTRAL[kind])
        _settle_all(chosen, kind, fitted, store)
        for _ in range(_ROUNDS):
            fitted = {group: _corrected(kind, fitted[group], members) for group, members in chosen.items()}
            if not _settle_all(chosen, kind, fitted, store, jobs, progress):
                return {}, False
        found[kind] = fitted, {group: _error(members) for group, members in chosen.items()}
    best = {group: min(KINDS, key=lambda kind, group=group: found[kind][1][group]) for group in chosen}
    for kind in KINDS:
        part = {group: members for group, members in chosen.items() if best[group] == kind}
        _settle_all(part, kind, found[kind][0], store)
    for group in chosen.values():
        for cell in group:
            cell.role = "fitted" if in_training(cell.point) else "held out"
    return {group: (kind, found[kind][0][group]) for group, kind in best.items()}, True


def _settle_all(
    groups: dict[tuple, list[Cell]], kind: str, fitted: dict[tuple, float], store: Store, jobs: int = 0,
    progress: Progress | None = None,
) -> bool:  # fmt: skip
    """Set the figure of each deployment and settle its cells; with `jobs`, simulate what is not known."""
    for group, members in groups.items():
        for cell in members:
            cell.point = replace(cell.point, **{**NEUTRAL, kind: fitted[group]})
    members = [cell for group in groups.values() for cell in group]
    if jobs and not run_points(points_of(members), store, jobs, progress):
        return False
    for cell in members:
        settle(cell, store.results)
    return True


def _corrected(kind: str, now: float, members: list[Cell]) -> float:
    """The figure after what is missing in TPOT over the fitted half."""
    cells = _fitted(members)
    if kind == "host_ms":
        return round(max(now + float(np.median([c.row.value - c.predicted for c in cells])), -2.0), 3)
    return round(min(max(now * float(np.exp(np.median([-c.log_ratio for c in cells]))), 0.2), 5.0), 4)


def _error(members: list[Cell]) -> float:
    """Median error in TPOT of the fitted half."""
    return float(np.median([abs(c.log_ratio) for c in _fitted(members)]))


def _fitted(members: Iterable[Cell]) -> list[Cell]:
    return [c for c in _per_token(members) if in_training(c.point)]


def _per_token(members: Iterable[Cell]) -> list[Cell]:
    """Cells that tell the time of a step: mean or median TPOT and ITL, as far as they were predicted."""
    return [
        c for c in members
        if c.metric.quantity in ("tpot_ms", "itl_ms") and c.metric.statistic in ("mean", "p50") and c.predicted
    ]  # fmt: skip


def _fittable(members: list[Cell]) -> bool:
    halves = {
        role: {c.point.key for c in _per_token(members) if in_training(c.point) == role} for role in (True, False)
    }
    return sum(map(len, halves.values())) >= FEWEST and all(halves.values())
