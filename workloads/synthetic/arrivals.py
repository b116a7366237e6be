"""Arrival processes: when requests come.

Each says in its `str` what it is, because "rate 5" alone has meant even gaps in one tool and random ones in
the next. Random processes are watched from t = 0, so their first request comes after a first gap; even gaps
start at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from workloads.errors import InputError
from workloads.streams import Streams
from workloads.synthetic.fields import Section
from workloads.traffic import LATEST

FASTEST = 1e9  # a second, but for all at once: gaps of less than a nanosecond are lost in the sums of times
MOST = 50_000_000  # requests; beyond this a specification is a slip rather than a wish
CHUNK = 16_384  # drawn at a time, fixed so that sums are added in the same order for every count


class ArrivalProcess(Protocol):
    """What an arrival process is."""

    def times(self, streams: Streams, count: int) -> np.ndarray:
        """Times of the first `count` arrivals: float64 seconds, not decreasing; a larger count only adds."""
        ...

    @property
    def rate(self) -> float:
        """Mean arrivals a second in the long run."""
        ...


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Everything is there at t = 0."""

    rate: float = math.inf

    def times(self, streams: Streams, count: int) -> np.ndarray:
        return np.zeros(count)

    def __str__(self) -> str:
        return "all at once"


@dataclass(frozen=True, slots=True)
class Renewal:
    """Independent gaps of mean 1/rate.

    Attributes:
        process: `constant`, `poisson` or `gamma`.
        rate: arrivals a second.
        burstiness: shape of gamma gaps, in the sense of vLLM's client: 1 is Poisson, less is burstier, more
            is more even; their coefficient of variation is 1/sqrt(burstiness).
        normalize: stretch times so that the last of N arrivals falls exactly at N/rate, as vLLM's client
            does. The N then matters: other counts have other times.
    """

    process: str
    rate: float
    burstiness: float = 1.0
    normalize: bool = False

    def times(self, streams: Streams, count: int) -> np.ndarray:
        if self.process == "constant":
            return np.arange(int(self.normalize), count + int(self.normalize)) / self.rate
        rng = streams.get("arrivals")
        if self.process == "poisson":
            gaps = rng.exponential(1 / self.rate, count)
        else:
            gaps = rng.gamma(self.burstiness, 1 / (self.rate * self.burstiness), count)
        times = np.cumsum(gaps, out=gaps)
        if self.normalize and count and times[-1] > 0:
            last = count / self.rate
            times *= last / times[-1]
            np.minimum(times, last, out=times)
            times[-1] = last
        return times

    def __str__(self) -> str:
        names = {"constant": "constant (even gaps)", "poisson": "Poisson"}
        name = names.get(self.process) or f"gamma, burstiness {self.burstiness:g}"
        return f"{name}, {self.rate:g} a second" + (", normalized" if self.normalize else "")


