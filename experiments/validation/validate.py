"""`bench validate` without a terminal: measured tables in, cells with errors out."""

from __future__ import annotations

import difflib
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.validation.cells import Cell, cell_of, points_of, settle
from experiments.validation.doubts import doubt
from experiments.validation.load import KINDS
from experiments.validation.metrics import parse_metric
from experiments.validation.plausible import mark_implausible
from experiments.validation.pool import Progress, Store, run_points
from experiments.validation.runs import read_path
from experiments.validation.table import Row
from reports.wording import clean
from workloads.errors import InputError


@dataclass(slots=True)
class Validation:
    """What was found.

    Attributes:
        cells: of all chosen rows, in order of reading. complete: False after Ctrl-C.
        points: simulations that the cells need. known: how many of them were there already.
        seconds: wall time. fitted: deployment → kind and figure, where one was fitted.
        notes: sentences for the user.
    """

    cells: list[Cell]
    complete: bool = True
    points: int = 0
    known: int = 0
    seconds: float = 0.0
    fitted: dict[tuple, tuple[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """All rows of tables, run folders and result files.

    Raises:
        InputError: a path that cannot be read, or has nothing in it.
    """
    return [row for path in paths for row in read_path(path)]


def choose(
    rows: Sequence[Row], *, sources: Sequence[str] = (), metrics: Sequence[str] = (), subset: int = 0
) -> list[Row]:
    """Some of the rows.

    Args:
        sources: keep only these sources or table ids (or beginnings of them).
        metrics: keep only these metrics, or quantities whatever their statistic.
        subset: so many measurements at most, the same ones every time, spread over the tables; 0 = all.

    Raises:
        InputError: an unknown metric or source, with the nearest; nothing left.
    """
    for name in metrics:
        parse_metric(name)
    chosen = list(rows)
    if sources:
        names = sorted({row.source for row in rows} | {row.table_id for row in rows})
        for wanted in sources:
            if not any(name.startswith(wanted) for name in names):
                close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.4)
                hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names[:8])}"
                raise InputError(f"no source {wanted!r} in these tables", hint=hint)
        chosen = [r for r in chosen if any(n.startswith(w) for w in sources for n in (r.source, r.table_id))]
    if metrics:
        chosen = [r for r in chosen if r.metric in metrics or parse_metric(r.metric, r.place).quantity in metrics]
        if not chosen:
            found = ", ".join(sorted({row.metric for row in rows}))
            raise InputError(f"no row has the metric {' or '.join(metrics)}", hint=f"the tables have {found}")
    if not chosen:
        raise InputError("nothing is left to compare", hint="name fewer sources or metrics")
    return stratified(chosen, subset) if subset else chosen


def stratified(rows: Sequence[Row], size: int) -> list[Row]:
    """At most `size` measurements, drawn with a fixed seed and spread over (source, engine, GPU, model, load kind).

    A measurement keeps all its metrics: rows that differ in nothing else stay together.
    """
    strata: dict[tuple, dict[tuple, list[Row]]] = {}
    for row in rows:
        stratum = (row.source, row.engine, row.gpu, row.model, row.load_kind)
        same = (row.table_id, row.engine_version, row.weight_dtype, row.n_gpu, row.tp, row.pp, row.isl, row.osl,
                row.load, row.notes, row.source_date)  # fmt: skip
        strata.setdefault(stratum, {}).setdefault(same, []).append(row)
    draw = random.Random(0)
    piles = []
    for key in sorted(strata):
        pile = list(strata[key].values())
        draw.shuffle(pile)
        piles.append(pile)
    chosen: list[Row] = []
    taken = 0
    while taken < size and any(piles):
        for pile in piles:
            if pile and taken < size:
                chosen += pile.pop()
                taken += 1
    return chosen


def validate(
    rows: Sequence[Row], *, jobs: int = 2, store: Store | None = None, progress: Progress | None = None,
    everything: bool = True, fit: bool = False,
) -> Validation:  # fmt: skip
    """Simulate what rows measured and set the two side by side.

    Args:
        store: results already known, and where new ones go.
        everything: simulate also the cells that a rule leaves out, where it can be done.
        fit: fit one figure a deployment on half of its points; see `fitting`.

    Raises:
        InputError: an unknown metric in a row.
    """
    began = time.perf_counter()
    store = store or Store(None)
    cells = [cell_of(row) for row in rows]
    if not everything:
        for cell in cells:
            if cell.excluded is not None:
                cell.point = None
    points = points_of(cells)
    known = sum(key in store.results for key in points)
    complete = run_points(points, store, jobs, progress)
    for cell in cells:
        settle(cell, store.results)
    found = Validation(cells, complete, len(points), known)
    if fit and complete:
        from experiments.validation.fitting import fit_deployments

        found.fitted, found.complete = fit_deployments(cells, store, jobs, progress)
    found.notes += _unknown_names(cells)
    mark_implausible(cells)
    doubt(cells)
    found.seconds = time.perf_counter() - began
    return found


def _unknown_names(cells: Iterable[Cell]) -> list[str]:
    """What the names are that no table of ours has: a slip of the pen leaves out cells as well as a card that is new."""
    columns = {"unknown load kind": "load_kind", "unknown model": "model", "unknown GPU": "gpu"}
    names: dict[str, Counter] = {}
    for cell in cells:
        rule = cell.excluded.name if cell.excluded is not None else ""
        if rule in columns:
            names.setdefault(rule, Counter())[getattr(cell.row, columns[rule])] += 1
    notes = []
    for rule, counted in names.items():
        most = counted.most_common(5)
        more = f" and {len(counted) - len(most):,} more" if len(counted) > len(most) else ""
        known = f"; known: {', '.join(KINDS)}" if rule == "unknown load kind" else ""
        listed = ", ".join(f"{clean(name, 60)} ({count:,})" for name, count in most)
        notes.append(f"{rule}: {listed}{more}{known}")
    return notes


def exclusions(cells: Iterable[Cell]) -> Counter:
    """How many cells each rule leaves out: (rule, reason, whether they are simulated all the same) → cells."""
    counted = Counter()
    for cell in cells:
        if cell.excluded is not None:
            counted[(cell.excluded.name, cell.excluded.reason, cell.excluded.runnable)] += 1
    return counted
