"""Writing traffic in our own format, one request a line (see `workloads.readers.jsonl`)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

from workloads.errors import OutputError
from workloads.traffic import SpanTable, Traffic, private_content
from workloads.transform import roots_of


def write_jsonl(traffic: Traffic, path: str | Path) -> None:
    """Write `traffic` to `path`, gzipped if that ends in `.gz`.

    Reading it back gives the same columns, bit for bit. Equal traffic gives equal bytes: no time and no file
    name goes into the gzip header. Columns that say nothing (no declared limit, priority 0, one sample, a
    private prompt) are left out.

    Raises:
        OutputError: the file cannot be written.
    """
    path = Path(path)
    data = to_lines(traffic).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, 9, mtime=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def to_lines(traffic: Traffic) -> str:
    """The text of the file."""
    parent, arrival = traffic.parent.tolist(), traffic.arrival.tolist()
    root = roots_of(traffic).tolist()
    optional = [
        (name, getattr(traffic, name).tolist(), default)
        for name, default in (("max_tokens", 0), ("priority", 0), ("n", 1))
        if np.any(getattr(traffic, name) != default)
    ]
    think = traffic.think.tolist()
    inputs, outputs = traffic.input_tokens.tolist(), traffic.output_tokens.tolist()
    dumps = json.JSONEncoder(separators=(",", ":")).encode
    lines = []
    for row in range(len(traffic)):
        item: dict[str, object] = {}
        if parent[row] < 0 or arrival[row] != arrival[root[row]]:
            item["arrival"] = arrival[row]
        item["input_tokens"] = inputs[row]
        item["output_tokens"] = outputs[row]
        for name, values, default in optional:
            if values[row] != default:
                item[name] = values[row]
        if parent[row] >= 0:
            item["parent"] = parent[row]
        if think[row]:
            item["think"] = think[row]
        if traffic.spans is not None and (spans := _spans(traffic.spans, row, inputs[row])):
            item["spans"] = spans
        lines.append(dumps(item))
    return "\n".join(lines) + "\n"


def _spans(table: SpanTable, row: int, length: int) -> list[list[int]] | None:
    """The spans of a row, None if they are its private words alone."""
    part = slice(table.start[row], table.start[row + 1])
    columns = (table.content[part], table.offset[part], table.length[part])
    spans = [list(span) for span in zip(*(column.tolist() for column in columns), strict=True)]
    return None if spans == [[private_content(row), 0, length]] else spans
