"""Numbers with units, as people write them in a workload file: `10min`, `500ms`, `1h30min`, `40GB`, `40GiB`.

Nothing is guessed: a bare number where the key does not carry the unit is an error, and so are units that mean two
things (`m`, `Gb`, `K`). Durations become seconds, sizes become bytes.

Every function raises `ValueError` with a message for the user; the caller knows the place.
"""

from __future__ import annotations

import math
import re

SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {
    "B": 1,
    **{f"{prefix}B": 1000 ** (power + 1) for power, prefix in enumerate(("k", "M", "G", "T"))},
    "KB": 1000,
    **{f"{prefix}iB": 1024 ** (power + 1) for power, prefix in enumerate(("K", "M", "G", "T"))},
}

BITS = {f"{prefix}bit": 1000**power / 8 for prefix, power in (("M", 2), ("G", 3), ("T", 4))}

# How an ambiguous or sloppy unit is answered.
_DURATION_HINTS = {
    "m": "min for minutes, ms for milliseconds",
    "sec": "s", "secs": "s", "second": "s", "seconds": "s", "S": "s",
    "mins": "min", "minute": "min", "minutes": "min", "hr": "h", "hrs": "h", "hour": "h", "hours": "h",
    "day": "d", "days": "d", "msec": "ms", "MS": "ms", "Ms": "ms", "usec": "us",
}  # fmt: skip
_AMOUNT = r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9]+)"
_PART = re.compile(rf"\s*{_AMOUNT}\s*([^\W\d_]*)\s*")


def parse_duration(value: object) -> float:
    """Seconds of a duration such as `90s`, `1.5s`, `500ms` or `1h30min`; finite and not negative."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected a duration such as 10min or 500ms, got {_shown(value)}")
    if not isinstance(value, str):
        raise ValueError(f"expected a duration with its unit, got the bare number {value!r}; write {value}s")
    total, at = 0.0, 0
    text = value.strip()
    while at < len(text) or not text:
        part = _PART.match(text, at)
        if part is None:
            raise ValueError(f"expected a duration such as 10min or 500ms, got {_shown(value)}")
        total += float(part[1]) * _factor(part[1], part[2], SECONDS, _DURATION_HINTS, "10min or 500ms")
        at = part.end()
    return _finite(total, value)


def parse_bytes(value: object) -> int:
    """Bytes of a size such as `40GB` (decimal), `40GiB` (binary) or `512B`; a whole number, rounded."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected a size such as 40GB or 40GiB, got {_shown(value)}")
    if not isinstance(value, str):
        raise ValueError(f"expected a size with its unit, got the bare number {value!r}; write {value}GB or {value}GiB")
    part = _PART.fullmatch(value)
    if part is None:
        raise ValueError(f"expected a size such as 40GB or 40GiB, got {_shown(value)}")
    hints = {unit: f"{_canonical(unit)}" for unit in [part[2]] if _canonical(unit)}
    size = float(part[1]) * _factor(part[1], part[2], BYTES, hints, "40GB or 40GiB")
    return round(_finite(size, value))


def parse_bandwidth(value: object) -> float:
    """Bytes a second of a bandwidth such as `50GB/s` or `400Gbit/s`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected a bandwidth such as 50GB/s or 400Gbit/s, got {_shown(value)}")
    if not isinstance(value, str):
        raise ValueError(f"expected a bandwidth with its unit, got the bare number {value!r}; write {value}GB/s")
    size, slash, rest = (part.strip() for part in value.partition("/"))
    part = _PART.fullmatch(size)
    if not slash or rest != "s" or part is None:
        raise ValueError(f"expected a bandwidth such as 50GB/s or 400Gbit/s, got {_shown(value)}")
    hints = {
        unit: f"{unit[:-1]}Bit for bits, {unit[:-1]}B for bytes".replace("Bit", "bit") for unit in ("Gb", "Mb", "Tb")
    }
    return _finite(float(part[1]) * _factor(part[1], part[2], {**BYTES, **BITS}, hints, "50GB/s or 400Gbit/s"), value)


def parse_milliseconds(value: object) -> float:
    """Milliseconds for a key that carries the unit (`ttft_ms`): a number, or a duration with its own unit."""
    return _carried(value, lambda text: parse_duration(text) * 1e3, "a number of milliseconds")


def parse_gibibytes(value: object) -> float:
    """GiB for a key that carries the unit (`swap_gib`): a number, or a size with its own unit."""
    return _carried(value, lambda text: parse_bytes(text) / 2**30, "a number of GiB")


def _carried(value: object, parse, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected {what}, got {_shown(value)}")
    number = parse(value) if isinstance(value, str) else float(value)
    return _finite(number, value)


def _factor(amount: str, unit: str, units: dict, hints: dict[str, str], examples: str) -> float:
    if unit in units:
        return units[unit]
    if not unit:
        raise ValueError(f"expected a unit after {amount}, such as {examples}")
    if unit in hints:
        raise ValueError(f"unknown unit {unit!r}; write {hints[unit]}")
    raise ValueError(f"unknown unit {unit!r}; expected one of {', '.join(units)}")


def _canonical(unit: str) -> str:
    """How a size unit with the wrong capitals, or without its B, is written; "" where nothing is near."""
    if unit in ("b", "Kb", "kb", "Mb", "Gb", "Tb"):
        return f"{unit[:-1]}B or {unit[:-1].upper()}iB for bytes (lower-case b means bits)" if unit != "b" else "B"
    by_lower = {name.lower(): name for name in BYTES}
    if unit.lower() in by_lower:
        return by_lower[unit.lower()]
    if unit.lower() in ("k", "m", "g", "t"):
        return f"{'k' if unit.lower() == 'k' else unit.upper()}B or {unit.upper()}iB"
    return f"{unit[0].upper()}iB" if unit.lower() in ("ki", "mi", "gi", "ti") else ""


def _finite(number: float, value: object) -> float:
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"expected a finite number that is not negative, got {_shown(value)}")
    return number


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
