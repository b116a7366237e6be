"""Values of a trace as numpy columns, where every bad value is an error with file, line and column.

The quick way converts a whole column at once; only when that fails, or a value is out of range, are rows
looked at one by one to say which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from workloads.errors import InputError, Place


@dataclass(frozen=True, slots=True)
class Rows:
    """Where rows came from: `line(i)` is row `i`'s line in `file`."""

    file: str
    line: Callable[[int], int]

    def error(self, row: int, column: str, message: str, hint: str | None = None) -> InputError:
        """An error placed at row `row`, column `column`."""
        return InputError(message, place=Place(self.file, self.line(row), column), hint=hint)

    def require(self, good: np.ndarray, column: str, values: Sequence, rule: str, hint: str | None = None) -> None:
        """Raise for the first row where `good` is false."""
        if not good.all():
            row = int(np.argmin(good))
            value = values[row]
            shown = value.item() if isinstance(value, np.generic) else value
            raise self.error(row, column, f"{rule}, not {shown!r}", hint)


def whole_numbers(rows: Rows, column: str, values: Sequence, minimum: int | None = 1) -> np.ndarray:
    """`values` (text or numbers) as int64, each at least `minimum`.

    `374.0` is accepted as 374, as data frames write it.
    """
    try:
        if values and isinstance(values[0], str):
            result = np.fromiter(map(int, values), np.int64, len(values))
        else:
            result = _array(values)
            if result.dtype != np.int64:
                raise ValueError
    except (ValueError, OverflowError, TypeError):
        result = np.array([_whole(rows, column, i, v) for i, v in enumerate(values)], np.int64)
    if minimum is not None:
        rows.require(result >= minimum, column, result, f"must be at least {minimum}")
    return result


def real_numbers(rows: Rows, column: str, values: Sequence, minimum: float | None = 0.0) -> np.ndarray:
    """`values` (text or numbers) as finite float64, each at least `minimum`."""
    try:
        if values and isinstance(values[0], str):
            result = np.fromiter(map(float, values), np.float64, len(values))
        else:
            result = _array(values)
            if result.dtype.kind not in "if":
                raise ValueError
            result = result.astype(np.float64)
    except (ValueError, TypeError):
        result = np.array([_real(rows, column, i, v) for i, v in enumerate(values)], np.float64)
    rows.require(np.isfinite(result), column, values, "must be finite")
    if minimum is not None:
        rows.require(result >= minimum, column, values, f"must be at least {minimum:g}")
    return result


def _array(values: Sequence) -> np.ndarray:
    if isinstance(values, list) and any(v is True or v is False for v in values):
        raise ValueError  # numpy would take them for 1 and 0
    return np.asarray(values)


def _real(rows: Rows, column: str, row: int, value: object) -> float:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise rows.error(row, column, "has no value", "fill it in or remove the row")
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise rows.error(row, column, f"expected a number, not {value!r}") from None


def _whole(rows: Rows, column: str, row: int, value: object) -> int:
    number = _real(rows, column, row, value)
    if not math.isfinite(number):
        raise rows.error(row, column, f"must be finite, not {value!r}")
    if number != int(number) or abs(number) > 2**62:
        raise rows.error(row, column, f"expected a whole number of tokens, not {value!r}")
    return int(value) if isinstance(value, int) else int(number)
