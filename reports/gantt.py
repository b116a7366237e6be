"""When each request of a small run waited, was prefilled and decoded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.run_data import RunData

MOST_REQUESTS = 120
QUEUE, PREFILL, DECODE = "queue", "prefill", "decode"
FIRST = "to the first token"
PHASES = (QUEUE, PREFILL, DECODE)
SEEN_FROM_OUTSIDE = (FIRST, DECODE)


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a request. `row`: its place in the order of sending; `start`, `end`: seconds; `phase`: of `phases_of`."""

    row: int
    start: float
    end: float
    phase: str


def phases_of(data: RunData) -> tuple[str, ...]:
    """What a request goes through; where nobody saw when any was admitted (a remote server), queue and prefill are one."""
    return PHASES if np.isfinite(data.requests.admitted).any() else SEEN_FROM_OUTSIDE


def bars(data: RunData) -> list[Bar]:
    """The phases of every request that was sent, in order of sending.

    The queue lasts from sending to admission (a preempted request's later waits are part of its decoding), prefill to the first
    token, decode to the last. What had not ended by the end of the run goes on until then.
    """
    r, end, phases = data.requests, float(data.info["end"]), phases_of(data)
    found = []
    for row, i in enumerate(order(data)):
        admitted, first, finish = (float(x[i]) for x in (r.admitted, r.first_token, r.finish))
        started = float(r.sent[i])
        stages = list(zip(phases, (admitted, first, finish)[-len(phases) :], strict=True))
        if np.isnan(admitted) and not np.isnan(first) and phases == PHASES:
            stages = stages[1:]
        for phase, until in stages:
            stop = min(end if np.isnan(until) else until, end)
            if stop > started:
                found.append(Bar(row, started, stop, phase))
            if np.isnan(until):
                break
            started = max(started, until)
    return found


def order(data: RunData) -> np.ndarray:
    """Rows of the requests that were sent, in order of sending."""
    sent = data.requests.sent
    known = np.flatnonzero(np.isfinite(sent))
    return known[np.argsort(sent[known], kind="stable")]
