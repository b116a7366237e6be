"""BurstGPT (HPMLL/BurstGPT, arXiv 2401.17644): ChatGPT and GPT-4 requests of a campus, in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workloads.errors import InputError, Place, unknown_name
from workloads.readers.files import stem
from workloads.readers.table import Table
from workloads.readers.times import in_order, to_seconds
from workloads.traffic import Traffic

TIME, INPUT, OUTPUT = "Timestamp", "Request tokens", "Response tokens"


def read_burstgpt(
    path: Path, *, model: str | None = None, log_type: str | None = None, time_unit: str = "auto"
) -> Traffic:
    """CSV with Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type.

    Rows with no response tokens are failed requests; they are left out, with a note.

    Args:
        path: plain or gzipped file.
        model: keep only this value of the column Model.
        log_type: keep only this value of the column Log Type.
        time_unit: unit of Timestamp where it is not seconds.
    """
    table = Table(path)
    table.need((TIME, INPUT, OUTPUT), "a BurstGPT trace")
    stamps = table.real(TIME)
    inputs, outputs = table.whole(INPUT, 0), table.whole(OUTPUT, 0)
    keep = _equal(table, "Model", model) & _equal(table, "Log Type", log_type)
    failed = keep & (outputs == 0)
    table.rows.require(~keep | failed | (inputs > 0), INPUT, inputs, "must be at least 1")
    keep &= ~failed
    if not keep.any():
        raise InputError("no row is left: all failed or were filtered out", place=Place(str(path)))
    notes: list[str] = []
    arrival = to_seconds(stamps[keep], "s", time_unit, notes)
    if failed.any():
        notes.append(f"dropped {int(failed.sum()):,} failed requests (0 response tokens)")
    for name, value in (("Model", model), ("Log Type", log_type)):
        if value is not None:
            notes.append(f"only rows whose {name} is {value}")
    return in_order(Traffic(arrival, inputs[keep], outputs[keep], name=stem(path), notes=notes))


def _equal(table: Table, column: str, value: str | None) -> np.ndarray:
    if value is None:
        return np.ones(len(table), bool)
    table.need((column,), f"a filter on {column}")
    text = np.array(table.text(column))
    same = text == value
    if not same.any():
        raise unknown_name(column, value, np.unique(text).tolist(), place=Place(table.file, column=column))
    return same
