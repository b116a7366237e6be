"""Azure's LLM inference traces of 2023 and 2024 (Azure/AzurePublicDataset; Splitwise, ISCA 2024)."""

from __future__ import annotations

from pathlib import Path

from workloads.errors import InputError, Place
from workloads.readers.files import stem
from workloads.readers.table import Table
from workloads.readers.times import in_order
from workloads.traffic import Traffic

TIME, INPUT, OUTPUT = "TIMESTAMP", "ContextTokens", "GeneratedTokens"


def read_azure(path: Path, *, drop_zero: bool = False) -> Traffic:
    """CSV with TIMESTAMP (date and time, to 100 ns), ContextTokens, GeneratedTokens; the first comes at 0.

    Args:
        path: plain or gzipped file.
        drop_zero: leave out rows with a length of 0 instead of refusing the file.
    """
    table = Table(path)
    table.need((TIME, INPUT, OUTPUT), "an Azure trace")
    moments = table.moments(TIME)
    least = 0 if drop_zero else 1
    inputs, outputs = table.whole(INPUT, least), table.whole(OUTPUT, least)
    good = (inputs > 0) & (outputs > 0)
    if not good.any():
        raise InputError("every row has a length of 0", place=Place(str(path)))
    moments, inputs, outputs = moments[good], inputs[good], outputs[good]
    # whole nanoseconds are subtracted before they become floats, which keeps all seven digits
    first = int(moments.min())
    traffic = Traffic((moments - first) / 1e9, inputs, outputs, name=stem(path))
    start = table.text(TIME)[int(moments.argmin())] if good.all() else None
    traffic.notes.append(f"time stamps shifted so that the first{f', {start},' if start else ''} is 0")
    if not good.all():
        traffic.notes.append(f"dropped {int((~good).sum()):,} rows with a length of 0")
    return in_order(traffic)
