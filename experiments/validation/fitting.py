"""`--fit-deployment`: one figure a deployment, milliseconds added to every engine step, fitted on half of its points.

What a deployment's host does between steps differs by machine, driver and version and is in no data sheet. The points of a
deployment are split by a digest of their key, so the split is the same every time and owes nothing to the values. The
figure is the median of what is missing in TPOT over the fitted half, which a second simulation corrects once; the other
half then tells what it is worth. Deployments with fewer than four points in TPOT or ITL are left as they are.
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


def in_training(point: Point) -> bool:
    """Whether a point belongs to the half that is fitted; independent of what was measured."""
    plain = repr((sorted(point.workload["load"].items()), point.workload["traffic"]))
    return hashlib.sha256(plain.encode()).digest()[0] % 2 == 0


def fit_deployments(
    cells: Iterable[Cell], store: Store, jobs: int, progress: Progress | None
) -> tuple[dict[tuple, float], bool]:
    """Fit every deployment that has enough points, and settle its cells anew.

    Cells learn which half they are in (`Cell.role`).

    Returns:
        Deployment → milliseconds a step, and whether everything ran to its end.
    """
    groups: dict[tuple, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.point is not None and cell.predicted is not None and cell.excluded is None:
            groups[cell.group].append(cell)
    chosen = {group: members for group, members in groups.items() if _fittable(members)}
    fitted = dict.fromkeys(chosen, 0.0)
    for _ in range(_ROUNDS):
        for group, members in chosen.items():
            fitted[group] = round(max(fitted[group] + _missing(members), -2.0), 3)
            for cell in members:
                cell.point = replace(cell.point, host_ms=fitted[group])
        members = [cell for group in chosen.values() for cell in group]
        if not run_points(points_of(members), store, jobs, progress):
            return fitted, False
        for cell in members:
            settle(cell, store.results)
    for group in chosen.values():
        for cell in group:
            cell.role = "fitted" if in_training(cell.point) else "held out"
    return fitted, True


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


def _missing(members: list[Cell]) -> float:
    """Milliseconds a token that the prediction lacks, the median over the fitted half."""
    return float(np.median([c.row.value - c.predicted for c in _per_token(members) if in_training(c.point)]))
