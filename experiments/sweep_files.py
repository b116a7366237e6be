"""What a sweep leaves: `sweep.json`, `points.parquet` and `report.html`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.sweep import SWEEP, SweepResult
from experiments.sweep_warnings import sweep_warnings
from workloads.errors import OutputError

SCHEMA_VERSION = 1
TABLE, REPORT, FIGURES = "points.parquet", "report.html", "figures"


def write_sweep(result: SweepResult) -> None:
    """Write all three, each whole or not at all.

    Raises:
        OutputError: they cannot be written.
    """
    from reports import strict_json
    from reports.write_file import replace_file, replace_text

    try:
        result.folder.mkdir(parents=True, exist_ok=True)
        content = strict_json.dumps(sweep_json(result)) + "\n"
        replace_text(result.folder / SWEEP, content)
        replace_file(result.folder / TABLE, lambda path: _write_table(result, path))
        replace_text(result.folder / REPORT, _page(result))
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
        "saturation": saturations(result),
        "warnings": sweep_warnings(result),
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
    from reports.saturation import OVERLOADED

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
            overloaded=[(s.get("saturation") or {}).get("label") == OVERLOADED for s in summaries],
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


def saturations(result: SweepResult) -> list[dict]:
    """Of every curve what its runs say of saturation: the other axes' values, the points of each label, and a sentence ("" of
    one that is stable throughout). Without a load axis all points are one curve."""
    from experiments.sweep import short_name
    from reports.saturation import BACKLOGGED, OVERLOADED, saturation_along
    from reports.wording import short_keys

    axis, found = load_axis(result), []
    curves = _curves(result, axis) if axis else [({}, [point for point in result.points if point.summary])]
    for others, points in curves:
        points = sorted(points, key=lambda point: point.values[axis]) if axis else points
        labels = [(point.summary.get("saturation") or {}).get("label", "unknown") for point in points]
        names = [_text(point.values[axis]) if axis else short_name(point.values) for point in points]
        key = short_keys(result.axes)[axis] if axis else ""
        found.append(
            {
                "axis": axis,
                "others": others,
                "overloaded": [p.number for p, label in zip(points, labels, strict=True) if label == OVERLOADED],
                "backlogged": [p.number for p, label in zip(points, labels, strict=True) if label == BACKLOGGED],
                "sentence": saturation_along(key, names, labels, ordered=bool(axis)).replace("  ", " "),
            }
        )
    return found


def saturation_sentences(result: SweepResult) -> list[str]:
    """A sentence for each curve that is not stable throughout, naming it where there are several."""
    from experiments.sweep import short_name

    return [
        (f"{short_name(each['others'])}: " if each["others"] else "") + each["sentence"]
        for each in saturations(result)
        if each["sentence"]
    ]


def _text(value: Any) -> str:
    from reports.wording import setting

    return setting(value, 40)


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
    """One row a point, tidy: `number`, the swept keys, `status`, `error`, `folder`, `saturation`, every other setting of the
    run by its dotted key, every figure of the summary, and the ends of its range as `<figure>_low` and `<figure>_high`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    points = result.points
    columns = {"number": _column([point.number for point in points])}
    for key in result.axes:
        columns[key] = _column([point.values[key] for point in points])
    columns["status"] = _column([point.status or "not run" for point in points])
    columns["error"] = _column([point.error for point in points])
    columns["folder"] = _column([point.folder if point.summary else None for point in points])
    columns["saturation"] = _column([(point.summary.get("saturation") or {}).get("label") for point in points])
    for key in _keys(point.config for point in points):
        if key not in columns:
            columns[key] = _column([point.config.get(key) for point in points])
    figures = [{key: value for key, value in point.summary.items() if _is_number(value)} for point in points]
    for key in _keys(figures):
        columns[key] = _column([None if (v := each.get(key)) is None else float(v) for each in figures])
    ranges = [(point.summary.get("interval") or {}).get("figures") or {} for point in points]
    for key in _keys(ranges):
        for place, end in enumerate(("low", "high")):
            columns[f"{key}_{end}"] = _column([float(each[key][place]) if each.get(key) else None for each in ranges])
    pq.write_table(pa.Table.from_arrays(list(columns.values()), list(columns)), path)


def _keys(rows: Iterable[dict]) -> list[str]:
    """Keys of all rows, in the order in which they first come."""
    return list({key: None for row in rows for key in row})


def _column(values: list) -> Any:
    """Values as an Arrow array: numbers, truth values or text where all are, else their JSON; null where there is none."""
    import numpy as np

    from reports.columns import arrow_array

    missing = [value is None for value in values]
    known = [value for value in values if value is not None]
    if known and all(_is_number(v) for v in known):
        whole = all(isinstance(v, int) for v in known)
        return arrow_array([0 if v is None else v for v in values], np.int64 if whole else np.float64, missing)
    if known and all(isinstance(v, bool) for v in known):
        return _truths(values, missing)
    plain = all(isinstance(v, str) for v in known)
    texts = ["" if v is None else v if plain else json.dumps(v, sort_keys=True, ensure_ascii=False) for v in values]
    return arrow_array(texts, np.object_, missing)


def _truths(values: list, missing: list[bool]) -> Any:
    """Truth values as an Arrow array, from buffers, since `pa.array` would import pandas."""
    import numpy as np
    import pyarrow as pa

    bits, known = (np.packbits(np.array(each, bool), bitorder="little") for each in (values, np.logical_not(missing)))
    return pa.Array.from_buffers(pa.bool_(), len(values), [pa.py_buffer(known), pa.py_buffer(bits)])


def _page(result: SweepResult) -> str:
    from reports.html import render_sweep

    points = _for_figures(result)
    left = sum(not point.status for point in result.points)
    warnings = [f"{left} of {len(points)} points are not run yet: the sweep was interrupted"] if left else []
    warnings += sweep_warnings(result)
    slo = result.workload.slo.plain()
    return render_sweep(points, list(result.axes), name=result.name, slo=slo, warnings=warnings, about=_about(result))


def _about(result: SweepResult) -> list[tuple[str, str]]:
    """What ran, as far as it was the same at every point."""
    backend = result.workload.backend
    found = (("model", "model", result.workload.model), ("backend", "backend.name", backend.name),
             ("server", "backend.base_url", backend.base_url), ("gpu", "backend.gpu", backend.gpu))  # fmt: skip
    return [(word, value) for word, key, value in found if value and key not in result.axes]


def write_figures(result: SweepResult, kinds: Iterable[str]) -> Path:
    """Write every figure of the page as files of these kinds (`svg`, `pdf`, `png`), for papers.

    Returns:
        Their folder.

    Raises:
        OutputError: they cannot be written.
    """
    from reports.html.sweep_export import export_figures

    folder = result.folder / FIGURES
    try:
        export_figures(_for_figures(result), list(result.axes), folder, kinds, slo=result.workload.slo.plain())
    except OSError as error:
        raise OutputError(f"cannot write figures to {folder}: {error.strerror or error}") from error
    return folder


def _for_figures(result: SweepResult) -> list[dict]:
    return [
        {
            "settings": point.values,
            "summary": point.summary or None,
            "error": point.error or ("" if point.summary else "not run"),
            "path": point.folder if point.summary else None,
            "gpus": point.gpus,
        }
        for point in result.points
    ]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
