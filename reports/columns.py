"""The Parquet files of a run folder: which columns they have, and the same bytes for the same run.

Written through pyarrow alone, with every option that shapes the bytes pinned; nothing of the time of writing goes in.
pyarrow takes a while to import and is loaded on the first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from workloads.errors import InputError, Place

UNKNOWN_IN_SIMULATION = ("device_seconds", "host_seconds")
"""Columns of the timeline that only a real engine fills; NaN otherwise."""
UNKNOWN_FROM_OUTSIDE = tuple(f"kv_{kind}" for kind in ("used", "cached", "reserved", "internal", "external", "free"))
"""Columns of the timeline that a server's client cannot see, where the server does not tell them; NaN then."""
_INT, _FLOAT, _TEXT = np.int64, np.float64, np.object_


@dataclass(frozen=True, slots=True)
class Table:
    """One file: its name and the dtype of every column.

    `since`: of columns that older runs lack, the schema version that brought them; all of them are floats, NaN where lacking.
    `optional`: columns that only some runs have; None elsewhere.
    """

    file: str
    columns: dict[str, type]
    since: dict[str, int] = field(default_factory=dict)
    optional: tuple[str, ...] = ()

    def columns_of(self, source: object) -> dict[str, type]:
        """The columns that `source` has."""
        there = self.columns.items()
        return {n: dtype for n, dtype in there if n not in self.optional or getattr(source, n) is not None}


REQUESTS = Table(
    "requests.parquet",
    dict.fromkeys(("request", "session", "turn"), _INT)
    | {"priority": np.int32}
    | dict.fromkeys(("scheduled", "sent", "queued", "admitted", "first_token", "finish"), _FLOAT)
    | dict.fromkeys(("input_tokens", "max_tokens", "output_tokens", "target_tokens"), _INT)
    | dict.fromkeys(("cached_tokens", "recomputed_tokens", "preemptions"), _INT)
    | dict.fromkeys(("status", "reason"), _TEXT)
    | dict.fromkeys(("replica", "decode_replica", "moved_tokens"), _INT)
    | dict.fromkeys(("prefilled", "handed", "reserved", "moving", "received"), _FLOAT),
    optional=("replica", "decode_replica", "moved_tokens", "prefilled", "handed", "reserved", "moving", "received"),
)
TOKENS = Table("tokens.parquet", {"request": _INT, "start": _FLOAT, "first_step": _INT, "steps": _INT})
STEPS = Table("steps.parquet", {"step_ends": _FLOAT})
TIMELINE = Table(
    "timeline.parquet",
    dict.fromkeys(("time", "running", "waiting", "swapped"), _FLOAT)
    | dict.fromkeys(UNKNOWN_FROM_OUTSIDE, _FLOAT)
    | dict.fromkeys(("steps", "prefill_tokens", "decode_tokens", "output_tokens", "arrivals", "finished"), _INT)
    | dict.fromkeys(("refused", "preemptions", "cached_tokens"), _INT)
    | dict.fromkeys(("busy", *UNKNOWN_IN_SIMULATION), _FLOAT),
    since=dict.fromkeys(UNKNOWN_IN_SIMULATION, 2),
)
TABLES = (REQUESTS, TOKENS, STEPS, TIMELINE)
CLIENT = Table(
    "client.parquet",
    dict.fromkeys(("request", "counted_input", "counted_output", "chunks", "first_chunk", "http_status"), _INT)
    | dict.fromkeys(("begun", "any_chunk", "stream_end"), _FLOAT)
    | {"kind": _TEXT},
)
"""Only runs on a remote server have it."""


def write_table(table: Table, source: object, folder: Path) -> None:
    """Write the columns of `table` that `source` has as attributes. NaN stays NaN: it means "never"."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = table.columns_of(source)
    arrays = [arrow_array(getattr(source, name), dtype) for name, dtype in columns.items()]
    pq.write_table(
        pa.Table.from_arrays(arrays, list(columns)),
        folder / table.file,
        compression="zstd",
        compression_level=3,
        row_group_size=1 << 20,
        data_page_size=1 << 20,
        version="2.6",
        data_page_version="1.0",
        use_dictionary=[name for name, dtype in columns.items() if dtype is not _FLOAT],
        write_statistics=True,
        store_schema=False,
    )


def arrow_array(values: Sequence | np.ndarray, dtype: type, missing: Sequence[bool] | None = None) -> object:
    """Values as an Arrow array, text where `dtype` is `np.object_`; null where `missing`.

    Made from buffers: `pa.array` would import pandas, which takes half a second.
    """
    import pyarrow as pa

    valid = None
    if missing is not None and any(missing):
        valid = pa.py_buffer(np.packbits(~np.asarray(missing, bool), bitorder="little"))
    if dtype is _TEXT:
        texts = [_encoded(v) for v in values]
        ends = np.zeros(len(texts) + 1, np.int32)
        np.cumsum([len(text) for text in texts], out=ends[1:])
        return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(texts)), valid)
    plain = np.ascontiguousarray(values, dtype)
    return pa.Array.from_buffers(pa.from_numpy_dtype(plain.dtype), len(plain), [valid, pa.py_buffer(plain)])


def read_table(table: Table, folder: Path, version: int) -> dict[str, np.ndarray | None]:
    """The columns of a file as arrays that may be written to.

    Args:
        version: of the schema that the folder was written in; columns that came later may be missing, and are NaN then.

    Raises:
        InputError: the file is missing, is not Parquet, or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / table.file
    place = Place(file=str(path))
    if not path.is_file():
        raise InputError("the run folder lacks this file", place=place, hint="run the workload again")
    try:
        # a plain file, so that a folder named like "model=llama" is not taken for a partition
        with pq.ParquetFile(path) as file:
            there = [name for name in table.columns if name in file.schema_arrow.names]
            absent = [name for name in table.columns if name not in there]
            lacking = [name for name in absent if name not in table.optional]
            if missing := [name for name in lacking if table.since.get(name, 0) <= version]:
                raise InputError(
                    f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
                    place=place,
                    hint="the folder was written by another version; run the workload again",
                )
            read = file.read(columns=there)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"is not a readable Parquet file ({error})", place=place) from error
    unknown = {name: None if name in table.optional else np.full(read.num_rows, np.nan) for name in absent}
    return {
        name: unknown[name] if name in unknown else _array(read.column(name), dtype, name, place)
        for name, dtype in table.columns.items()
    }


def _array(column: object, dtype: type, name: str, place: Place) -> np.ndarray:
    import pyarrow as pa

    if column.null_count:
        raise InputError(f"column {name} has {column.null_count} empty values", place=place)
    if dtype is _TEXT:
        return np.array(column.to_pylist(), dtype=object)
    try:
        chunks = column.cast(pa.from_numpy_dtype(np.dtype(dtype))).chunks
    except pa.ArrowException as error:
        raise InputError(f"column {name} does not hold numbers ({error})", place=place) from error
    # through DLPack, since `to_numpy` would import pandas
    return np.concatenate([np.from_dlpack(chunk) for chunk in chunks] or [np.zeros(0, dtype)])


def _encoded(text: object) -> bytes:
    """Text as UTF-8; what it cannot hold, lone surrogates from undecodable file names, is replaced."""
    return str(text).encode("utf-8", "replace")
