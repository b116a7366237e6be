"""Measured kernel times behind the operator interface.

A table is one file of timings (or several), one row each: our own tidy columns

    op, dtype, m, n, k, batch, seq, heads, kv_heads, head_dim, ways, bytes, us

or what NVIDIA aiconfigurator, Vidur and InferSim write (see `sim.cost.timings`). `us` is one call on one GPU; heads are per
GPU; prefill has no past; an FP8 linear layer includes quantising its input with computed scales.

Where a table has the very shape, the ratio of measured to predicted time is interpolated linearly in the logarithms of
ratio and size, which at the rows is what was measured. For other shapes of the same operator the analytic form answers,
corrected by how far it is off at the nearest measured ones; far from every row, and for operators that the table lacks,
nothing is left of the correction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.cost.forms import predict, quantise_seconds, skew_of
from sim.cost.operators import Operator, Work
from sim.cost.timings import Timing, read_timings
from workloads.errors import InputError, Place

if TYPE_CHECKING:
    from sim.cost.constants import QuantizeConstants
    from sim.hardware.gpu import GPUSpec

_REACH = 1.0  # distance (in octaves, over all dimensions) at which a row's word weighs e times less
_NEIGHBOURS = 8
_LEAST = 0.2  # of a measured FP8 product is left to the product itself, whatever quantising is said to cost
_NEAR, _FADE = 1.0, 1.5  # rows this far off are believed fully; beyond, the correction fades by e every so many octaves


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


class Residuals:
    """How far the analytic form is off at measured shapes, and what that says about a shape nearby.

    A weighted mean over the nearest rows in the logarithms of all dimensions, which fades away from them.
    """

    def __init__(self, points: Sequence[tuple[tuple[float, ...], float]]) -> None:
        """Args: points, (shape, log(measured / predicted)); rows of one operator and dtype."""
        import numpy as np

        self._np = np
        self._where = np.log2([shape for shape, _ in points])
        self._what = np.array([value for _, value in points])

    def at(self, shape: Sequence[float]) -> float:
        """Factor on the analytic time."""
        np = self._np
        gap = np.abs(self._where - np.log2(shape)).sum(axis=1)
        if len(gap) > _NEIGHBOURS:
            near = np.argpartition(gap, _NEIGHBOURS)[:_NEIGHBOURS]
            gap, what = gap[near], self._what[near]
        else:
            what = self._what
        nearest = float(gap.min())
        weight = np.exp(-(gap - nearest) / _REACH)
        trust = exp(-max(nearest - _NEAR, 0.0) / _FADE)
        return float(exp(trust * (weight * what).sum() / weight.sum()))


class Measured:
    """A table's answer where it has one, the analytic operator's elsewhere.

    Attributes:
        least: tokens that fill a tile of prefill attention, as in the analytic operator.
    """

    launches = 1

    def __init__(self, fallback: Operator, source: str) -> None:
        self.fallback = fallback
        self.least = getattr(fallback, "least", 128.0)
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
    """Linear layers and collectives: the form times what was measured over what it says, interpolated over the size.

    It is this ratio that is smooth: between two rows far apart time follows the form, and at every row it is what was
    measured. `unit` is what the table's size counts for every token.
    """

    def __init__(
        self, fallback: Operator, form: Operator, points: Mapping[float, float], source: str, unit: float = 1.0
    ):
        """Args: form, priced at the rows; fallback, which answers outside them; points, size → microseconds."""
        super().__init__(fallback, source)
        self._form, self._unit = form, unit
        self._ratio = Curve({size: us * 1e-6 / form.seconds(size / unit) for size, us in points.items()})

    def lookup(self, *size: float) -> float | None:
        """Microseconds for that many tokens."""
        ratio = self._ratio.at(size[0] * self._unit)
        return None if ratio is None else ratio * self._form.seconds(*size) * 1e6


class Corrected(Measured):
    """The analytic operator, off as much as it is at the nearest measured shapes."""

    def __init__(self, fallback: Operator, residuals: Residuals, source: str, shape: Any) -> None:
        """Args: shape, from the sizes a step asks for to the table's dimensions; None where the table says nothing."""
        super().__init__(fallback, source)
        self.source = f"{fallback.source}; corrected by the nearest rows of {source}"
        self._residuals, self._shape = residuals, shape
        self._factors: dict[tuple, float] = {}

    def seconds(self, *size: float) -> float:
        """Duration of one call. Corrections are taken on a grid of quarter octaves, so that few are ever worked out."""
        shape = self._shape(*size)
        if shape is None:
            return self.fallback.seconds(*size)
        return self.fallback.seconds(*size) * self._factor(shape)

    def _factor(self, shape: tuple[float, ...]) -> float:
        """Linear between the two nearest grid points of the first dimension, nearest in the others."""
        x = 4.0 * log(max(shape[0], 1e-9), 2)
        low = int(x // 1)
        rest = tuple(round(4.0 * log(max(v, 1e-9), 2)) for v in shape[1:])
        left, right = self._at(low, rest), self._at(low + 1, rest)
        return left + (right - left) * (x - low)

    def _at(self, first: int, rest: tuple[int, ...]) -> float:
        key = (first, *rest)
        known = self._factors.get(key)
        if known is None:
            known = self._factors[key] = self._residuals.at([2.0 ** (i / 4.0) for i in key])
        return known


class MeasuredDecode(Measured):
    """Decode attention: sequences are taken to be of their mean length."""

    def __init__(self, fallback: Operator, form: Operator, points: Mapping[tuple, float], source: str) -> None:
        super().__init__(fallback, source)
        self._form = form
        self._ratio = Surface({(b, x): us * 1e-6 / form.seconds(b, b * x) for (b, x), us in points.items()})

    def lookup(self, *size: float) -> float | None:
        """Microseconds for (rows, context)."""
        rows, context = size
        ratio = self._ratio.at(rows, context / rows) if rows and context else None
        return None if ratio is None else ratio * self._form.seconds(rows, context) * 1e6


class MeasuredPrefill(Measured):
    """Prefill attention: chunks are taken to be whole prompts of equal length with the same tokens and pairs."""

    def __init__(self, fallback: Operator, form: Operator, points: Mapping[tuple, float], source: str) -> None:
        super().__init__(fallback, source)
        self._form = form
        self._ratio = Surface(
            {
                (b, x): us * 1e-6 / form.seconds(b * x, b * x * x, b * x, b * max(x, self.least) / 128)
                for (b, x), us in points.items()
            }
        )

    def lookup(self, *size: float) -> float | None:
        """Microseconds for (tokens, pairs, keys, tiles); None where the chunks have a past."""
        tokens, pairs, keys, _ = size
        if keys > tokens:
            return None
        length = pairs / tokens
        ratio = self._ratio.at(tokens / length, length)
        return None if ratio is None else ratio * self._form.seconds(*size) * 1e6


class MeasuredTable:
    """All timings of one or several files, by operator, dtype and shape.

    Rows that say another GPU or engine than `gpu` and `engine`, eager launches and rows faster than the device allows are
    left out; `notes` counts them.
    """

    def __init__(self, timings: Sequence[Timing], source: str, gpu: GPUSpec | None = None, engine: str = "") -> None:
        from sim.cost.plausible import impossible

        self.source, self.notes, self.used = source, [], 0
        self._gpu = gpu
        self._groups: dict[tuple, dict[tuple, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._rows: dict[tuple, list[Timing]] = defaultdict(list)
        self._known: dict[tuple, Residuals] = {}
        dropped: dict[str, int] = defaultdict(int)
        for timing in timings:
            if gpu is not None and timing.gpu and timing.gpu != gpu.name:
                dropped[f"taken on {timing.gpu}"] += 1
            elif engine and timing.engine and timing.engine != engine:
                dropped[f"of {timing.engine}"] += 1
            elif timing.launch in ("eager", "across nodes"):
                dropped[f"launched {timing.launch}"] += 1
            elif gpu is not None and impossible(timing, gpu):
                dropped[f"faster than {gpu.name} allows"] += 1
            else:
                self._add(timing)
        self.notes = [f"{source}: {count} rows {why} are not used" for why, count in dropped.items()]

    def _add(self, timing: Timing) -> None:
        self.used += 1
        if timing.op == "gemm":
            m, n, k = timing.size
            self._groups[("gemm", timing.dtype, n, k)][(m,)].append(timing.us)
            self._rows[("gemm", timing.dtype)].append(timing)
        elif timing.op == "all_reduce":
            ways, size = timing.size
            self._groups[("all_reduce", ways)][(size,)].append(timing.us)
        elif timing.op in ("attn_decode", "attn_prefill"):
            batch, seq, *heads = timing.size
            kind = attention_key(timing.op, timing.dtype, timing.kv_dtype)
            self._groups[(*kind, *heads)][(batch, seq)].append(timing.us)
            self._rows[kind].append(timing)
        elif timing.op == "moe":
            tokens, *shape = timing.size
            skew = skew_of(timing.distribution) if timing.distribution else None
            self._groups[("moe", timing.dtype, skew, *shape)][(tokens,)].append(timing.us)

    @classmethod
    def read(
        cls, paths: str | Path | Sequence[str | Path], gpu: GPUSpec | None = None, engine: str = ""
    ) -> MeasuredTable:
        """Reads one or more CSV or Parquet files.

        Raises:
            InputError: unreadable, or a row with a missing or unusable value, naming file, line and column; or nothing
                in them is about this GPU and engine.
        """
        paths = [paths] if isinstance(paths, (str, Path)) else list(paths)
        timings = [t for path in paths for t in read_timings(path)]
        table = cls(timings, f"measured table {', '.join(Path(p).name for p in paths)}", gpu, engine)
        if not table.used:
            raise InputError(
                "; ".join(table.notes) or "has no rows", place=Place(file=", ".join(map(str, paths))),
                hint="give a table of this GPU and engine",
            )  # fmt: skip
        return table

    def _points(self, key: tuple) -> dict[tuple, float] | None:
        """Median time at each size of one shape; None where there are fewer than two sizes."""
        from statistics import median

        found = self._groups.get(key)
        return {size: median(values) for size, values in found.items()} if found and len(found) > 1 else None

    def _residuals(self, key: tuple, section: Any, quantize: QuantizeConstants | None) -> Residuals | None:
        rows = self._rows.get(key)
        if not rows or self._gpu is None or section is None:
            return None
        known = self._known.get((key, section, quantize))
        if known is None:
            off = [(t.size, log(t.us / predict(t, section, self._gpu, quantize))) for t in rows]
            known = self._known[(key, section, quantize)] = Residuals(off)
        return known

    def gemm(
        self,
        fallback: Operator,
        dtype: str,
        n: int,
        k: int,
        section: Any = None,
        quantize: QuantizeConstants | None = None,
    ) -> Operator:
        """A linear layer: measured if the table has its n and k, corrected if it has others."""
        points = self._points(("gemm", dtype, n, k))
        quantised = quantize is not None and dtype in ("fp8", "fp8-block", "int8", "fp4")
        residuals = self._residuals(("gemm", dtype), section, quantize if quantised else None)
        form = fallback
        if residuals:
            fallback = Corrected(fallback, residuals, self.source, lambda m: (m, n, k))
        if not points:
            return fallback
        times = {m: us for (m,), us in points.items()}
        if quantised and self._gpu is not None:  # steps price the quantisation apart, so it is taken off the rows
            spent = {m: 1e6 * quantise_seconds(quantize, self._gpu, m, k) for m in times}
            times = {m: max(us - spent[m], _LEAST * us) for m, us in times.items()}
        return MeasuredCurve(fallback, form, times, self.source)

    def all_reduce(self, fallback: Operator, ways: int, token_bytes: float) -> Operator:
        """An all-reduce, measured if the table has the group's size."""
        points = self._points(("all_reduce", ways))
        if not points:
            return fallback
        return MeasuredCurve(fallback, fallback, {size: us for (size,), us in points.items()}, self.source, token_bytes)

    def experts(self, fallback: Operator, dtype: str, skew: float, *shape: float) -> Operator:
        """A layer's experts, measured if the table has them, routed as unevenly or, where rows do not say, however they were.

        Args:
            shape: hidden and expert width, experts a token and in all, tensor and expert parallel ways.
        """
        points = self._points(("moe", dtype, skew, *shape)) or self._points(("moe", dtype, None, *shape))
        if not points:
            return fallback
        found = MeasuredCurve(fallback, fallback, {tokens: us for (tokens,), us in points.items()}, self.source)
        found.launches = fallback.launches
        return found

    def cache(self, mode: str) -> str:
        """What the table calls 8-bit keys and values of this mode: rows of fp8 stand for int8 where it has none of them."""
        return "int8" if mode == "int8" and any(kind[-1] == "int8" for kind in self._rows) else "fp8"

    def decode(
        self, fallback: Operator, dtype: str, kv: str, heads: int, kv_heads: int, head_dim: int, section: Any = None
    ) -> Operator:
        """Decode attention: measured if the table has these heads, corrected if it has others."""
        kind = attention_key("attn_decode", dtype, kv)
        points = self._points((*kind, heads, kv_heads, head_dim))
        residuals = self._residuals(kind, section, None)
        form = fallback

        def shape(rows: float, context: float) -> tuple[float, ...] | None:
            return (context / rows, rows, heads, kv_heads, head_dim) if rows and context else None

        if residuals:
            fallback = Corrected(fallback, Reordered(residuals, (1, 0, 2, 3, 4)), self.source, shape)
        return MeasuredDecode(fallback, form, points, self.source) if points else fallback

    def prefill(
        self, fallback: Operator, dtype: str, kv: str, heads: int, kv_heads: int, head_dim: int, section: Any = None
    ) -> Operator:
        """Prefill attention: measured if the table has these heads, corrected if it has others."""
        kind = attention_key("attn_prefill", dtype, kv)
        points = self._points((*kind, heads, kv_heads, head_dim))
        residuals = self._residuals(kind, section, None)
        form = fallback

        def shape(tokens: float, pairs: float, keys: float, tiles: float) -> tuple[float, ...] | None:
            length = pairs / tokens
            return (length, tokens / length, heads, kv_heads, head_dim) if keys <= tokens else None

        if residuals:
            fallback = Corrected(fallback, Reordered(residuals, (1, 0, 2, 3, 4)), self.source, shape)
        return MeasuredPrefill(fallback, form, points, self.source) if points else fallback


def attention_key(op: str, dtype: str, kv: str) -> tuple[str, ...]:
    """What tells tables of attention apart: the cache's type, and for prompts the type of the arithmetic."""
    return (op, kv) if op == "attn_decode" else (op, dtype, kv)


class Reordered:
    """Residuals asked with their dimensions in another order."""

    def __init__(self, residuals: Residuals, order: tuple[int, ...]) -> None:
        self._residuals, self._order = residuals, order

    def at(self, shape: Sequence[float]) -> float:
        """Factor on the analytic time."""
        return self._residuals.at([shape[i] for i in self._order])
