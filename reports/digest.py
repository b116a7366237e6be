"""Digests of a run's columns: whether two simulated runs are the same to the last bit, and where they are not."""

from __future__ import annotations

import hashlib

import numpy as np

from reports.columns import REQUESTS, STEPS, TIMELINE, TOKENS
from reports.run_data import RunData


def column_digests(data: RunData) -> dict[str, str]:
    """Hex digest of every column by "table.column"; a column without values has one too.

    Never-times (NaN) are equal to each other. Nothing of the host goes in.
    """
    found = {}
    for table, source in (
        (REQUESTS, data.requests), (TOKENS, data.tokens), (STEPS, data.tokens), (TIMELINE, data.timeline),
    ):  # fmt: skip
        for name, dtype in table.columns_of(source).items():
            values = getattr(source, name)
            found[f"{table.file.partition('.')[0]}.{name}"] = _digest(values, dtype)
    return found


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Columns whose digests differ, or that only one side has, in order."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def _digest(values: np.ndarray, dtype: type) -> str:
    if dtype is np.object_:
        content = "\0".join(str(v) for v in values).encode("utf-8", "replace")
    elif dtype is np.float64:
        plain = np.array(values, "<f8") + 0.0  # -0.0 is 0.0
        plain[np.isnan(plain)] = np.nan
        content = plain.tobytes()
    else:
        content = np.ascontiguousarray(values, "<i8").tobytes()
    return hashlib.sha256(content).hexdigest()[:16]
