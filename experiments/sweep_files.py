"""What a sweep leaves: `sweep.json`, `points.parquet` and `report.html`."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.sweep import SWEEP, SweepResult
from workloads.errors import OutputError

SCHEMA_VERSION = 1
TABLE, REPORT = "points.parquet", "report.html"


def write_sweep(result: SweepResult) -> None:
    """Write all three, each whole or not at all.

    Raises:
        OutputError: they cannot be written.
    """
    from reports import strict_json

    try:
        result.folder.mkdir(parents=True, exist_ok=True)
        content = strict_json.dumps(sweep_json(result)) + "\n"
        _replace(result.folder / SWEEP, lambda path: path.write_text(content, "utf-8"))
        _replace(result.folder / TABLE, lambda path: _write_table(result, path))
        page = _page(result)
        _replace(result.folder / REPORT, lambda path: path.write_text(page, "utf-8"))
    except OSError as error:
        raise OutputError(f"cannot write the sweep to {result.folder}: {error.strerror or error}") from error


def sweep_json(result: SweepResult) -> dict:
    """The contents of `sweep.json`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "name": result.name,
        "complete": result.complete,
        "axes": result.axes,
        "knees": knees(result),
        "points": [
            {
                "number": point.number,
                "values": point.values,
                "status": point.status or "not run",
                "error": point.error,
                "folder": point.folder if point.summary else None,
                "fingerprint": point.fingerprint,
                "summary": point.summary,
            }
            for point in result.points
        ],
    }


def knees(result: SweepResult) -> list[dict]:
    """The knee of every curve along the load axis: the other axes' values, the load, and a sentence.

    A curve without a knee has `load` None. No load axis among the swept keys, no entry.
    """
    from reports.knee import find_knee

    axis = load_axis(result)
    if axis is None:
        return []
    found = []
    for others, points in _curves(result, axis):
        summaries = [point.summary for point in points]
        knee = find_knee(
            [point.values[axis] for point in points],
            [s.get("output_throughput") for s in summaries],
            [s.get("p95_ttft_ms") or s.get("median_ttft_ms") for s in summaries],
        )
        found.append(
            {
                "axis": axis,
                "others": others,
                "load": knee.load if knee else None,
                "point": points[knee.index].number if knee else None,
                "sentence": knee.sentence if knee else f"no knee in the measured range of {axis}",
            }
        )
    return found


def knee_sentences(result: SweepResult) -> list[str]:
    """A sentence for each curve, naming it where there are several."""
    from experiments.sweep import short_name

    return [(f"{short_name(knee['others'])}: " if knee["others"] else "") + knee["sentence"] for knee in knees(result)]


def load_axis(result: SweepResult) -> str | None:
    """The swept key that drives the load, if one does."""
    from reports.knee import LOAD_KEYS

    for key in LOAD_KEYS:
        if key in result.axes and all(_is_number(value) for value in result.axes[key]):
            return key
    return None


def _curves(result: SweepResult, axis: str) -> list[tuple[dict, list]]:
    curves: dict[str, tuple[dict, list]] = {}
    for point in result.points:
        others = {key: value for key, value in point.values.items() if key != axis}
        if point.summary:
            curves.setdefault(json.dumps(others, sort_keys=True, default=str), (others, []))[1].append(point)
    return list(curves.values())


def _write_table(result: SweepResult, path: Path) -> None:
    """One row a point: `number`, the swept keys, `status`, `error`, and every figure of the summary."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from reports.columns import arrow_array

    points = result.points
    columns = {"number": arrow_array([point.number for point in points], np.int64)}
    for key, values in result.axes.items():
        column = [point.values[key] for point in points]
        if all(_is_number(v) for v in values):
            whole = all(isinstance(v, int) for v in values)
            columns[key] = arrow_array(column, np.int64 if whole else np.float64)
        else:
            plain = all(isinstance(v, str) for v in values)
            texts = column if plain else [json.dumps(v, sort_keys=True, ensure_ascii=False) for v in column]
            columns[key] = arrow_array(texts, np.object_)
    columns["status"] = arrow_array([point.status or "not run" for point in points], np.object_)
    columns["error"] = arrow_array([point.error for point in points], np.object_)
    columns["folder"] = arrow_array(
        [point.folder for point in points], np.object_, [not point.summary for point in points]
    )
    metrics: dict[str, None] = {}
    for point in points:
        metrics |= {key: None for key, value in point.summary.items() if _is_number(value)}
    for key in metrics:
        values = [point.summary.get(key) for point in points]
        missing = [not _is_number(v) for v in values]
        columns[key] = arrow_array(
            [0.0 if gone else v for v, gone in zip(values, missing, strict=True)], np.float64, missing
        )
    pq.write_table(pa.Table.from_arrays(list(columns.values()), list(columns)), path)


def _page(result: SweepResult) -> str:
    from reports.html import render_sweep

    points = [
        {
            "settings": point.values,
            "summary": point.summary or None,
            "error": point.error or ("" if point.summary else "not run"),
            "path": point.folder if point.summary else None,
            "gpus": point.gpus,
        }
        for point in result.points
    ]
    left = sum(not point.status for point in result.points)
    warnings = [f"{left} of {len(points)} points are not run yet: the sweep was interrupted"] if left else []
    slo = result.workload.slo.plain()
    return render_sweep(points, list(result.axes), name=result.name, slo=slo, warnings=warnings)


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
