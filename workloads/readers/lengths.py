"""Any CSV with a column of input and one of output lengths, with or without arrival times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workloads.errors import InputError, Place, unknown_name
from workloads.readers.files import stem
from workloads.readers.table import Table
from workloads.readers.times import UNITS, in_order
from workloads.traffic import Traffic

INPUTS = ("input_tokens", "num_prefill_tokens", "prompt_tokens", "input_length", "input_len", "prompt_len", "isl")
OUTPUTS = ("output_tokens", "num_decode_tokens", "completion_tokens", "output_length", "output_len", "osl")
TIMES = (
    "arrival", "arrived_at", "arrival_time", "timestamp", "time", "ts", "sent", "start_time", "request_time", "created_at",
    "sent_at", "started_at", "received_at", "submitted_at", "datetime",
)  # fmt: skip
"""Names in any case, with spaces or underscores; those of times perhaps with their unit behind (`arrival_ms`)."""
NONE = "none"
_LIKE_TIMES = ("time", "stamp", "date", "arriv")


def read_lengths(
    path: Path, *, input_column: str | None = None, output_column: str | None = None,
    time_column: str | None = None, time_unit: str = "auto",
) -> Traffic:  # fmt: skip
    """CSV of lengths, with times in seconds or as dates (ISO 8601). Without times every request arrives at 0, with a note.

    Args:
        path: plain or gzipped file.
        input_column, output_column, time_column: names, where they are not among the usual ones
            (`input_tokens`, `num_prefill_tokens`, …; `output_tokens`, `num_decode_tokens`, …; `arrival`,
            `timestamp`, …). `time_column: none` reads no times.
        time_unit: unit of the times where they are numbers and it is not seconds, nor said by the column's name.

    Raises:
        InputError: a column is missing, or the file has times under a name that is not known.
    """
    table = Table(path)
    inputs = table.whole(_find(table, "input_column", input_column, INPUTS))
    outputs = table.whole(_find(table, "output_column", output_column, OUTPUTS))
    at = _times(table, time_column)
    if at is None:
        read = {input_column, output_column}
        unread = [name for name in table.header if name not in read and plain(name) not in (*INPUTS, *OUTPUTS)]
        if time_column is None:
            _check_unread(table, unread)
        named = f" (not read: {', '.join(unread[:5])}; time_column names the one with times)" if unread else ""
        note = f"no arrival times{named}: every request arrives at 0; give arrivals, or run a closed loop"
        return Traffic(np.zeros(len(inputs)), inputs, outputs, name=stem(path), notes=[note])
    notes: list[str] = []
    unit = unit_of(at)
    if unit != "s" and time_unit == "auto" and not table.dated(at):
        notes.append(f"times in {unit}, as their column {at} is called")
    arrival = table.seconds(at, time_unit, notes, unit=unit)
    return in_order(Traffic(arrival, inputs, outputs, name=stem(path), notes=notes))


def plain(name: str) -> str:
    """A column's name without case and spaces: `Prompt Tokens` is `prompt_tokens`."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def unit_of(name: str) -> str:
    """The unit that a column's name ends in; seconds where it says none."""
    end = plain(name).rpartition("_")[2]
    return end if end in UNITS and end != plain(name) else "s"


def _times(table: Table, name: str | None) -> str | None:
    """The column with times; None where there is none, or the user wants none."""
    if name == NONE and NONE not in table.header:
        return None
    if name is not None:
        return _find(table, "time_column", name, TIMES)
    known = [form for usual in TIMES for form in (usual, *(f"{usual}_{unit}" for unit in UNITS))]
    return _first(table, known)


def _check_unread(table: Table, unread: list[str]) -> None:
    """Times under a name that is not known must not be taken for none: dates, or numbers that rise and are called so.

    Raises:
        InputError: naming the column.
    """
    for name in unread:
        text = [str(value) for value in table.text(name)]
        if not (_clock(text[0]) or (any(word in plain(name) for word in _LIKE_TIMES) and _rising(text))):
            continue
        raise InputError(
            f"column {name!r} seems to hold times, under a name that is not known", place=Place(table.file, 1),
            hint=f"time_column: {name} reads them, time_column: {NONE} does without",
        )  # fmt: skip


def _clock(text: str) -> bool:
    """A date with a time of day, as ISO 8601 writes it or nearly so."""
    return bool(re.match(r"\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}[T ]+\d{1,2}:\d\d", text))


def _rising(text: list[str]) -> bool:
    try:
        values = np.array(text, float)
    except ValueError:
        return False
    return bool(np.all(np.diff(values) >= 0) and values[-1] > values[0])


def _first(table: Table, usual: Sequence[str]) -> str | None:
    columns = {plain(name): name for name in reversed(table.header)}
    return next((columns[name] for name in usual if name in columns), None)


def _find(table: Table, option: str, name: str | None, usual: tuple[str, ...]) -> str:
    if name is not None:
        if name not in table.header:
            raise unknown_name("column", name, table.header, place=Place(table.file, 1))
        return name
    found = _first(table, usual)
    if found is not None:
        return found
    raise InputError(
        f"no column of {option.removesuffix('_column')} lengths; the file has {', '.join(table.header)}",
        place=Place(table.file, 1),
        hint=f"name it with {option}, or call it {usual[0]}",
    )
