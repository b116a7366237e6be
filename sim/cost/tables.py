"""Measured kernel times behind the operator interface.

A table is one tidy CSV or Parquet file, one timing a row, with the columns

    op, dtype, m, n, k, batch, seq, heads, kv_heads, head_dim, ways, bytes, us

of which each `op` uses its own: `gemm` (dtype, m, n, k), `attn_decode` and `attn_prefill` (dtype of the cache, batch,
seq, heads, kv_heads, head_dim; heads per GPU; prefill without a past), `all_reduce` (ways, bytes). Other columns are
ignored. `us` is one call on one GPU in microseconds.

Inside its grid a table is interpolated linearly in the logarithms of size and time; outside it, and for shapes it does
not have, the analytic operator answers.
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import exp, log
from pathlib import Path
from typing import Any

from sim.cost.operators import Operator, Work
from workloads.errors import InputError, Place

_SHAPES = {
    "gemm": ("dtype", "n", "k"),
    "attn_decode": ("dtype", "heads", "kv_heads", "head_dim"),
    "attn_prefill": ("dtype", "heads", "kv_heads", "head_dim"),
    "all_reduce": ("ways",),
}
_SIZES = {
    "gemm": ("m",),
    "attn_decode": ("batch", "seq"),
    "attn_prefill": ("batch", "seq"),
    "all_reduce": ("bytes",),
}
_DTYPES = {"bfloat16": "bf16", "float16": "bf16", "fp16": "bf16", "half": "bf16"}


class Curve:
    """Time over one size, linear in logarithms between measured points."""

    def __init__(self, points: Mapping[float, float]) -> None:
        self.sizes = sorted(points)
        self._x = [log(size) for size in self.sizes]
        self._y = [log(points[size]) for size in self.sizes]

    def at(self, size: float) -> float | None:
        """Microseconds at `size`; None outside the measured range."""
        if not self.sizes[0] <= size <= self.sizes[-1]:
            return None
        x = log(size)
        i = max(bisect_left(self.sizes, size), 1) if len(self.sizes) > 1 else 0
        if i == 0:
            return exp(self._y[0])
        x0, x1, y0, y1 = self._x[i - 1], self._x[i], self._y[i - 1], self._y[i]
        return exp(y0 + (y1 - y0) * (x - x0) / (x1 - x0))


class Surface:
    """Time over (batch, length): a curve for every measured batch, joined in the logarithm of the batch."""

    def __init__(self, points: Mapping[tuple[float, float], float]) -> None:
        by_batch: dict[float, dict[float, float]] = defaultdict(dict)
        for (batch, length), us in points.items():
            by_batch[batch][length] = us
        self.batches = sorted(by_batch)
        self._curves = [Curve(by_batch[batch]) for batch in self.batches]

    def at(self, batch: float, length: float) -> float | None:
        """Microseconds; None where the grid does not reach."""
        if not self.batches[0] <= batch <= self.batches[-1]:
            return None
        i = bisect_left(self.batches, batch)
        if self.batches[i] == batch:
            return self._curves[i].at(length)
        low, high = self._curves[i - 1].at(length), self._curves[i].at(length)
        if low is None or high is None:
            return None
        x0, x1 = log(self.batches[i - 1]), log(self.batches[i])
        return exp(log(low) + (log(high) - log(low)) * (log(batch) - x0) / (x1 - x0))


class Measured:
    """A table's answer where it has one, the analytic operator's elsewhere."""

    def __init__(self, fallback: Operator, source: str) -> None:
        self.fallback = fallback
        self.source = f"{source}; outside its grid: {fallback.source}"

    def lookup(self, *size: float) -> float | None:
        """Microseconds from the table, or None."""
        raise NotImplementedError

    def seconds(self, *size: float) -> float:
        """Duration of one call."""
        us = self.lookup(*size)
        return self.fallback.seconds(*size) if us is None else us * 1e-6

    def work(self, *size: float) -> Work:
        """What one call does, from the analytic operator."""
        return self.fallback.work(*size)


class MeasuredCurve(Measured):
    """Linear layers and collectives: `unit` table units for every token."""

    def __init__(self, fallback: Operator, curve: Curve, source: str, unit: float = 1.0) -> None:
        super().__init__(fallback, source)
        self._curve, self._unit = curve, unit

    def lookup(self, *size: float) -> float | None:
        """Microseconds for that many tokens."""
        return self._curve.at(size[0] * self._unit)


class MeasuredDecode(Measured):
    """Decode attention: sequences are taken to be of their mean length."""

    def __init__(self, fallback: Operator, surface: Surface, source: str) -> None:
        super().__init__(fallback, source)
        self._surface = surface

    def lookup(self, *size: float) -> float | None:
        """Microseconds for (rows, context)."""
        rows, context = size
        return self._surface.at(rows, context / rows) if rows and context else None


class MeasuredPrefill(Measured):
    """Prefill attention: chunks are taken to be whole prompts of equal length with the same tokens and pairs."""

    def __init__(self, fallback: Operator, surface: Surface, source: str) -> None:
        super().__init__(fallback, source)
        self._surface = surface

    def lookup(self, *size: float) -> float | None:
        """Microseconds for (tokens, pairs, keys, tiles); None where the chunks have a past."""
        tokens, pairs, keys, _ = size
        if keys > tokens:
            return None
        length = pairs / tokens
        return self._surface.at(tokens / length, length)


class MeasuredTable:
    """All timings of one file, by operator and shape."""

    def __init__(self, groups: dict[tuple, dict[tuple, float]], source: str) -> None:
        self._groups, self.source = groups, source

    @classmethod
    def read(cls, path: str | Path) -> MeasuredTable:
        """Reads a CSV or Parquet file.

        Raises:
            InputError: unreadable, or a row with a missing or unusable value, naming file, line and column.
        """
        path = Path(path)
        groups: dict[tuple, dict[tuple, float]] = defaultdict(dict)
        for line, row in _rows(path):
            op = str(row.get("op", ""))
            if op not in _SHAPES:
                raise InputError(
                    f"unknown op {op!r}, expected {', '.join(_SHAPES)}", place=Place(str(path), line, "op")
                )
            shape = tuple(_value(row, c, path, line) for c in _SHAPES[op])
            size = tuple(_value(row, c, path, line) for c in _SIZES[op])
            groups[(op, *shape)][size] = _value(row, "us", path, line)
        if not groups:
            raise InputError("has no rows", place=Place(file=str(path)))
        return cls(dict(groups), f"measured table {path.name}")

    def gemm(self, fallback: Operator, dtype: str, n: int, k: int) -> Operator:
        """A linear layer, measured if the table has its n and k."""
        points = self._groups.get(("gemm", dtype, n, k))
        return MeasuredCurve(fallback, _curve(points), self.source) if points else fallback

    def all_reduce(self, fallback: Operator, ways: int, token_bytes: float) -> Operator:
        """An all-reduce, measured if the table has the group's size."""
        points = self._groups.get(("all_reduce", ways))
        return MeasuredCurve(fallback, _curve(points), self.source, token_bytes) if points else fallback

    def decode(self, fallback: Operator, dtype: str, heads: int, kv_heads: int, head_dim: int) -> Operator:
        """Decode attention, measured if the table has these heads and this cache dtype."""
        points = self._groups.get(("attn_decode", dtype, heads, kv_heads, head_dim))
        return MeasuredDecode(fallback, Surface(points), self.source) if points else fallback

    def prefill(self, fallback: Operator, dtype: str, heads: int, kv_heads: int, head_dim: int) -> Operator:
        """Prefill attention, measured if the table has these heads and this dtype."""
        points = self._groups.get(("attn_prefill", dtype, heads, kv_heads, head_dim))
        return MeasuredPrefill(fallback, Surface(points), self.source) if points else fallback


def _curve(points: Mapping[tuple, float]) -> Curve:
    return Curve({size[0]: us for size, us in points.items()})


def _rows(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as parquet

            return list(enumerate(parquet.read_table(path).to_pylist(), start=1))
        with path.open(newline="", encoding="utf-8") as file:
            return list(enumerate(csv.DictReader(file), start=2))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read it: {error}", place=Place(file=str(path))) from None


def _value(row: Mapping[str, Any], column: str, path: Path, line: int) -> Any:
    value = row.get(column)
    where = Place(str(path), line, column)
    if value in (None, ""):
        raise InputError("is empty", place=where)
    if column == "dtype":
        return _DTYPES.get(str(value), str(value))
    try:
        number = float(value)
    except ValueError:
        raise InputError(f"expected a number, found {value!r}", place=where) from None
    if not 0 < number < float("inf"):
        raise InputError(f"must be above 0, found {value}", place=where)
    return number if column == "us" else int(number)
