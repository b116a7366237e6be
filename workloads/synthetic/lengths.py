"""The `input_tokens:`, `output_tokens:` and `think:` sections: which law, with which figures.

    input_tokens: 512                                                   # always
    input_tokens: {distribution: uniform, low: 1, high: 300}            # both included
    input_tokens: {distribution: normal, mean: 800, std: 200}
    input_tokens: {distribution: lognormal, mean: 1155, std: 1109}      # of the values
    input_tokens: {distribution: lognormal, median: 1020, sigma: 0.9}   # sigma of the logarithm
    input_tokens: {distribution: exponential, mean: 250}
    input_tokens: {distribution: zipf, exponent: 1.1, low: 8, high: 8192}
    input_tokens: {distribution: quantiles, values: {0: 1, 0.5: 1020, 0.95: 4083, 1: 14050}}
    input_tokens: {distribution: empirical, trace: conv.csv.gz, column: input}
    input_tokens: {distribution: mixture, parts: [{weight: 3, distribution: fixed, value: 90}, …]}

`low` and `high` bound every law. `lengths: {distribution: empirical, trace: …}` in place of both draws input
and output of the same request together, which keeps their correlation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workloads.synthetic.fields import Section
from workloads.synthetic.laws import (
    Empirical,
    Exponential,
    Fixed,
    Law,
    LogNormal,
    Mixture,
    Normal,
    Quantiles,
    Uniform,
    Zipf,
)

MOST_TOKENS = 1e9
"""Of a prompt or an answer: a longer one is a slip."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a section's figures are read.

    Attributes:
        base: folder that relative trace paths start from.
        column: `input` or `output`, which an empirical law takes unless it says.
        time: figures are spans of time (0 allowed, units in the value) rather than tokens.
    """

    base: Path = Path()
    column: str = "input"
    time: bool = False

    def figure(self, section: Section, name: str, default: object = ..., above: float | None = None) -> float:
        """A quantity of the section's kind."""
        extra = {} if default is ... else {"default": default}
        bounds: dict[str, float] = {"above": above} if above is not None else {"least": 0 if self.time else 1}
        if not self.time and name != "std":
            bounds["most"] = MOST_TOKENS
        read = section.seconds if self.time else section.number
        return read(name, **extra, **bounds)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Input and output lengths drawn together from recorded requests (int64 arrays of one length)."""

    input_tokens: np.ndarray
    output_tokens: np.ndarray
    source: str

    def draw(self, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
        """`size` pairs, with replacement."""
        rows = rng.integers(0, len(self.input_tokens), size)
        return self.input_tokens[rows], self.output_tokens[rows]


def parse_law(value: object, key: str, reading: Reading) -> Law:
    """The law of a section, or of a plain number.

    Raises:
        InputError: naming the key and what was expected.
    """
    if not isinstance(value, Mapping):
        section = Section({"value": value}, key)
        return Fixed(value=reading.figure(_Bare(section), "value"))
    section = Section(value, key)
    law = _parse(section, reading)
    section.done()
    return law


def parse_pairs(section: Section, base: Path) -> Pairs:
    """The `lengths:` section: pairs of a trace."""
    section.word("distribution", ["empirical"], "empirical")
    traffic, source = _trace(section, base)
    section.done()
    return Pairs(traffic.input_tokens, traffic.output_tokens, source)


class _Bare(Section):
    """A plain number dressed as a section, so that errors name the key itself."""

    def __init__(self, section: Section) -> None:
        super().__init__(section.data, section.key)

    def path(self, name: str) -> str:
        return self.key


def _parse(section: Section, reading: Reading) -> Law:
    name = section.word("distribution", LAWS)
    low = reading.figure(section, "low", None)
    high = reading.figure(section, "high", None)
    if low is not None and high is not None and high < low:
        raise section.error("high", f"must not be less than low ({low:g}), it is {high:g}")
    if name in ("uniform", "zipf"):
        for bound, figure in (("low", low), ("high", high)):
            if figure is None:
                raise section.error(bound, f"is missing: {name} needs low and high")
            if not reading.time and figure != int(figure):
                raise section.error(bound, f"expected a whole number of tokens, not {figure:g}")
    bounds = {
        "low": (0.0 if reading.time else 1.0) if low is None else low,
        "high": math.inf if high is None else high,
    }
    return LAWS[name](section, reading, bounds)


def _fixed(section: Section, reading: Reading, bounds: dict) -> Law:
    return Fixed(value=reading.figure(section, "value"), **bounds)


def _uniform(section: Section, reading: Reading, bounds: dict) -> Law:
    return Uniform(**bounds)


def _normal(section: Section, reading: Reading, bounds: dict) -> Law:
    return Normal(mean=reading.figure(section, "mean", above=0), std=reading.figure(section, "std", above=0), **bounds)


def _lognormal(section: Section, reading: Reading, bounds: dict) -> Law:
    by_mean = "mean" in section or "std" in section
    if by_mean == ("median" in section or "sigma" in section):
        raise section.error("mean", "give either mean and std, or median and sigma")
    if by_mean:
        mean, std = reading.figure(section, "mean", above=0), reading.figure(section, "std", above=0)
        return LogNormal.of_mean(mean, std, **bounds)
    return LogNormal.of_median(reading.figure(section, "median", above=0), section.number("sigma", above=0), **bounds)


def _exponential(section: Section, reading: Reading, bounds: dict) -> Law:
    return Exponential(mean=reading.figure(section, "mean", above=0), **bounds)


def _zipf(section: Section, reading: Reading, bounds: dict) -> Law:
    if bounds["high"] - bounds["low"] > 10_000_000:
        raise section.error("high", "the range is wider than 10,000,000")
    if bounds["low"] < 1:
        raise section.error("low", f"must be at least 1, not {bounds['low']:g}")
    return Zipf(exponent=section.number("exponent", 1.0, least=0), **bounds)


def _quantiles(section: Section, reading: Reading, bounds: dict) -> Law:
    table = Section(section.value("values"), section.path("values"))
    try:
        at = [float(p) for p in table.data]
    except (TypeError, ValueError):
        raise section.error("values", "keys must be probabilities from 0 to 1") from None
    values = [reading.figure(table, name, above=0) for name in table.data]
    ordered = all(a < b for a, b in itertools.pairwise(at))
    if len(at) < 2 or at[0] != 0 or at[-1] != 1 or not ordered:
        raise section.error("values", "keys must be probabilities in order, the first 0 and the last 1")
    if any(a > b for a, b in itertools.pairwise(values)):
        raise section.error("values", "quantiles must not decrease")
    return Quantiles(at=tuple(at), values=tuple(values), **bounds)


def _empirical(section: Section, reading: Reading, bounds: dict) -> Law:
    column = section.word("column", ["input", "output"], reading.column)
    traffic, _ = _trace(section, reading.base)
    values = traffic.input_tokens if column == "input" else traffic.output_tokens
    return Empirical(values=values.astype(np.float64), **bounds)


def _mixture(section: Section, reading: Reading, bounds: dict) -> Law:
    listed = section.value("parts")
    if not isinstance(listed, list | tuple) or not listed:
        raise section.error("parts", "expected a list of laws, each with a weight")
    parts, weights = [], []
    for number, item in enumerate(listed):
        part = Section(item, f"{section.path('parts')}[{number}]")
        weights.append(part.number("weight", above=0))
        parts.append(_parse(part, reading))
        part.done()
    return Mixture(parts=tuple(parts), weights=tuple(weights), **bounds)


def _trace(section: Section, base: Path):
    from workloads.readers import read_trace

    path = section.value("trace")
    if not isinstance(path, str):
        raise section.error("trace", f"expected the path of a trace, not {path!r}")
    return read_trace(base / path, section.value("format", None)), path


LAWS: dict[str, Callable[[Section, Reading, dict], Law]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "normal": _normal,
    "lognormal": _lognormal,
    "exponential": _exponential,
    "zipf": _zipf,
    "quantiles": _quantiles,
    "empirical": _empirical,
    "mixture": _mixture,
}
