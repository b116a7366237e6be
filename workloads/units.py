"""Quantities as people write them: `10min`, `500ms`, `40GiB` next to plain numbers.

A plain number is in the base unit (seconds, bytes). Nothing is guessed: an unknown unit is an error.
"""

from __future__ import annotations

import math
import re

from workloads.errors import InputError, Place

SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ]*)\s*")


def seconds(value: object, *, place: Place | None = None) -> float:
    """A span of time in seconds, from a number of seconds or text with a unit (`500ms`, `10min`, `1.5h`).

    Raises:
        InputError: not a number with a known unit, or not finite.
    """
    units = ", ".join(SECONDS)
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match is None or (match[2] and match[2] not in SECONDS):
            raise InputError(f"{value!r} is not a span of time", place=place, hint=f"e.g. 10min; units: {units}")
        return float(match[1]) * SECONDS[match[2] or "s"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"expected a span of time, not {value!r}", place=place, hint="e.g. 10min, 500ms or 30")
    return float(value)