@dataclass(frozen=True, slots=True)
class OnOff:
    """A Poisson process that a two-state Markov chain switches between busy and quiet.

    Attributes:
        rate: arrivals a second in the long run, over both states.
        on, off: mean seconds of a busy and of a quiet spell; both exponential.
        quiet: rate of quiet spells as a share of the busy rate, in [0, 1).
    """

    rate: float
    on: float
    off: float
    quiet: float = 0.0

    def times(self, streams: Streams, count: int) -> np.ndarray:
        busy = self.rate * (self.on + self.off) / (self.on + self.quiet * self.off)
        # arrivals of unit rate in "expected so far", which that function's inverse turns into seconds
        due = np.cumsum(streams.get("arrivals").exponential(1.0, count))
        rng = streams.get("arrivals.spells")
        starts_on = rng.random() < self.on / (self.on + self.off)
        means = np.array([self.on, self.off] if starts_on else [self.off, self.on])
        rates = np.array([busy, busy * self.quiet] if starts_on else [busy * self.quiet, busy])
        time, expected = [np.zeros(1)], [np.zeros(1)]
        while count and expected[-1][-1] <= due[-1] and time[-1][-1] <= LATEST:
            if len(time) * CHUNK > MOST // 10:
                raise InputError(
                    f"more than {MOST // 10:,} busy spells of {self.on:g} s before {count:,} requests have come",
                    hint="raise the rate, or make the spells longer",
                )
            spells = (rng.exponential(1.0, (CHUNK, 2)) * means).ravel()
            time.append(time[-1][-1] + np.cumsum(spells))
            expected.append(expected[-1][-1] + np.cumsum(spells * np.tile(rates, CHUNK)))
        return np.interp(due, np.concatenate(expected), np.concatenate(time))

    def __str__(self) -> str:
        return f"on-off, {self.rate:g} a second, busy for {self.on:g} s and quiet for {self.off:g} s on average" + (
            f" at {self.quiet:g} of the busy rate" if self.quiet else ""
        )


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A Poisson process whose rate follows the day: rate × (1 + amplitude × sin(2π (t/period + phase))).

    Made by thinning a process of the peak rate (Lewis and Shedler, 1979).

    Attributes:
        rate: mean over a period.
        amplitude: swing as a share of the mean, in [0, 1].
        period: seconds.
        phase: where in the period t = 0 is; 0 starts at the mean and rises, 0.75 at the lowest.
    """

    rate: float
    amplitude: float = 0.5
    period: float = 86_400.0
    phase: float = 0.0

    def times(self, streams: Streams, count: int) -> np.ndarray:
        peak = self.rate * (1 + self.amplitude)
        rng, coin = streams.get("arrivals"), streams.get("arrivals.thinning")
        kept, got, now = [np.zeros(0)], 0, 0.0
        while got < count:
            candidates = now + np.cumsum(rng.exponential(1 / peak, CHUNK))
            now = candidates[-1]
            share = 1 + self.amplitude * np.sin(2 * np.pi * (candidates / self.period + self.phase))
            chosen = candidates[coin.random(len(candidates)) * (1 + self.amplitude) < share]
            kept.append(chosen)
            got += len(chosen)
        return np.concatenate(kept)[:count]

    def __str__(self) -> str:
        return f"diurnal, {self.rate:g} a second ± {self.amplitude:.0%} over {self.period:g} s"


@dataclass(frozen=True, slots=True)
class Rounded:
    """Another process's times rounded to a clock's `resolution`, as recorded traces have them."""

    process: ArrivalProcess
    resolution: float

    @property
    def rate(self) -> float:
        return self.process.rate

    def times(self, streams: Streams, count: int) -> np.ndarray:
        times = self.process.times(streams, count)
        ticks = round(1 / self.resolution)
        if ticks and abs(ticks * self.resolution - 1) < 1e-9:
            # division by whole ticks gives the double nearest to the decimal: written files stay short
            return np.round(times * ticks) / ticks
        return np.round(times / self.resolution) * self.resolution

    def __str__(self) -> str:
        return str(self.process)


def times_until(process: ArrivalProcess, streams: Streams, duration: float) -> np.ndarray:
    """All arrivals before `duration` seconds.

    Raises:
        InputError: too many to be meant.
    """
    expected = process.rate * duration
    count = 64 + int(expected + 4 * math.sqrt(expected)) if expected < MOST else MOST + 1
    while count <= MOST:
        times = process.times(streams, count)
        if times[-1] >= duration:
            return times[: np.searchsorted(times, duration)]
        count *= 2
    raise InputError(f"more than {MOST:,} requests in {duration:g} s", hint="lower the rate or the duration")


def parse_arrivals(section: Section | None) -> ArrivalProcess:
    """The process of an `arrivals:` section; none means all at once."""
    if section is None:
        return AtOnce()
    name = section.word("process", PROCESSES)
    resolution = section.seconds("resolution", None, above=0)
    process = PROCESSES[name](section, name)
    section.done()
    return Rounded(process, resolution) if resolution else process


def _rate(section: Section) -> float:
    return section.number("rate", above=0, most=FASTEST)


def _renewal(section: Section, name: str) -> ArrivalProcess:
    process = Renewal(name, section.number("rate", above=0, most=FASTEST, infinite=True))
    if name == "gamma":
        process = replace(process, burstiness=section.number("burstiness", 1.0, above=0))
    process = replace(process, normalize=section.flag("normalize"))
    return AtOnce() if math.isinf(process.rate) else process


def _on_off(section: Section, name: str) -> ArrivalProcess:
    on, off = section.seconds("on", above=0), section.seconds("off", above=0)
    quiet = section.number("quiet", 0.0, least=0, most=1)
    return OnOff(_rate(section), on, off, quiet)


def _diurnal(section: Section, name: str) -> ArrivalProcess:
    return Diurnal(
        _rate(section),
        section.number("amplitude", 0.5, least=0, most=1),
        section.seconds("period", 86_400.0, above=0),
        section.number("phase", 0.0),
    )


def _at_once(section: Section, name: str) -> ArrivalProcess:
    return AtOnce()


PROCESSES: dict[str, Callable[[Section, str], ArrivalProcess]] = {
    "constant": _renewal,
    "poisson": _renewal,
    "gamma": _renewal,
    "on-off": _on_off,
    "diurnal": _diurnal,
    "at-once": _at_once,
}
