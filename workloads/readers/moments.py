"""Dates with times (ISO 8601) as columns: whole nanoseconds, and seconds from the first."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from workloads.errors import InputError, Place
from workloads.readers.columns import Rows

EXAMPLE = "expected e.g. 2023-11-16 18:15:46.6805900"


def moments(rows: Rows, column: str, values: Sequence[object]) -> np.ndarray:
    """Dates with times as int64 nanoseconds since 1970 (UTC where no zone is given).

    Raises:
        InputError: at the first value that is none.
    """
    try:
        text = [t[:-6] if t.endswith("+00:00") else t.removesuffix("Z") for t in values]
        if not all(":" in t for t in text):  # NumPy takes dates without times too
            raise ValueError
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it warns of what stands behind the time, and reads on
            return np.array(text, "datetime64[ns]").astype(np.int64)
    except (ValueError, UserWarning, AttributeError):
        return np.array([_moment(rows, column, i, t) for i, t in enumerate(values)], np.int64)


def dated(values: Sequence[object]) -> bool:
    """Whether a column holds dates: its first value that is not empty is a text with a time of day, or a date alone."""
    first = next((v for v in values if v is not None and str(v).strip()), None)
    if not isinstance(first, str):
        return isinstance(first, np.datetime64)
    try:
        float(first)
    except ValueError:
        return ":" in first or first.count("-") == 2
    return False


def from_first(stamps: np.ndarray, time_unit: str, notes: list[str]) -> np.ndarray:
    """Seconds from the earliest of some moments; a note says which that was.

    Args:
        stamps: nanoseconds since 1970.   time_unit: what the user says; dates have none.

    Raises:
        InputError: a unit was given.
    """
    if time_unit != "auto":
        raise InputError(
            f"dates have no unit, and {time_unit} was given", place=Place(key="time_unit"), hint="remove it"
        )
    first = int(stamps.min())  # whole nanoseconds are subtracted before they become floats, which keeps all digits
    told = str(np.datetime64(first, "ns")).rstrip("0").rstrip(".")
    notes.append(f"dates: the first, {told} UTC, is 0")
    return (stamps - first) / 1e9


def _moment(rows: Rows, column: str, row: int, value: object) -> int:
    if value is None or not str(value).strip():
        raise rows.error(row, column, "has no timestamp", "fill it in or remove the row")
    try:
        if not isinstance(value, str) or ":" not in value:
            raise ValueError
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise rows.error(row, column, f"{value!r} is not a date with a time", EXAMPLE) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000
