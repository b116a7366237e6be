"""What the cost models' errors do to a ratio of two simulated runs.

Each run knows how far its figures go when its cost model errs (`info["cost_spread"]`), and which operator classes that is
made of. A class that both runs price by the same constants has one error, common to both: only what it does more to one
than to the other is left in the ratio. Constants of another GPU, engine, mode or model are wrong by themselves: there,
both errors count in full. Classes err independently of each other, so their effects add up in quadrature, on a logarithmic
scale and in first order. A measured run has no such error; a run that does not say what its error is made of shares all of
it where nothing that decides prices was set otherwise, and nothing where something was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, hypot, isfinite, log
from statistics import NormalDist
from typing import Any

from reports.subject import Subject
from reports.uncertainty import FIGURES, SPREAD, Z

_WHOLE = "everything"
_PRICES = ("backend", "model", "engine.parallel", "engine.quantization", "engine.kv.dtype", "engine.host", "cost")
"""Settings that decide by which constants a run is priced, by the beginnings of their keys."""
_LEAST = 1e-3  # of a share: below it a logarithm says nothing

Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Apart:
    """What two runs have in common of their cost models' errors.

    Attributes:
        known: whether any such error is known.
        apart, common: operator classes priced by different and by the same constants; both empty where all of an error
            belongs to one run, or where runs do not say what it is made of.
        factors: figure → factors below and above its ratio that the errors make, at `level`.
    """

    known: bool
    apart: tuple[str, ...]
    common: tuple[str, ...]
    factors: dict[str, Ends]


def apart(first: Subject, second: Subject, settings: Mapping[str, Any], level: float) -> Apart:
    """What errors of the cost models do to the figures of `second` over those of `first`.

    Args:
        settings: those that differ between the two. level: probability that the factors are to hold with.
    """
    sides = [_spread(s) for s in (first, second)]
    if not any(side["figures"] for side in sides):
        return Apart(False, (), (), {})
    if all(side["figures"] for side in sides) and not all(side["priced"] for side in sides):
        same = not any(key.startswith(_PRICES) for key in settings)
        for i, side in enumerate(sides):
            side |= {"priced": {_WHOLE: "" if same else str(i)}, "shares": {}}
    one, two = (side["priced"] for side in sides)
    common = {kind for kind in one.keys() & two.keys() if one[kind] == two[kind]}
    both = all(side["shares"] for side in sides)
    kinds = {kind for side in sides for parts in side["shares"].values() for kind in parts} if both else set()
    scale = NormalDist().inv_cdf((1 + level) / 2) / Z
    factors = {}
    for key in FIGURES:
        ends = [_logs(side, s, key) for side, s in zip(sides, (first, second), strict=True)]
        if not any(ends):
            continue
        parts = [_parts(side, key) for side in sides]
        factors[key] = _ratio([e or (0.0, 0.0) for e in ends], parts, common, scale)
    return Apart(True, tuple(sorted(kinds - common)), tuple(sorted(kinds & common)), factors)


def joined(chance: Mapping[str, Ends], values: Mapping[str, float], found: Apart) -> dict[str, Ends]:
    """Intervals of ratios that hold chance, widened by errors of the cost models.

    Args:
        chance: figure → interval of its ratio. values: figure → the ratio itself.
    """
    wider = {}
    for key, (low, high) in chance.items():
        factors, ratio = found.factors.get(key), values.get(key)
        if factors is None or not ratio or not low > 0:
            wider[key] = (low, high)
            continue
        below, above = min(log(low / ratio), 0.0), max(log(high / ratio), 0.0)
        wider[key] = (
            min(low, ratio * exp(-hypot(below, log(factors[0])))),
            max(high, ratio * exp(hypot(above, log(factors[1])))),
        )
    return wider


def _spread(subject: Subject) -> dict[str, Any]:
    """{"figures", "priced", "shares"} of a run; empty where it has none, or none that can be read."""
    spread = subject.data.info.get(SPREAD) if subject.data is not None else None
    spread = spread if isinstance(spread, dict) else {}
    figures = spread.get("cost") or spread.get("figures")
    found = {"figures": figures, "priced": spread.get("priced"), "shares": spread.get("shares")}
    found = {name: value if isinstance(value, dict) else {} for name, value in found.items()}
    shares = found["shares"].items()
    return found | {
        "shares": {name: parts for name, parts in shares if isinstance(parts, dict) and _numbers(parts.values())}
    }


def _numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(v, int | float) and isfinite(v) for v in values)


def _logs(side: dict[str, Any], subject: Subject, key: str) -> Ends | None:
    """Logarithms of the factors of a figure with faster and with slower steps; None where it is not known."""
    key = "slo_attainment" if key == "request_goodput" else key
    ends = side["figures"].get(key)
    if not (
        isinstance(ends, list) and len(ends) == 2 and all(isinstance(e, int | float) and isfinite(e) for e in ends)
    ):
        return None
    low, high = ends
    if key == "slo_attainment":  # differences, of a share
        share = subject.summary.get(key)
        if not share:
            return None
        low, high = (min(max(share + end, _LEAST), 1.0) / share for end in ends)
    if not 0 < low <= high:
        return None
    falls = not key.endswith("_ms")  # rates and shares are lower where steps take longer
    return (log(high), log(low)) if falls else (log(low), log(high))


def _parts(side: dict[str, Any], key: str) -> dict[str, float]:
    """The parts of the error of a figure, by class."""
    name = next((n for n in ("ttft", "e2el") if f"_{n}_" in key), "steps")
    return side["shares"].get(name) or {_WHOLE: 1.0}


def _ratio(ends: list[Ends], parts: list[dict[str, float]], common: set[str], scale: float) -> Ends:
    """Factors below and above a ratio.

    Args:
        ends: of both runs, logarithms with faster and with slower steps. parts: of both, class → part.
    """
    down = up = 0.0
    for kind in parts[0].keys() | parts[1].keys():
        left, right = ([parts[i].get(kind, 0.0) * end for end in ends[i]] for i in (0, 1))
        effects = [[b - a for a, b in zip(left, right, strict=True)]] if kind in common else [[-a for a in left], right]
        for effect in effects:
            down, up = hypot(down, min(*effect, 0.0)), hypot(up, max(*effect, 0.0))
    return exp(-scale * down), exp(scale * up)
