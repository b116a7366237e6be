"""The plan: every candidate looked at, the cheapest that holds, how surely, and what would have to change where none does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from experiments.planner.candidates import Candidate, candidates, longest_request, with_knobs
from experiments.planner.prices import dollars
from experiments.planner.question import Question
from experiments.planner.search import BOUND, BUDGET, SIMULATED, Found, Task, look, priced, search, verify
from workloads.errors import InputError

WAVE = 8
"""Candidates searched between two looks at the cheapest so far: a fixed number, so that nothing depends on who is quicker."""
REFINED, TOKENS = 3, (512, 1024, 2048, 4096, 16384)
MOST_CHECKS = 12
Tell = Callable[[int, int, str], None]
Map = Callable[[Callable[[Task], Found], Sequence[Task]], Iterator[Found]]


@dataclass(slots=True)
class Plan:
    """What was found.

    Attributes:
        best: the cheapest that meets the SLO; None where nothing does.
        sure: the least of it whose figures stay within the SLO over their whole 80 % range; None where that is not found.
        plain: the cheapest without further quantization, where `best` has some.
        roomier: as cheap as the best, with as many GPUs, and farther from the limits; None where there is none.
        unpriced: the fewest GPUs of each kind that has no price, where others have one.
        found: every candidate, as far as it came, in the order in which they were listed.
        closest: where nothing meets the SLO, what came nearest.   advice: what would have to change.
        simulations: how many were run.   longest: tokens that engines are set up for.
    """

    question: Question
    longest: int
    found: list[Found]
    best: Found | None = None
    sure: Found | None = None
    plain: Found | None = None
    roomier: Found | None = None
    unpriced: list[Found] = field(default_factory=list)
    closest: Found | None = None
    advice: list[str] = field(default_factory=list)
    simulations: int = 0

    @property
    def margin(self) -> float | None:
        """Share of the tightest limit that is left."""
        return 1 - self.best.at.worst if self.best and self.best.at else None

    @property
    def within_error(self) -> bool:
        """Whether a range of the best's figures reaches beyond a limit."""
        return self.best is not None and not holds_surely(self.best, self.question)

    @property
    def binds(self) -> str:
        """What stands in the way of fewer replicas, or of more load where there is but one."""
        if self.best is None or self.best.at is None:
            return ""
        return (self.best.below or self.best.at).binds


def make_plan(question: Question, *, workers: int = 1, tell: Tell = lambda done, total, what: None) -> Plan:
    """Look for the cheapest deployment.

    Args:
        workers: processes that simulate; the plan does not depend on it.   tell: called with (done, in all, what).

    Raises:
        InputError: the traffic cannot be used.
    """
    listed, longest = candidates(question), longest_request(question)
    with _pool(workers) as run:
        hunt = _Hunt(question, longest, run, tell)
        hunt.look_at(listed)
        hunt.search_all()
        hunt.refine()
        hunt.check_all()
        plan = Plan(question, longest, list(hunt.found.values()))
        plan.best = hunt.best(hunt.groups)
        plan.plain = hunt.best(hunt.groups, plain=True) if plan.best and not plan.best.candidate.plain else None
        if question.prices:
            kinds = [gpu.name for gpu in question.gpus if gpu.name not in question.prices]
            plan.unpriced = [each for kind in kinds if (each := hunt.best([kind]))]
        plan.roomier = hunt.roomier(plan.best) if plan.best else None
        plan.sure = hunt.surely(plan.best) if plan.best else None
        if plan.best is None:
            from experiments.planner.nothing import advise

            plan.closest, plan.advice = advise(hunt.question, plan.found, longest, run)
        plan.simulations = hunt.simulations
    return plan


def holds_surely(found: Found, question: Question) -> bool:
    """Whether the 80 % ranges of all figures stay within the limits."""
    return bool(found.ranges) and all(
        found.ranges[limit.key][1] <= limit.seconds * 1e3 for limit in question.limits if limit.key in found.ranges
    )


