"""A run as tables for other programs: CSV for spreadsheets, Parquet for pandas and DuckDB. Times in seconds, latencies in ms."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from reports.columns import REQUESTS, TIMELINE, arrow_array
from reports.metrics import met_slo
from reports.run_data import FINISHED, RunData
from reports.uncertainty import interval_of

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def request_table(data: RunData) -> dict[str, np.ndarray]:
    """The columns of `requests.parquet`, and what follows from them: `ttft_ms`, `tpot_ms`, `e2e_ms` and `queue_ms` of finished
    requests (NaN otherwise), and `met_slo` where there is one."""
    r = data.requests
    columns = {name: getattr(r, name) for name in REQUESTS.columns_of(r)}
    done = r.status == FINISHED
    several = done & (r.output_tokens > 1)
    columns["ttft_ms"] = np.where(done, r.first_token - r.sent, np.nan) * 1e3
    columns["tpot_ms"] = (
        np.where(several, (r.finish - r.first_token) / np.maximum(r.output_tokens - 1, 1), np.nan) * 1e3
    )
    columns["e2e_ms"] = np.where(done, r.finish - r.sent, np.nan) * 1e3
    columns["queue_ms"] = np.where(done, r.admitted - r.queued, np.nan) * 1e3
    good = met_slo(data)
    if good is not None:
        columns["met_slo"] = good.astype(np.int64)
    return columns


def timeline_table(data: RunData) -> dict[str, np.ndarray]:
    """The columns of `timeline.parquet`."""
    return {name: getattr(data.timeline, name) for name in TIMELINE.columns}


def summary_rows(summary: dict[str, Any]) -> list[tuple[str, Any, Any, Any]]:
    """(figure, value, low, high) of every single figure; the ends of its interval where it has one."""
    found = []
    for key, value in summary.items():
        if value is None or isinstance(value, bool | int | float | str):
            low, high = interval_of(summary, key) or (None, None)
            found.append((key, value, low, high))
    return found


def write_csv(data: RunData, summary: dict[str, Any], folder: Path) -> list[Path]:
    """`requests.csv`, `timeline.csv` and `summary.csv`; an empty cell is what never happened or cannot be told.

    Raises:
        OSError: they cannot be written.
    """
    files = []
    for name, columns in (("requests", request_table(data)), ("timeline", timeline_table(data))):
        rows = zip(*(_cells(column) for column in columns.values()), strict=True)
        files.append(_csv(folder / f"{name}.csv", list(columns), rows))
    heads = ["figure", "value", "low", "high"]
    rows = ((key, *("" if v is None else v for v in values)) for key, *values in summary_rows(summary))
    return [*files, _csv(folder / "summary.csv", heads, rows)]


def write_parquet(data: RunData, folder: Path) -> list[Path]:
    """`requests.parquet` and `timeline.parquet`, with null for what never happened, so that every reader skips it.

    Raises:
        OSError: they cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = []
    for name, columns in (("requests", request_table(data)), ("timeline", timeline_table(data))):
        arrays = []
        for column in columns.values():
            text = column.dtype == np.object_
            whole = np.issubdtype(column.dtype, np.integer)
            missing = None if text or whole else np.isnan(column)
            kind = np.object_ if text else np.int64 if whole else np.float64
            arrays.append(arrow_array(column, kind, missing))
        file = folder / f"{name}.parquet"
        pq.write_table(pa.Table.from_arrays(arrays, list(columns)), file, compression="zstd")
        files.append(file)
    return files


def _csv(path: Path, heads: list[str], rows: Iterable[Iterable[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(heads)
        writer.writerows(rows)
    return path


def _cells(column: np.ndarray) -> list[Any]:
    if column.dtype == np.object_:
        return [_text(value) for value in column]
    if np.issubdtype(column.dtype, np.integer):
        return column.tolist()
    return ["" if np.isnan(value) else value for value in column.tolist()]


def _text(value: Any) -> str:
    """Text that no spreadsheet takes for a formula."""
    text = str(value).encode("utf-8", "replace").decode()
    return f"'{text}" if text.startswith(_FORMULA) else text
