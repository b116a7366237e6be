"""The traffic that a deployment has to serve, and the part of it that one of its replicas gets.

Replicas stand behind a router that hands out sessions in turn: replica i of R gets every R-th session. One replica is
simulated, or as many as it takes for the percentiles, and stands for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from experiments.schema import Workload
from experiments.traffic import make_traffic
from workloads.errors import InputError
from workloads.sharing import matched_tokens
from workloads.traffic import Traffic
from workloads.transform import declare, roots_of, scale_rate, take

MOST_ROWS = 400_000
"""Requests that synthetic traffic is made of at most, so that many replicas get enough each."""


@dataclass(frozen=True, slots=True)
class Demand:
    """All requests, and what is known of them before anything runs.

    Attributes:
        traffic: as its source has it, without the requests that the model can never take.
        rate: requests a second that arrive in the mean, later turns included; 0 in a closed loop.
        own: the same before it was scaled.
        concurrency: sessions in flight in a closed loop; 0 in an open one.
        inputs, outputs: mean tokens of a request.   longest: most tokens of one, prompt and answer.
        seen: share of the prompt tokens that an earlier prompt or answer had.
        notes: what was done to it, and what is left out.
    """

    traffic: Traffic
    rate: float
    concurrency: int
    inputs: float
    outputs: float
    longest: int
    seen: float
    own: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def share(self, replicas: int, which: int, rows: int) -> Traffic:
        """What replica `which` of `replicas` gets, of its busiest stretch if that is more than `rows` requests."""
        traffic = self.traffic
        roots = roots_of(traffic)
        place = np.cumsum(traffic.parent < 0) - 1  # of each session in order of arrival
        mine = np.flatnonzero(place[roots] % replicas == which)
        if len(mine) > rows:
            mine = _busiest(traffic, mine, roots, rows)
        part = take(traffic, mine)
        first = part.arrival.min(initial=np.inf)
        return replace(part, arrival=np.maximum(part.arrival - first, 0.0))


def _busiest(traffic: Traffic, rows: np.ndarray, roots: np.ndarray, count: int) -> np.ndarray:
    """Of these rows the sessions of the stretch with about `count` requests in which most tokens a second arrive."""
    first = rows[traffic.parent[rows] < 0]
    sizes = np.bincount(np.searchsorted(first, roots[rows]), minlength=len(first))
    tokens = traffic.input_tokens[rows] + traffic.output_tokens[rows]
    weight = np.bincount(np.searchsorted(first, roots[rows]), tokens, len(first))
    width = max(int(count / sizes.mean()), 1)
    if width >= len(first):
        return rows
    totals = np.concatenate([[0.0], np.cumsum(weight)])
    starts = np.arange(0, len(first) - width + 1)
    times = traffic.arrival[first]
    lasted = times[starts + width - 1] - times[starts]
    at = int(np.argmax((totals[starts + width] - totals[starts]) / np.maximum(lasted, 1e-9)))
    chosen = first[at : at + width]
    return rows[np.isin(roots[rows], chosen)]


def make_demand(
    workload: Workload, context: int, *, rate: float | None = None, replicas: int = 1, rows: int = 0
) -> Demand:
    """The demand of a workload.

    Args:
        context: longest prompt plus answer that the model takes, in tokens.
        rate: requests a second to scale the arrivals to; None leaves them.
        replicas, rows: synthetic traffic is made long enough for so many replicas with so many requests each.

    Raises:
        InputError: the traffic cannot be read, is empty, or fits the model in no request.
    """
    closed = workload.load.mode == "closed"
    if rate is not None and closed:
        raise InputError("--rate belongs to traffic with arrival times; this workload is a closed loop")
    section = workload.traffic.synthetic
    notes: list[str] = []
    if section is not None and section.get("requests", 0) < replicas * rows:
        wanted = min(replicas * rows, MOST_ROWS)
        if wanted > section.get("requests", 0):
            longer = workload.traffic.model_copy(update={"synthetic": {**section, "requests": wanted}})
            workload = workload.model_copy(update={"traffic": longer})
    traffic = make_traffic(workload)
    traffic.validate()
    traffic, left = _fitting(traffic, context)
    if left:
        are = "request is" if left == 1 else "requests are"
        notes.append(f"{left:,} {are} longer than the model's context of {context:,} tokens and left out")
    span = float(np.ptp(traffic.arrival[traffic.parent < 0]))
    sessions = int((traffic.parent < 0).sum())
    now = 0.0 if closed or sessions < 2 or span <= 0 else (sessions - 1) / span * len(traffic) / sessions
    if not closed and now <= 0:
        raise InputError(
            "the traffic has no arrival times to tell a rate from",
            hint="a workload file with traffic.trace.arrivals: {process: poisson, rate: 1} gives some",
        )
    own = now
    if rate is not None:
        traffic, now = scale_rate(traffic, rate / now), rate
    return Demand(
        traffic, now, workload.load.concurrency or 0, float(traffic.input_tokens.mean()),
        float(traffic.output_tokens.mean()), int((traffic.input_tokens + traffic.output_tokens).max()),
        _seen(traffic), own, (*traffic.notes, *notes),
    )  # fmt: skip


def _fitting(traffic: Traffic, context: int) -> tuple[Traffic, int]:
    """The requests that fit the model's context, and how many do not; an answer may be cut, a prompt not."""
    keep = traffic.input_tokens < context
    if keep.all():
        return traffic, 0
    if not keep.any():
        raise InputError(
            f"every prompt is longer than the model's context of {context:,} tokens", hint="choose another model"
        )
    return take(traffic, np.flatnonzero(keep)), int((~keep).sum())


def _seen(traffic: Traffic) -> float:
    if traffic.spans is None:
        return 0.0
    return float(matched_tokens(traffic).sum() / traffic.input_tokens.sum())


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a demand depends on, so that a process makes each once."""

    source: str
    context: int
    rate: float | None
    replicas: int
    rows: int
    workload: Workload = field(compare=False)


@lru_cache(maxsize=2)
def demand_of(wanted: Wanted) -> Demand:
    """`make_demand`, once a process."""
    return make_demand(
        wanted.workload, wanted.context, rate=wanted.rate, replicas=wanted.replicas, rows=wanted.rows
    )  # fmt: skip


def declared(traffic: Traffic, workload: Workload, max_model_len: int) -> Traffic:
    """A replica's traffic with what clients declare, which depends on the longest request that the engine takes."""
    return declare(traffic, workload.traffic.max_tokens, max_model_len)
