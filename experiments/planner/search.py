"""How many replicas a candidate needs: a bisection over simulations, between what arithmetic and the budget allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from experiments.planner.bounds import Bounds, bounds
from experiments.planner.candidates import Candidate
from experiments.planner.evaluate import Evaluation, evaluate, evaluate_run, prepared
from experiments.planner.question import Question
from experiments.resolve import Resolved
from workloads.errors import InputError

if TYPE_CHECKING:
    from reports.run_data import RunData

FINE = 32
"""Replicas up to which their number is found exactly; beyond, within 3 %."""
LONGER = 5
"""How many times the requests of the search the last look takes."""
STAYS = 6
"""Requests simulated of a replica for each that it has in flight, so that it settles."""
MEETS, MEMORY, ALONE, BOUND, BUDGET, SIMULATED, FAULT = (
    "meets the SLO", "memory", "lone request", "bound", "dearer", "simulated", "impossible",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is to find out.

    Attributes:
        longest: tokens of the longest request that engines are set up for.
        most: replicas at most, and in words why not more.
        rows: requests to simulate of a replica; 0 = as many as it takes.
    """

    question: Question
    candidate: Candidate
    longest: int
    most: int
    why: str
    rows: int = 0


@dataclass(slots=True)
class Found:
    """What became of a candidate.

    Attributes:
        stage: how far it came: `MEETS`, or what it was refused by.   reason: in words; "" where it meets.
        replicas: how many it needs; 0 where it is refused.   weights: name of the mode in effect.
        usd_per_hour: of all replicas; None where no price is known.
        at, below: what was simulated at that number, and with fewer replicas where that failed.
        tried: replicas → whether they meet the SLO, in the order in which they were simulated.
        ranges: figure → 80 % range in milliseconds, once verified.   output_per_replica: tokens a second.
    """

    candidate: Candidate
    stage: str = ""
    reason: str = ""
    replicas: int = 0
    weights: str = ""
    usd_per_hour: float | None = None
    bounds: Bounds | None = None
    at: Evaluation | None = None
    below: Evaluation | None = None
    tried: dict[int, bool] = field(default_factory=dict)
    ranges: dict[str, list[float]] = field(default_factory=dict)
    verified: bool = False

    @property
    def meets(self) -> bool:
        """Whether some number of replicas meets the SLO."""
        return self.stage == MEETS

    @property
    def gpus(self) -> int:
        """Of all replicas."""
        return self.replicas * self.candidate.gpus

    @property
    def cost(self) -> tuple[float, int, bool, bool, float]:
        """What is to be small: dollars, then GPUs, then what is changed of the model and of the engine, then how near the SLO
        is."""
        worst = self.at.worst if self.at else 0.0
        return (
            round(self.usd_per_hour or 0.0, 6),
            self.gpus,
            not self.candidate.plain,
            bool(self.candidate.knobs),
            worst,
        )


@lru_cache(maxsize=256)
def _resolved(candidate: Candidate, longest: int, key: str, question: _Hidden) -> Resolved:
    return candidate.resolve(question.value.workload, longest)


@dataclass(frozen=True, slots=True)
class _Hidden:
    """A value that takes no part in a cache's key."""

    value: Question = field(compare=False)


def resolved(question: Question, candidate: Candidate, longest: int) -> Resolved:
    """The candidate, ready to run; each is made once a process.

    Raises:
        InputError: it does not fit.
    """
    return _resolved(
        candidate, longest, f"{question.workload.source.file} {question.workload.plain()}", _Hidden(question)
    )


def look(question: Question, candidate: Candidate, longest: int) -> Found:
    """Memory and arithmetic: without a simulation."""
    try:
        found = resolved(question, candidate, longest)
    except InputError as error:
        stage = MEMORY if "fit" in str(error) or "KV" in str(error) else FAULT
        return Found(candidate, stage, _short(error))
    limit = bounds(found, question.demand(), question.limits)
    result = Found(candidate, weights=found.budget.weights, bounds=limit)
    if limit.problem:
        result.stage, result.reason = ALONE, limit.problem
    return result


def _short(error: InputError) -> str:
    """The error without the place, which is in no file of the user's."""
    return error.message + (f" ({error.hint})" if error.hint else "")