class _Hunt:
    """The search over all candidates.

    Attributes:
        found: candidate → what became of it.   groups: kinds of GPU that are ranked with each other.
    """

    def __init__(self, question: Question, longest: int, run: Map, tell: Tell) -> None:
        self.question, self.longest, self._run, self._tell = question, longest, run, tell
        self.found: dict[Candidate, Found] = {}
        names = [gpu.name for gpu in question.gpus]
        self.groups = [name for name in names if name in question.prices] or names
        self.simulations = 0

    def look_at(self, listed: Sequence[Candidate]) -> None:
        """Memory and arithmetic for all."""
        for done, each in enumerate(listed):
            self.found[each] = look(self.question, each, self.longest)
            self._tell(done, 2 * len(listed), "memory and bounds")

    def search_all(self) -> None:
        """Simulate what is left, the cheapest by its estimate first, in waves."""
        left = [found for found in self.found.values() if not found.stage]
        left.sort(key=lambda found: self._estimate(found, found.bounds.guess))
        total, done = 2 * len(self.found), 2 * len(self.found) - len(left)
        while left:
            wave, left = left[:WAVE], left[WAVE:]
            tasks = [task for found in wave if (task := self._task(found))]
            for each in self._run(search, tasks):
                self._keep(each)
                done += 1
                self._tell(done, total, each.candidate.describe(each.weights))

    def refine(self) -> None:
        """Other token budgets and batch sizes for what came nearest: perhaps one replica less is enough."""
        tasks = []
        for found in self._near():
            most, why = self._most(found)
            if found.meets:
                most, why = found.replicas - 1, "one fewer than without these settings"
            if most < 1:
                continue
            for each in self._variants(found):
                self.found.setdefault(each, Found(each))
                tasks.append(Task(self.question, each, self.longest, most, why))
        for each in self._run(search, tasks):
            self._keep(each)

    def _near(self) -> list[Found]:
        """The cheapest of those that meet the SLO, or else those that miss it least."""
        meeting = [found for found in self.found.values() if found.meets and found.candidate.gpu in self.groups]
        if meeting:
            return sorted(meeting, key=lambda found: found.cost)[:REFINED]
        missing = [found for found in self.found.values() if found.at and found.candidate.gpu in self.groups]
        return sorted(missing, key=lambda found: (found.at.overloaded, found.at.worst))[:REFINED]

    def _variants(self, found: Found) -> list[Candidate]:
        """The candidate with other budgets, and with a batch that keeps to the TPOT; nothing that the user has set."""
        from experiments.planner.search import resolved

        written = self.question.workload.engine.scheduler.written()
        now = resolved(self.question, found.candidate, self.longest).engine.scheduler
        variants = []
        if "max_num_batched_tokens" not in written:
            variants += [
                with_knobs(found.candidate, max_num_batched_tokens=tokens)
                for tokens in TOKENS
                if tokens != now.max_num_batched_tokens
            ]
        batch = found.bounds.batch if found.bounds else 0
        if "max_num_seqs" not in written and 1 < batch < now.max_num_seqs:
            variants.append(with_knobs(found.candidate, max_num_seqs=batch))
        return variants

    def check_all(self) -> None:
        """Run the cheapest again on more of the traffic, until the cheapest is one that holds there too."""
        for _ in range(MOST_CHECKS):
            ahead = [f for plain in (False, True) for group in self._sets() if (f := self.best(group, plain=plain))]
            best = self.best(self.groups)
            roomier = self.roomier(best) if best and best.verified else None
            ahead += [roomier] if roomier else []
            todo = list({id(found): found for found in ahead if not found.verified}.values())
            if not todo:
                return
            tasks = [Task(self.question, f.candidate, self.longest, f.replicas, "") for f in todo]
            for before, after in zip(todo, self._run(verify, tasks), strict=True):
                self._checked(before, after)

    def _checked(self, before: Found, after: Found) -> None:
        """What a second look says; one replica more is tried where it says no."""
        self.simulations += len(after.tried)
        after.tried = {**before.tried, **after.tried}
        if after.meets:
            after.below = after.below or (before.below if after.replicas == before.replicas else None)
        else:
            most, why = self._most(before, incumbent=False)
            after.below = after.at
            if before.replicas < most:  # to be checked in its turn
                after = replace(after, stage=before.stage, reason="", replicas=before.replicas + 1, verified=False)
            else:
                after.reason = f"with {before.replicas} replicas, {why}: {after.reason}"
        self.found[before.candidate] = priced(after, self.question)

    def surely(self, best: Found) -> Found | None:
        """The best with as many more replicas as its ranges need."""
        if holds_surely(best, self.question):
            return best
        most, step, count = self._most(best, incumbent=False)[0], 1, best.replicas
        while best.ranges and count < most and count < 3 * best.replicas + 2:
            count, step = min(count + step, most), step + 1
            task = Task(self.question, best.candidate, self.longest, count, "this many")
            (after,) = self._run(verify, [task])
            self.simulations += 1
            if after.meets and holds_surely(after, self.question):
                return priced(after, self.question)
        return None

    def best(self, kinds: Sequence[str], *, plain: bool = False) -> Found | None:
        """The cheapest of some kinds of GPU that meets the SLO."""
        meeting = [
            found
            for found in self.found.values()
            if found.meets and found.candidate.gpu in kinds and (found.candidate.plain or not plain)
        ]
        return min(meeting, key=lambda found: found.cost, default=None)

    def roomier(self, best: Found) -> Found | None:
        """As cheap as the best and with as many GPUs, but farther from the limits."""
        same = [f for f in self.found.values() if f.meets and f.cost[:2] == best.cost[:2]]
        same = [f for f in same if f.candidate.gpu in self.groups and f.at.worst < 0.9 * best.at.worst]
        return min(same, key=lambda found: found.at.worst, default=None)

    def _sets(self) -> list[list[str]]:
        """Kinds of GPU that are ranked with each other, each set apart."""
        return [self.groups, *([gpu.name] for gpu in self.question.gpus if gpu.name not in self.groups)]

    def _task(self, found: Found) -> Task | None:
        """What is to be searched, unless arithmetic says that it is dearer than what there is."""
        most, why = self._most(found)
        if most < found.bounds.least:
            least, usd = found.bounds.least, self._estimate(found, found.bounds.least)[0]
            price = f" ({dollars(usd)}/h)" if found.candidate.gpu in self.question.prices else ""
            said = (
                why.removeprefix("more would be ")
                if why.startswith("more")
                else f"more than {self.question.max_gpus} GPUs"
            )
            found.stage = BOUND
            found.reason = f"needs at least {least} replica{'s' * (least > 1)}{price} by its best batch: {said}"
            return None
        return Task(self.question, found.candidate, self.longest, most, why)

    def _most(self, found: Found, *, incumbent: bool = True) -> tuple[int, str]:
        """Replicas at most, and why not more."""
        each = found.candidate.gpus
        most, why = self.question.max_gpus // each, f"all that {self.question.max_gpus} GPUs allow"
        kinds = next(group for group in self._sets() if found.candidate.gpu in group)
        ahead = self.best(kinds, plain=found.candidate.plain) if incumbent else None
        if ahead is None:
            return most, why
        price = self.question.prices.get(found.candidate.gpu)
        if price and ahead.usd_per_hour:
            limit = int(ahead.usd_per_hour / (price.usd_per_hour * each) * (1 + 1e-9))
            told = f"more would be dearer than {dollars(ahead.usd_per_hour)}/h"
        else:
            limit, told = ahead.gpus // each, f"more would be more than {ahead.gpus} GPUs"
        return (limit, told) if limit < most else (most, why)

    def _estimate(self, found: Found, replicas: int) -> tuple[float, int]:
        price = self.question.prices.get(found.candidate.gpu)
        gpus = replicas * found.candidate.gpus
        return (gpus * price.usd_per_hour if price else float(gpus), gpus)

    def _keep(self, found: Found) -> None:
        self.simulations += len(found.tried)
        if found.stage == SIMULATED and "dearer" in found.reason:
            found.stage = BUDGET
        self.found[found.candidate] = priced(found, self.question)


@contextmanager
def _pool(workers: int) -> Iterator[Map]:
    """Something that runs tasks and gives their results in the order of the tasks."""
    if workers <= 1:
        yield lambda function, tasks: map(function, tasks)
        return
    from experiments.worker_pool import worker_pool

    with worker_pool(workers) as submit:

        def run(function: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[Found]:
            futures = [submit(function, task) for task in tasks]
            for future in futures:
                yield future.result()

        yield run


def check_question(question: Question) -> None:
    """Say before the search that the traffic is too small for the percentiles asked for.

    Raises:
        InputError: it is.
    """
    fewest, there = max(limit.fewest for limit in question.limits), len(question.demand().traffic)
    if there < fewest:
        worst = max(question.limits, key=lambda limit: limit.fewest)
        raise InputError(
            f"{worst.name} needs {fewest} requests, and the traffic has {there}",
            hint="a lower percentile, or more traffic",
        )
