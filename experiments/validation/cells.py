"""Cells: measured values beside predicted ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.validation.deployment import Deployment, deployment_of
from experiments.validation.exclusions import Candidate, Rule, exclusion_of
from experiments.validation.load import parse_load
from experiments.validation.mapping import map_row
from experiments.validation.metrics import Metric, parse_metric
from experiments.validation.points import Point, point_of
from experiments.validation.simulate import Result
from experiments.validation.table import Row
from experiments.validation.unstated import interval, left_open


@dataclass(slots=True)
class Cell:
    """A measured value and what is compared with it.

    Attributes:
        row, metric, deployment: what was measured, on what. excluded: the rule it falls under, or None.
        point: what is simulated for it; None where nothing can be. reference: a second one, for ratios.
        predicted: the simulated figure, in the metric's unit. error: why there is none.
        low, high: the 80 % interval of the prediction, where there is one (`experiments.validation.unstated`).
        warnings: reasons to doubt the prediction; implausible: a reason to doubt the measurement.
        role: `fitted` or `held out`, where a host time was fitted to its deployment.
    """

    row: Row
    metric: Metric
    deployment: Deployment | None
    excluded: Rule | None
    point: Point | None = None
    reference: Point | None = None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    error: str = ""
    warnings: list[str] = field(default_factory=list)
    implausible: str = ""
    role: str = ""
    result: Result | None = None

    @property
    def log_ratio(self) -> float | None:
        """ln(predicted / measured)."""
        return math.log(self.predicted / self.row.value) if self.predicted else None

    @property
    def group(self) -> tuple:
        """The deployment it belongs to: what `--fit-deployment` fits one figure for."""
        d = self.deployment
        if d is None:
            return ()
        return (
            self.row.source, self.row.engine.lower(), self.row.engine_version, d.model.name, d.gpu.name, d.layout.tensor,
            d.layout.pipeline, d.layout.expert, d.layout.data, d.mapped.weights, d.mapped.kv,
        )  # fmt: skip


def cell_of(row: Row) -> Cell:
    """A row as a cell, with its point if it can be simulated.

    Raises:
        InputError: an unknown metric, at the row.
    """
    metric = parse_metric(row.metric, row.place)
    load, deployment = parse_load(row), deployment_of(row)
    excluded = exclusion_of(Candidate(row, metric, load, deployment))
    cell = Cell(row, metric, deployment, excluded)
    if deployment is None or load is None or (excluded is not None and not excluded.runnable):
        return cell
    cell.point = point_of(row, load, deployment)
    if metric.quantity == "speedup_vs_fp16":
        plain = replace(row, weight_dtype="fp16", kv_dtype="fp16")
        cell.reference = point_of(plain, load, replace(deployment, mapped=map_row(plain)))
    return cell


def settle(cell: Cell, results: dict[str, Result]) -> None:
    """Fill in what was predicted for a cell, from the results by the key of their points."""
    result = results.get(cell.point.key) if cell.point else None
    if result is None:
        return
    cell.result = result
    cell.error = result.error
    cell.warnings = [*cell.point.notes, *result.warnings]
    if result.error:
        return
    cell.predicted = figure(cell, result, results)
    if cell.predicted is None:
        cell.error = f"no {cell.row.metric} comes of {cell.row.load_kind}"
    elif factors := result.spread.get(cell.metric.key):
        besides = left_open(cell.row, cell.metric, cell.deployment)
        cell.low, cell.high = interval(cell.predicted, factors, besides)


def figure(cell: Cell, result: Result, results: dict[str, Result]) -> float | None:
    """The predicted value of a cell's metric."""
    metric = cell.metric
    if metric.quantity == "speedup_vs_fp16":
        base = results.get(cell.reference.key)
        if base is None or not base.figures:
            return None
        return result.figures["output_tokens_per_s"] / base.figures["output_tokens_per_s"]
    value = result.figures.get(metric.key)
    if value is not None and metric.per_gpu:
        value /= cell.point.gpus
    return value


def points_of(cells: Iterable[Cell]) -> dict[str, Point]:
    """All points by key, each once."""
    found: dict[str, Point] = {}
    for cell in cells:
        for point in (cell.point, cell.reference):
            if point is not None:
                found.setdefault(point.key, point)
    return found


def record(cell: Cell) -> dict[str, Any]:
    """A cell as one flat record, for files and for `reports.validation`."""
    d, row = cell.deployment, cell.row
    layout = d.layout if d else None
    return {
        "source": row.source, "table_id": row.table_id, "file": row.file, "line": row.line, "engine": row.engine,
        "engine_version": row.engine_version, "family": d.mapped.family if d else "", "model": d.model.name if d else row.model,
        "gpu": d.gpu.name if d else row.gpu, "gpus": layout.gpus if layout else row.n_gpu,
        "tensor": layout.tensor if layout else row.tp, "pipeline": layout.pipeline if layout else row.pp,
        "expert": layout.expert if layout else 1, "data": layout.data if layout else 1,
        "weights": d.mapped.weights if d else row.weight_dtype, "kv": d.mapped.kv if d else row.kv_dtype,
        "preset": d.mapped.preset if d else "", "isl": row.isl, "osl": row.osl, "load": row.load,
        "load_kind": row.load_kind, "metric": row.metric, "quantity": cell.metric.quantity, "measured": row.value,
        "predicted": cell.predicted, "low": cell.low, "high": cell.high,
        "log_ratio": cell.log_ratio, "moe": bool(d and d.model.experts),
        "excluded": cell.excluded.name if cell.excluded else "", "runnable": cell.point is not None, "error": cell.error,
        "warnings": cell.warnings, "implausible": cell.implausible, "role": cell.role,
        "point": cell.point.key if cell.point else "",
        "rules": d.mapped.rules if d else [], "config": cell.result.config if cell.result else {},
        "facts": cell.result.facts if cell.result else {}, "sources": cell.result.sources if cell.result else [],
        "seconds": cell.result.seconds if cell.result else 0.0,
    }  # fmt: skip
