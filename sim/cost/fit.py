"""Fitting the constants of one operator form to timings: robust least squares on logarithms of times.

Errors are log(predicted / measured), so that a microsecond kernel weighs as much as a millisecond one. The loss grows
linearly beyond `SCALE` (published tables have rows that are two or three times off). With a prior the fit is shrunk
towards given constants, as if each of them were an observation of its own with a stated spread: a handful of timings of a
new GPU then moves what they say something about and leaves the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import exp, log
from typing import TYPE_CHECKING, Any

from sim.cost.forms import predict
from sim.cost.timings import Timing

if TYPE_CHECKING:
    from sim.cost.constants import QuantizeConstants
    from sim.hardware.gpu import GPUSpec

SCALE = 0.05  # log error at which the loss turns from square to linear
_LOW = 1e-3
_BOUNDS = {
    "norm": (1.0, 12.0), "wave": (0.0, 1.0), "unit": (0.0, 0.2), "splits": (1.0, 256.0), "path": (0.0, 1.0),
    "passing": (0.0, 1.0), "packed": (0.0, 1.0),
    **dict.fromkeys(("compute", "bandwidth", "one_shot", "two_shot", "ring", "ring_switch", "activation"), (0.0, 1.02)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of predictions as |log(predicted / measured)|; `bias` is the median with its sign."""

    count: int
    median: float
    mean: float
    p95: float
    bias: float

    @classmethod
    def of(cls, logs: Sequence[float]) -> Errors:
        """From signed log errors."""
        if not logs:
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        size, signed = sorted(map(abs, logs)), sorted(logs)
        last = len(size) - 1
        return cls(
            len(size), (size[last // 2] + size[-(-last // 2)]) / 2, sum(size) / len(size), size[round(0.95 * last)],
            (signed[last // 2] + signed[-(-last // 2)]) / 2,
        )  # fmt: skip


_OFFSETS = {  # these may be 0, and their log not
    "extra_k": 20.0, "extra_tokens": 30.0, "extra_dim": 10.0, "extra_bytes": 10.0, "edge": 10.0, "pad": 2.0,
    "cache_ns": 0.2, "cache_most_ns": 0.2,
}  # fmt: skip
_GIVEN = (  # told by something else than a fit
    "error", "operations", "ring_mb", "one_shot_kb", "switch", "tile", "large_rows", "faster",
)  # fmt: skip


LIBRARY = ("ring_rank_us", "ring_chunk_us", "ring_switch", "ring_switch_us", "ring_switch_rank_us")
"""Constants of the library's all-reduce that only messages to several numbers of GPUs tell."""


class _Scale:
    """A constant on the axis in which it is fitted: logarithmic, or logistic where it lies between bounds."""

    def __init__(self, name: str, start: float = 0.0) -> None:
        self.low, self.high = _BOUNDS.get(name, (0.0, 0.0))
        if name == "compute" and start > self.high:  # of the peak of a wider type than the kernel multiplies in
            self.high *= 2.0
        self.offset = _OFFSETS.get(name, 0.2 if name.endswith("_us") else 0.0)

    def inside(self, value: float) -> float:
        if self.high:
            share = (value - self.low) / (self.high - self.low)
            share = min(max(share, _LOW), 1 - _LOW)
            return log(share / (1 - share))
        return log(max(value, 0.0) + self.offset) if self.offset else log(max(value, 1e-4))

    def outside(self, x: float) -> float:
        x = min(max(x, -30.0), 30.0)
        if self.high:
            return self.low + (self.high - self.low) / (1 + exp(-x))
        return max(exp(x) - self.offset, 0.0)


def constants_names(section: Any) -> tuple[str, ...]:
    """Names of the numbers in a section of constants."""
    found = [f.name for f in fields(section) if isinstance(getattr(section, f.name), float) and f.name not in _GIVEN]
    # Messages to one number of GPUs say neither what another takes more nor what the library does.
    found = [name for name in found if name != "rank_us" and name not in LIBRARY]
    # Kernels that do not unpack, or are never left to the library, cannot say how long that takes.
    found = [name for name in found if name not in ("unpack_ns", "split_us") or getattr(section, name)]
    if "ring" in found and not section.ring_mb:
        found = [name for name in found if name not in ("ring", "ring_us")]
    return tuple(found)


def loss_of(logs: Sequence[float]) -> float:
    """What a fit makes least of errors of these logarithms, in units of a square error of `SCALE`."""
    return sum(2 * ((1 + (each / SCALE) ** 2) ** 0.5 - 1) for each in logs)


def log_errors(
    timings: Sequence[Timing], section: Any, gpu: GPUSpec, quantize: QuantizeConstants | None = None
) -> list[float]:
    """log(predicted / measured) of every timing."""
    return [log(predict(t, section, gpu, quantize) / t.us) for t in timings]


def fit_section(
    timings: Sequence[Timing],
    start: Any,
    gpu: GPUSpec,
    *,
    names: Sequence[str] = (),
    quantize: QuantizeConstants | None = None,
    weights: Sequence[float] | None = None,
    prior: Mapping[str, float] | None = None,
    starts: int = 1,
    rounds: int = 60,
    told: Callable[[Timing, Any], Any] = lambda _, section: section,
) -> Any:
    """`start` with the constants called `names` refitted to the timings.

    Args:
        names: which constants move; none given means all.
        weights: of the timings; equal by default.
        prior: spread of the log of each constant around its value in `start`; a missing name is free.
        starts: how many starting points are tried (deterministic; the first is `start`).
        rounds: most iterations from each.
        told: the constants as they hold for a timing, where something that is not fitted differs between timings.
    """
    import numpy as np

    names = tuple(names) or constants_names(start)
    scales = [_Scale(name, getattr(start, name)) for name in names]
    centre = np.array([s.inside(getattr(start, n)) for s, n in zip(scales, names, strict=True)])
    weight = np.sqrt(np.array(weights if weights is not None else [1.0] * len(timings)))
    pull = np.array([1.0 / prior[n] if prior and n in prior else 0.0 for n in names])
    measured = np.log([t.us for t in timings])

    def residuals(x):
        section = replace(start, **{n: s.outside(v) for n, s, v in zip(names, scales, x, strict=True)})
        return np.log([predict(t, told(t, section), gpu, quantize) for t in timings]) - measured

    def loss(x, r):
        data = 2 * SCALE**2 * (np.sqrt(1 + (r / SCALE) ** 2) - 1)
        return float((weight**2 * data).sum() + ((pull * (x - centre)) ** 2).sum() * NOISE**2)

    best, best_loss = centre, float("inf")
    rng = np.random.default_rng(0)
    for attempt in range(starts):
        x = centre if attempt == 0 else centre + rng.normal(0, 0.7, len(names))
        x, value = _descend(x, residuals, loss, weight, pull, centre, rounds)
        if value < best_loss:
            best, best_loss = x, value
    values = {n: round(s.outside(float(v)), 4) for n, s, v in zip(names, scales, best, strict=True)}
    return replace(start, **values)


NOISE = 0.1  # log spread of one timing around the form, against which a prior's spread counts


def _descend(x, residuals, loss, weight, pull, centre, rounds):
    """Levenberg-Marquardt with iteratively reweighted residuals."""
    import numpy as np

    r = residuals(x)
    value, damping = loss(x, r), 1e-2
    for _ in range(rounds):
        jacobian = np.empty((len(r), len(x)))
        for i in range(len(x)):
            step = np.zeros(len(x))
            step[i] = 1e-4
            jacobian[:, i] = (residuals(x + step) - r) / 1e-4
        robust = weight**2 / np.sqrt(1 + (r / SCALE) ** 2)
        normal = jacobian.T @ (jacobian * robust[:, None]) + np.diag(pull**2) * NOISE**2
        slope = jacobian.T @ (robust * r) + pull**2 * (x - centre) * NOISE**2
        improved = False
        for _ in range(8):
            move = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-6), -slope)
            move = np.clip(move, -1.5, 1.5)
            tried = x + move
            new = residuals(tried)
            if np.isfinite(new).all() and (got := loss(tried, new)) < value:
                improved = value - got > 1e-6 * value
                x, r, value, damping = tried, new, got, max(damping / 5, 1e-8)
                break
            damping *= 5
        if not improved:
            break
    return x, value
