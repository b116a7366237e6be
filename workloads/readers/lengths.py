"""Any CSV with a column of input and one of output lengths, with or without arrival times."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workloads.errors import InputError, Place, unknown_name
from workloads.readers.files import stem
from workloads.readers.table import Table
from workloads.readers.times import in_order
from workloads.traffic import Traffic

INPUTS = ("input_tokens", "num_prefill_tokens", "prompt_tokens", "input_length", "input_len", "prompt_len")
OUTPUTS = ("output_tokens", "num_decode_tokens", "completion_tokens", "output_length", "output_len")
TIMES = ("arrival", "arrival_s", "arrived_at", "arrival_time", "timestamp", "time", "ts", "sent", "start_time")


def read_lengths(
    path: Path, *, input_column: str | None = None, output_column: str | None = None,
    time_column: str | None = None, time_unit: str = "auto",
) -> Traffic:  # fmt: skip
    """CSV of lengths, with times in seconds or as dates (ISO 8601). Without times every request arrives at 0, with a note.

    Args:
        path: plain or gzipped file.
        input_column, output_column, time_column: names, where they are not among the usual ones
            (`input_tokens`, `num_prefill_tokens`, …; `output_tokens`, `num_decode_tokens`, …; `arrival`,
            `arrival_s`, …).
        time_unit: unit of the times where they are numbers and it is not seconds.
    """
    table = Table(path)
    inputs = table.whole(_find(table, "input_column", input_column, INPUTS))
    outputs = table.whole(_find(table, "output_column", output_column, OUTPUTS))
    if time_column is None and not any(name in table.header for name in TIMES):
        unread = [name for name in table.header if name not in (*INPUTS, *OUTPUTS, input_column, output_column)]
        named = f" (not read: {', '.join(unread[:5])}; time_column names the one with times)" if unread else ""
        note = f"no arrival times{named}: every request arrives at 0; give arrivals, or run a closed loop"
        return Traffic(np.zeros(len(inputs)), inputs, outputs, name=stem(path), notes=[note])
    notes: list[str] = []
    arrival = table.seconds(_find(table, "time_column", time_column, TIMES), time_unit, notes)
    return in_order(Traffic(arrival, inputs, outputs, name=stem(path), notes=notes))


def _find(table: Table, option: str, name: str | None, usual: tuple[str, ...]) -> str:
    if name is not None:
        if name not in table.header:
            raise unknown_name("column", name, table.header, place=Place(table.file, 1))
        return name
    for candidate in usual:
        if candidate in table.header:
            return candidate
    raise InputError(
        f"no column of {option.removesuffix('_column')} lengths; the file has {', '.join(table.header)}",
        place=Place(table.file, 1),
        hint=f"name it with {option}, or call it {usual[0]}",
    )
