"""Reading fields of files that others wrote: types are checked, what was not looked at can be told."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from reports.wording import clean
from workloads.errors import InputError, Place

_STATISTIC = re.compile(r"(mean|median|std|p\d{1,2}(?:\.\d+)?)_(ttft|tpot|itl|e2el|e2e_latency)_ms")
MOST_TOLD = 6
MOST_TOKENS, MOST_SECONDS = 1e8, 1e12
"""Of one request; and of any time or clock (an epoch in seconds is near 2e9). What is beyond was written by mistake."""
_MOST_WHOLE, _MOST = 2**53, 1e15


class Fields:
    """A JSON object whose fields are asked for by name; whatever is never asked for is unknown here."""

    def __init__(self, raw: Any, file: str, where: str = "") -> None:
        self.where, self.file = where, file
        if not isinstance(raw, dict):
            raise self.error("", "must be an object")
        self.raw: dict[str, Any] = raw
        self.used: set[str] = set()

    def error(self, key: str, message: str) -> InputError:
        """An error about a key of this object."""
        path = ".".join(part for part in (self.where, key) if part)
        return InputError(message, place=Place(file=self.file, key=path or None))

    def get(self, key: str) -> Any:
        """Whatever is there; None where nothing is."""
        self.used.add(key)
        return self.raw.get(key)

    def number(
        self,
        key: str,
        *,
        above: float | None = None,
        most: float | None = None,
        needed: bool = False,
        finite: bool = False,
    ) -> float | None:
        """A finite number that is not negative; None where it is missing, null, or not finite.

        Args:
            above: the number must be more than this.   most: and not more than this.   needed: None is an error too.
            finite: infinity is an error.
        """
        value = self.get(key)
        if value is None and not needed:
            return None
        if isinstance(value, str) and value.strip().lower() in ("inf", "infinity", "nan"):
            value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(
                key, f"must be a number, is {clean(repr(value), 60)}" if value is not None else "is missing"
            )
        if isinstance(value, float) and not math.isfinite(value):
            if needed or (finite and math.isinf(value)):
                raise self.error(key, "must be a finite number")
            return None
        self._bounded(key, value, most)
        if above is not None and not value > above:
            raise self.error(key, f"must be more than {above:g}, is {value:g}")
        return float(value)

    def _bounded(self, key: str, value: float, most: float | None) -> None:
        """Refuse what no benchmark can have measured; huge integers are compared before they become floats."""
        most = most if most is not None else _MOST if isinstance(value, float) else _MOST_WHOLE
        if value > most:
            raise self.error(key, f"must not be more than {most:g}")
        if value < 0:
            raise self.error(key, f"must not be negative, is {value:g}" if value >= -_MOST else "must not be negative")

    def count(self, key: str, *, needed: bool = False) -> int | None:
        """A whole number that is not negative."""
        value = self.number(key, needed=needed)
        if value is None:
            return None
        if value != int(value):
            raise self.error(key, f"must be a whole number that is not negative, is {value:g}")
        return int(value)

    def text(self, key: str) -> str | None:
        """Text; None where it is missing or is something else."""
        value = self.get(key)
        return value if isinstance(value, str) else None

    def inner(self, key: str) -> Fields:
        """An object inside; an empty one where it is missing or null."""
        value = self.get(key)
        path = ".".join(part for part in (self.where, key) if part)
        return Fields({} if value is None else value, self.file, path)

    def items(self, key: str) -> list | None:
        """A list; None where it is missing."""
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise self.error(key, "must be a list")
        return value

    def numbers(self, key: str, size: int | None = None, *, most: float = MOST_SECONDS) -> list[float] | None:
        """A list of finite numbers that are not negative, null as NaN; None where it is missing.

        Args:
            size: how many there have to be.   most: that none may be more than.
        """
        values = self.items(key)
        if values is None:
            return None
        if size is not None and len(values) != size:
            raise self.error(key, f"has {len(values)} entries where there are {size} requests")
        return [
            float("nan") if value is None else self._entry(f"{key}[{i}]", value, most) for i, value in enumerate(values)
        ]

    def gaps(self, key: str, size: int) -> list[list[float]] | None:
        """Seconds between the chunks of each of `size` requests; None where it is missing."""
        lists = self.items(key)
        if lists is None:
            return None
        if len(lists) != size or not all(isinstance(g, list) for g in lists):
            raise self.error(key, f"must be a list for each of {size} requests")
        return [
            [self._entry(f"{key}[{i}][{j}]", value, MOST_SECONDS) for j, value in enumerate(gaps)]
            for i, gaps in enumerate(lists)
        ]

    def _entry(self, key: str, value: Any, most: float) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(key, f"must be a number, is {clean(repr(value), 60)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.error(key, "must be a finite number")
        self._bounded(key, value, most)
        return float(value)

    def unknown(self) -> list[str]:
        """Keys that nobody asked for, in order."""
        return [key for key in self.raw if key not in self.used]


def statistics(fields: Fields) -> dict[str, float | None]:
    """Every `mean_ttft_ms`-like field of a flat object, by our names; `e2e_latency` is our `e2el`."""
    found = {}
    for key in fields.raw:
        match = _STATISTIC.fullmatch(key)
        if match:
            value = fields.number(key, finite=True)
            found[f"{match[1]}_{match[2].replace('e2e_latency', 'e2el')}_ms"] = value
    return found


def spread(
    fields: Fields, name: str, factor: float, *, mean: str = "mean", std: str = "std"
) -> dict[str, float | None]:
    """A distribution given as an object of statistics, as `mean_<name>` … of our summary.

    Args:
        fields: with `mean`, `median`, `p90` …, some perhaps in an inner `percentiles`.
        factor: what values are multiplied by.
    """
    inner = fields.inner("percentiles") if isinstance(fields.raw.get("percentiles"), dict) else Fields({}, fields.file)
    found: dict[str, float | None] = {
        f"mean_{name}": fields.number(mean, finite=True),
        f"std_{name}": fields.number(std, finite=True),
    }
    for stat, keys in (
        ("median", ("median", "p50", "p050")), ("p50", ("p50", "p050", "median")), ("p90", ("p90", "p090")),
        ("p95", ("p95", "p095")), ("p99", ("p99", "p099")),
    ):  # fmt: skip
        values = [v for source in (fields, inner) for key in keys if (v := source.number(key, finite=True)) is not None]
        found[f"{stat}_{name}"] = values[0] if values else None
    return {key: None if value is None else value * factor for key, value in found.items()}


def told_unknown(keys: list[str], version: str = "") -> tuple[str, ...]:
    """A sentence on fields that are not known here; none where all are."""
    if not keys:
        return ()
    shown = ", ".join(clean(key, 40) for key in keys[:MOST_TOLD])
    more = f" and {len(keys) - MOST_TOLD} more" if len(keys) > MOST_TOLD else ""
    return (f"fields not known here and not used: {shown}{more}{f' (written by {version})' if version else ''}",)


def read_json(path: Path) -> Any:
    """Parse JSON as other tools write it, with NaN and Infinity.

    Raises:
        InputError: it cannot be read or parsed.
    """
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON ({error})", place=Place(file=str(path))) from None


def read_lines(path: Path) -> list[tuple[int, Any]]:
    """(line number, parsed) of every line of a JSONL file that is not blank.

    Raises:
        InputError: naming the line.
    """
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            try:
                found.append((number, json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise InputError(f"is not JSON ({error})", place=Place(file=str(path), line=number)) from None
    if not found:
        raise InputError("is empty", place=Place(file=str(path)))
    return found


def read_text(path: Path) -> str:
    """A file as text.

    Raises:
        InputError: it cannot be read or is no text.
    """
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"cannot be read: {reason}", place=Place(file=str(path))) from None