def search(task: Task) -> Found:
    """The fewest replicas of a candidate that meet the SLO."""
    question, candidate = task.question, task.candidate
    found = look(question, candidate, task.longest)
    if found.stage:
        return found
    assert found.bounds is not None
    engine, demand = resolved(question, candidate, task.longest), question.demand()
    seen: dict[int, Evaluation] = {}

    def meets(replicas: int) -> bool:
        if replicas not in seen:
            seen[replicas] = evaluate(engine, demand, question.limits, replicas, rows_for(task, found.bounds))
        return seen[replicas].meets

    least = min(found.bounds.least, task.most)
    replicas = fewest(meets, least, found.bounds.guess, task.most)
    found.tried = {count: each.meets for count, each in seen.items()}
    if replicas is None:
        last = seen[task.most]
        found.stage, found.at = (SIMULATED, last)
        found.reason = f"with {task.most} replica{'s' * (task.most > 1)}, {task.why}: {last.reason}"
        return found
    found.stage, found.replicas, found.at = MEETS, replicas, seen[replicas]
    under = [count for count in seen if count < replicas]
    found.below = seen[max(under)] if under else None
    return found


def rows_for(task: Task, limit: Bounds) -> int:
    """Requests to simulate of a replica."""
    most = task.question.requests
    return task.rows or max(most, min(STAYS * limit.batch, 4 * most))


def fewest(meets: Callable[[int], bool], least: int, guess: int, most: int) -> int | None:
    """The least number from `least` to `most` that meets, looked for around a guess; None where `most` does not.

    More are taken to be no worse than fewer. Above `FINE` it is within 3 %.
    """
    low, high = least - 1, None
    now, step = min(max(guess, least), most), 1
    if meets(now):
        high = now
        while high > least:
            now = max(high - step, least)
            if not meets(now):
                low = now
                break
            high, step = now, 2 * step
    else:
        low = now
        while high is None:
            if low >= most:
                return None
            now = min(low + step, most)
            if meets(now):
                high = now
            else:
                low, step = now, 2 * step
    while high - low > max(1, ceil(0.03 * high) if high > FINE else 1):
        middle = (low + high) // 2
        if meets(middle):
            high = middle
        else:
            low = middle
    return high


def verify(task: Task) -> Found:
    """A candidate with `task.most` replicas on more of the traffic, with the ranges of its figures.

    The search looks at the busiest stretch of long traffic; where that was a part, fewer replicas may do for the whole.

    Returns:
        `MEETS` or `SIMULATED`.
    """
    question, candidate, count = task.question, task.candidate, task.most
    found = look(question, candidate, task.longest)
    engine, demand = resolved(question, candidate, task.longest), question.demand()
    assert found.bounds is not None
    first = rows_for(task, found.bounds)
    rows = LONGER * first

    def at(replicas: int) -> tuple[Evaluation, RunData]:
        each, run = evaluate_run(engine, demand, question.limits, replicas, rows)
        found.tried[replicas] = each.meets
        return each, run

    found.verified = True
    found.at, run = at(count)
    while found.at.meets and count > 1 and len(demand.traffic) / count > first and not task.why:
        fewer, its_run = at(count - 1)
        if not fewer.meets:
            found.below = fewer
            break
        found.at, run, count = fewer, its_run, count - 1
    good = found.at.meets
    found.stage, found.reason, found.replicas = (MEETS, "", count) if good else (SIMULATED, found.at.reason, 0)
    _add_ranges(found, question, prepared(engine, demand, count, 0, rows), run)
    return found


def _add_ranges(found: Found, question: Question, part: Resolved, data: RunData) -> None:
    """The 80 % ranges of the figures."""
    from experiments.intervals import add_spread
    from reports.metrics import summarize

    summary = summarize(data)
    add_spread(part, data, summary)
    ends = (summary.get("interval") or {}).get("figures") or {}
    for limit in question.limits:
        shown, own, value = ends.get(limit.key), summary.get(limit.key), found.at.figures[limit.key]
        if shown and own and value is not None:  # as shares of the figure, since that may be of several replicas
            found.ranges[limit.key] = [value * end / own for end in shown]


def priced(found: Found, question: Question) -> Found:
    """With what it costs."""
    price = question.prices.get(found.candidate.gpu)
    usd = price.usd_per_hour * found.gpus if price and found.replicas else None
    return replace(found, usd_per_hour=usd)
