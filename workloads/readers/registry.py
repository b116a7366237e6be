"""The trace formats, by name."""

from __future__ import annotations

import inspect
import json
import re
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from workloads.errors import InputError, Place, unknown_name
from workloads.readers import azure, burstgpt, jsonl, lengths, measured
from workloads.readers.azure import read_azure
from workloads.readers.burstgpt import read_burstgpt
from workloads.readers.files import existing, read_text
from workloads.readers.jsonl import read_jsonl
from workloads.readers.lengths import INPUTS, plain, read_lengths
from workloads.readers.measured import read_served, read_vllm
from workloads.readers.mooncake import read_mooncake
from workloads.readers.servegen import holds_statistics, read_servegen
from workloads.readers.sharegpt import read_sharegpt
from workloads.readers.table import separator
from workloads.registry import resolve
from workloads.traffic import Traffic

GROUP = "twinserve.trace_readers"


class TraceReader(Protocol):
    """A function from a file to traffic.

    Options are keyword arguments of its own, and are checked against its signature. Where it has one called
    `seed` it is given the seed; where it has `start` and `duration` it is given the window to read, in
    seconds.
    """

    def __call__(self, path: Path, **options: Any) -> Traffic: ...


FORMATS: dict[str, TraceReader] = {
    "azure": read_azure,
    "burstgpt": read_burstgpt,
    "mooncake": read_mooncake,
    "sharegpt": read_sharegpt,
    "servegen": read_servegen,
    "twinserve": read_jsonl,
    "csv": read_lengths,
    "run": read_served,
    "vllm": read_vllm,
}

READS: dict[str, str] = {
    "azure": f"{azure.TIME}, {azure.INPUT}, {azure.OUTPUT}",
    "burstgpt": f"{burstgpt.TIME}, {burstgpt.INPUT}, {burstgpt.OUTPUT}; Model and Log Type to filter by",
    "mooncake": "timestamp (ms), input_length, output_length, hash_ids",
    "sharegpt": "conversations of turns",
    "servegen": "its folder or archive of statistics",
    "twinserve": f"{jsonl.KNOWN[0]} (s or date), {', '.join(jsonl.KNOWN[1:])}",
    "csv": f"input: {' | '.join(lengths.INPUTS)}; output: {' | '.join(lengths.OUTPUTS)}; time (s or date), which may be "
    f"missing: {' | '.join(lengths.TIMES)}, with _ms, _us or _ns behind if so; others by "
    "input_column, output_column, time_column",
    "run": f"a run folder, or its {measured.REQUESTS}",
    "vllm": f"{', '.join(measured.LISTS)} of a result with --save-detailed",
}  # fmt: skip
"""Columns or fields that the built-in formats read."""

_FILES = {
    "azure": "a .csv file",
    "burstgpt": "a .csv file",
    "csv": "a .csv file",
    "mooncake": "a .jsonl file",
    "twinserve": "a .jsonl file",
    "sharegpt": "a .json file",
    "vllm": "a .json file",
}
_ENDINGS = (".csv", ".jsonl", ".json")


def find_reader(name: str) -> TraceReader:
    """The reader of a format: a built-in, an installed plug-in, or `package.module:function`.

    Raises:
        InputError: no such format, with the nearest names.
    """
    return resolve("trace format", name, FORMATS, GROUP, place=Place(key="format"))


def options_of(reader: TraceReader) -> list[str]:
    """Names of the keyword options a reader takes."""
    return [p.name for p in inspect.signature(reader).parameters.values() if p.kind == p.KEYWORD_ONLY]


def call_reader(reader: TraceReader, path: Path, options: Mapping[str, Any], offered: Mapping[str, Any]) -> Traffic:
    """Run a reader with the user's `options` and those of `offered` that it takes.

    Raises:
        InputError: an option that the reader does not have.
    """
    parameters = inspect.signature(reader).parameters
    anything = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    for name in options:
        if name not in parameters and not anything:
            raise unknown_name("option", name, options_of(reader), place=Place(key=name))
    taken = {name: value for name, value in offered.items() if name in parameters}
    return reader(path, **taken, **options)


def check_folder(path: Path, format: str | None) -> None:
    """Refuse a folder where a format of ours reads a file; what a plug-in reads is its own affair.

    Args:
        format: None where nobody named one and the folder does not tell it.

    Raises:
        InputError: naming what was expected, and what of it lies in the folder.
    """
    if not path.is_dir() or format in ("servegen", "run") or (format is not None and format not in FORMATS):
        return
    expected = _FILES.get(format or "", "a trace file")
    endings = tuple(ending + zipped for ending in re.findall(r"\.\w+", expected) or _ENDINGS for zipped in ("", ".gz"))
    there = sorted(file.name for file in path.iterdir() if file.name.endswith(endings))
    if format is None:
        message = (
            "is a folder with neither a run (run.json) nor ServeGen's statistics (chunk-*-trace.csv), which alone are read "
            "from a folder"
        )
    else:
        message = f"is a folder; format {format} reads {expected}, plain or .gz"
    hint = f"name one of its files: {', '.join(there[:5])}{', …' if len(there) > 5 else ''}" if there else None
    raise InputError(
        message, place=Place(str(path)), hint=hint or "name a file: there is none of that kind in the folder"
    )


def _is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError, zlib.error):  # gzip that was cut short: whoever reads it says so
        return False


def guess_format(path: str | Path) -> str:
    """The format of a file by what is in it.

    Raises:
        InputError: it looks like none of the known formats.
    """
    path = existing(path)
    if (path / measured.RUN).is_file() or path.name == measured.RUN or path.suffix == ".parquet":
        return "run"
    if path.is_dir():
        check_folder(path, "servegen" if holds_statistics(path) else None)
        return "servegen"
    if path.name.endswith((".tar.gz", ".tgz", ".tar")) or _is_tar(path):
        return "servegen"
    head = read_text(path).lstrip()[:65_536]
    line = head.partition("\n")[0].strip()
    if measured.is_vllm(head):
        return "vllm"
    if line.startswith("["):
        return "sharegpt"
    if line.startswith("{"):
        try:
            keys = set(json.loads(line))
        except ValueError:
            keys = set()
        if keys & {"hash_ids", "input_length"}:
            return "mooncake"
        if keys & {"input_tokens", "output_tokens"}:
            return "twinserve"
    mark = separator(line)
    columns = [name.strip().strip('"') for name in line.split(mark)]
    names = set(columns)
    if "ContextTokens" in names:
        return "azure"
    if "Request tokens" in names:
        return "burstgpt"
    if {plain(name) for name in names} & set(INPUTS):
        return "csv"
    if len(columns) > 1 and not line.startswith("{"):
        raise InputError(
            f"cannot tell the format: none of the columns {', '.join(columns)[:200]} is a known name of input lengths",
            place=Place(str(path), 1),
            hint="of a CSV file name them: format: csv with input_column, output_column and, if it has times, time_column",
        )
    raise InputError(
        f"cannot tell the format from its first line {line[:60]!r}",
        place=Place(str(path), 1),
        hint=f"name it with format: {', '.join(FORMATS)}",
    )
