"""Measured tables: reading tidy CSV files, one measured value a row.

The columns are those of `COLUMNS`; `REQUIRED` must be there, the others count as empty where they are absent. Columns of
other names are left alone, unless they are evidently a slip of the pen for one that is missing.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from workloads.errors import InputError, Place
from workloads.readers.files import distinct_columns

COLUMNS = (
    "source", "source_date", "engine", "engine_version", "model", "params", "weight_dtype", "kv_dtype", "gpu", "n_gpu",
    "tp", "pp", "isl", "osl", "concurrency_or_rate", "metric", "value", "notes", "load_kind", "table_id",
)  # fmt: skip
REQUIRED = ("engine", "model", "gpu", "metric", "value", "load_kind")
_COUNTS = ("n_gpu", "tp", "pp")
_PLAIN_KINDS = {
    "static": "static_batch", "offline": "offline_all_at_once", "closed": "closed_loop_concurrency",
    "closed_loop": "closed_loop_concurrency", "concurrency": "closed_loop_concurrency", "open": "open_loop_rate",
    "open_loop": "open_loop_rate", "rate": "open_loop_rate",
}  # fmt: skip
"""Shorter words for the kinds of load that `load.KINDS` has."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured value and what is known of how it came about.

    Attributes:
        file, line: where it was read. source … table_id: the columns as written; "" where the source does not say.
        n_gpu, tp, pp: whole numbers, 0 where the source does not say.
        value: the measured figure, in the unit of its metric.
        extra: settings that only richer files carry (see `runs`): dotted engine keys, and `traffic.*` and `load.*`.
    """

    file: str
    line: int
    source: str
    source_date: str
    engine: str
    engine_version: str
    model: str
    weight_dtype: str
    kv_dtype: str
    gpu: str
    n_gpu: int
    tp: int
    pp: int
    isl: str
    osl: str
    load: str
    metric: str
    value: float
    notes: str
    load_kind: str
    table_id: str
    extra: dict = field(default_factory=dict, compare=False)

    @property
    def place(self) -> Place:
        """Where the row stands."""
        return Place(self.file, self.line)

    def having(self, metric: str, value: float) -> Row:
        """The same measurement's figure of another metric."""
        return replace(self, metric=metric, value=value)


def read_table(path: Path) -> list[Row]:
    """All rows of a tidy CSV file.

    Raises:
        InputError: unreadable; a column that is missing, with the nearest one found; a number that is none, with file,
            line and column; no rows.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = [name.strip() for name in reader.fieldnames or []]
            check_header(header, str(path))
            reader.fieldnames = header
            rows = [_row(record, str(path), reader.line_num) for record in reader if any(record.values())]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read it: {error}", place=Place(str(path))) from None
    if not rows:
        raise InputError("has no rows", place=Place(str(path)))
    return rows


def check_header(header: list[str], file: str) -> None:
    """A header must have the required columns and no misspelt one.

    Raises:
        InputError: with the nearest names.
    """
    if not header:
        raise InputError("is empty", place=Place(file), hint=f"expected the columns {', '.join(COLUMNS)}")
    distinct_columns(header, file)
    missing = [name for name in COLUMNS if name not in header]
    strangers = [name for name in header if name not in COLUMNS]
    for name in missing:
        close = difflib.get_close_matches(name, strangers, n=1, cutoff=0.75)
        if close:
            raise InputError(f"unknown column {close[0]!r}", place=Place(file, 1), hint=f"did you mean {name}?")
        if name in REQUIRED:
            near = difflib.get_close_matches(name, strangers, n=1, cutoff=0.4)
            hint = f"did you mean it by {near[0]!r}?" if near else f"expected {', '.join(REQUIRED)} and more"
            raise InputError(f"column {name!r} is missing", place=Place(file, 1), hint=hint)


def _row(record: dict, file: str, line: int) -> Row:
    if None in record:
        raise InputError("has more fields than the header", place=Place(file, line))

    def text(name: str) -> str:
        return (record.get(name) or "").strip()

    for name in REQUIRED:
        if not text(name):
            raise InputError("is empty", place=Place(file, line, name))
    counts = {name: _count(text(name), Place(file, line, name)) for name in _COUNTS}
    return Row(
        file=file, line=line, source=text("source") or Path(file).stem, source_date=text("source_date"),
        engine=text("engine"), engine_version=text("engine_version"), model=text("model"),
        weight_dtype=text("weight_dtype"), kv_dtype=text("kv_dtype"), gpu=text("gpu"), isl=text("isl"), osl=text("osl"),
        load=text("concurrency_or_rate"), metric=text("metric"), value=number(text("value"), Place(file, line, "value")),
        notes=text("notes"), load_kind=_kind(text("load_kind")), table_id=text("table_id") or text("source") or Path(file).stem,
        **counts,
    )  # fmt: skip


def _kind(text: str) -> str:
    plain = re.sub(r"[\s-]+", "_", text.lower())
    return _PLAIN_KINDS.get(plain, plain)


def number(text: str, place: Place) -> float:
    """A measured figure.

    Raises:
        InputError: not a number above 0.
    """
    try:
        value = float(text.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text) else text)
    except ValueError:
        raise InputError(f"expected a number, found {text!r}", place=place) from None
    if not math.isfinite(value) or value <= 0:
        raise InputError(f"expected a number above 0, found {text!r}", place=place)
    return value


def _count(text: str, place: Place) -> int:
    if not text:
        return 0
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"expected a whole number, found {text!r}", place=place) from None
    if not 1 <= value <= 1e6 or value != int(value):
        raise InputError(f"expected a whole number from 1 to a million, found {text!r}", place=place)
    return int(value)
