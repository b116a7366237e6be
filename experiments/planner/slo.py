"""An SLO as a planner takes it: limits on statistics of latencies, `ttft_p95=500ms,tpot_p95=50ms`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.units import parse_duration
from reports.percentiles import PERCENTILES, needed
from workloads.errors import InputError, Place, unknown_name

METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
STATS = ("mean", "median", *(f"p{p}" for p in PERCENTILES))
DEFAULT_STAT = "p95"
EXAMPLE = "such as ttft_p95=500ms,tpot_p95=50ms"
_LONGEST = 1e6  # seconds: beyond it somebody slipped


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a statistic of a latency may be.

    Attributes:
        metric: of METRICS.   stat: of STATS.   seconds: the most.
    """

    metric: str
    stat: str
    seconds: float

    @property
    def key(self) -> str:
        """Name of the figure in a run's summary, which is in milliseconds."""
        return f"{self.stat}_{'e2el' if self.metric == 'e2e' else self.metric}_ms"

    @property
    def name(self) -> str:
        """`TTFT p95`."""
        return f"{METRICS[self.metric]} {self.stat}"

    @property
    def percentile(self) -> float | None:
        """Which percentile it is; None for the mean."""
        return None if self.stat == "mean" else 50.0 if self.stat == "median" else float(self.stat[1:])

    @property
    def fewest(self) -> int:
        """Finished requests below which the statistic is not told."""
        return 2 if self.percentile is None else needed(self.percentile)

    def __str__(self) -> str:
        return f"{self.metric}_{self.stat}={_duration(self.seconds)}"


def parse_slo(text: str, place: Place | None = None) -> tuple[Limit, ...]:
    """Limits of a text such as `ttft_p95=500ms,tpot_p95=50ms`; a metric without a statistic means its p95.

    Raises:
        InputError: empty, malformed, an unknown name, no unit, not above 0, or one limit twice.
    """
    place = place or Place(key="--slo")
    limits: dict[tuple[str, str], Limit] = {}
    for part in text.split(","):
        if not part.strip():
            raise InputError(f"expected METRIC_STAT=TIME, got {_shown(text)}", place=place, hint=EXAMPLE)
        limit = _limit(part, place)
        if (limit.metric, limit.stat) in limits:
            raise InputError(f"{limit.metric}_{limit.stat} is given twice", place=place, hint="remove one")
        limits[limit.metric, limit.stat] = limit
    return tuple(limits.values())


def limits_of(section: dict[str, float]) -> tuple[Limit, ...]:
    """The `slo:` section of a workload (`ttft_ms`, …), as limits on the 95th percentile."""
    return tuple(Limit(key.removesuffix("_ms"), DEFAULT_STAT, value / 1e3) for key, value in section.items())


def _limit(part: str, place: Place) -> Limit:
    name, equals, value = (piece.strip() for piece in part.partition("="))
    if not equals or not name or not value:
        raise InputError(f"expected METRIC_STAT=TIME, got {_shown(part)}", place=place, hint=EXAMPLE)
    metric, _, stat = name.lower().replace("-", "_").partition("_")
    metric, stat = {"e2el": "e2e", "latency": "e2e"}.get(metric, metric), stat or DEFAULT_STAT
    if metric not in METRICS:
        raise unknown_name("latency", metric[:60], METRICS, place=place)
    if stat not in STATS:
        raise unknown_name("statistic", stat[:60], STATS, place=place)
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise InputError(str(error), place=Place(place.file, place.line, place.column, f"{place.key} {name}")) from None
    if not 0 < seconds <= _LONGEST or not math.isfinite(seconds):
        raise InputError(f"{name} must be above 0 and at most {_LONGEST:.0e} s, got {value}", place=place)
    return Limit(metric, stat, seconds)


def told(limits: Sequence[Limit]) -> str:
    """Limits for people: `TTFT p95 ≤ 500 ms`, one after the other, in ASCII."""
    return ", ".join(f"{limit.name} <= {_duration(limit.seconds)}" for limit in limits)


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:g}ms" if seconds < 10 else f"{seconds:g}s"


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else repr(text[:57] + "...")
