"""CSV files as columns.

Small files go through the csv module, which starts at once; large ones (the week-long traces have tens of
millions of rows) through pyarrow. Whatever pyarrow does not take cleanly is read again row by row, so that
errors are the same.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from workloads.errors import InputError, Place, unknown_name
from workloads.readers.columns import Rows, real_numbers, whole_numbers
from workloads.readers.files import distinct_columns, existing, read_text
from workloads.readers.moments import dated, from_first, moments
from workloads.readers.times import to_seconds

LARGE_BYTES = 8 << 20
SEPARATORS = ",;\t"


def separator(header: str) -> str:
    """What parts the columns of a header line: a comma, or a semicolon or tab where it has none."""
    return next((mark for mark in SEPARATORS if mark in header), ",")


class Table:
    """A CSV file with a header line; fields are parted by commas, or by semicolons or tabs.

    Args:
        path: plain or gzipped file.
        large: size in bytes from which pyarrow reads it.

    Raises:
        InputError: empty, no rows, or a row with another number of fields than the header.
    """

    def __init__(self, path: str | Path, *, large: int = LARGE_BYTES) -> None:
        self.path = existing(path)
        self.file = str(path)
        self._text: dict[str, Sequence[str]] | None = None
        self._lines: list[int] | None = None
        self._arrow = _read_arrow(self.path) if self.path.is_file() and self.path.stat().st_size >= large else None
        if self._arrow is not None:
            self.header = list(self._arrow.column_names)
            self._count = self._arrow.num_rows
        else:
            self._load_text()
        distinct_columns(self.header, self.file)

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Rows:
        """Where the rows came from."""
        return Rows(self.file, self.line)

    def line(self, row: int) -> int:
        """Line of row `row` in the file, from 1."""
        return self._lines[row] if self._lines is not None else row + 2

    def need(self, names: Iterable[str], what: str) -> None:
        """Check that all columns are there.

        Raises:
            InputError: naming the first missing column and the nearest ones that exist.
        """
        for name in names:
            if name not in self.header:
                error = unknown_name("column", name, self.header)
                raise InputError(
                    f"no column {name!r}, which {what} needs",
                    place=Place(self.file, 1),
                    hint=f"{error.hint}; `format: csv` reads columns of other names",
                )

    def text(self, name: str) -> Sequence[str]:
        """A column as text."""
        if self._arrow is not None and self._text is None and str(self._arrow.column(name).type) == "string":
            return self._arrow.column(name).to_pylist()
        if self._text is None:
            self._load_text()
        return self._text[name]  # type: ignore[index]

    def whole(self, name: str, minimum: int | None = 1) -> np.ndarray:
        """A column of whole numbers, int64."""
        return whole_numbers(self.rows, name, self._values(name, "i"), minimum)

    def real(self, name: str, minimum: float | None = 0.0) -> np.ndarray:
        """A column of finite numbers, float64."""
        return real_numbers(self.rows, name, self._values(name, "if"), minimum)

    def moments(self, name: str) -> np.ndarray:
        """A column of dates with times, int64 nanoseconds since 1970 (UTC where no zone is given)."""
        values = self._values(name, "M")
        if isinstance(values, np.ndarray):
            return values.astype("datetime64[ns]").astype(np.int64)
        return moments(self.rows, name, values)

    def dated(self, name: str) -> bool:
        """Whether a column holds dates."""
        return dated(self._values(name, "Mif")[:100])

    def seconds(self, name: str, time_unit: str, notes: list[str], *, unit: str = "s") -> np.ndarray:
        """A column of times, numbers or dates, as seconds from the start.

        Args:
            time_unit: unit of numbers where it is not `unit`, of `times.UNITS`.   notes: get a line for what was done.
        """
        if self.dated(name):
            return from_first(self.moments(name), time_unit, notes)
        return to_seconds(self.real(name), unit, time_unit, notes)

    def _values(self, name: str, kinds: str) -> Sequence:
        if self._arrow is not None and self._text is None:
            column = self._arrow.column(name)
            if column.null_count == 0:
                values = column.to_numpy()
                if values.dtype.kind in kinds:
                    return values
        return self.text(name)

    def _load_text(self) -> None:
        content = read_text(self.path)
        # csv.reader wants its newlines untouched, so that line_num counts them
        mark = separator(content.partition("\n")[0])
        reader = csv.reader(io.StringIO(content, newline=""), delimiter=mark)
        header = next(reader, None)
        if not header:
            raise InputError("the file is empty", place=Place(self.file), hint="expected a header line and rows")
        rows, lines = [], []
        for row in reader:
            if row:
                rows.append(row)
                lines.append(reader.line_num)
        self.header = [name.strip() for name in header]
        self._count, self._lines = len(rows), lines
        if not rows:
            raise InputError("the file has a header but no rows", place=Place(self.file, 1))
        width = len(header)
        for row, line in zip(rows, lines, strict=True):
            if len(row) != width:
                raise InputError(
                    f"has {len(row)} {'field' if len(row) == 1 else 'fields'} where the header has {width}",
                    place=Place(self.file, line),
                    hint="the row is malformed or the file was cut short",
                )
        self._text = dict(zip(self.header, zip(*rows, strict=True), strict=True))


def _read_arrow(path: Path):
    import pyarrow
    import pyarrow.csv

    try:
        with pyarrow.input_stream(path, compression="detect") as file:
            header = file.read(1 << 16).partition(b"\n")[0].decode("utf-8", "replace")
        parse = pyarrow.csv.ParseOptions(delimiter=separator(header))
        table = pyarrow.csv.read_csv(path, parse_options=parse)
    except (pyarrow.ArrowInvalid, OSError):
        return None
    return table if table.num_rows else None
