"""When tokens reach the client: through a front end that streams only so many of them a second.

Tokens leave in the order of their steps through one server, the process that detokenises and writes to sockets. Each
occupies it for `FrontEnd.output_work`; all tokens of a step are out when the last is. Where that is faster than the engine's
steps they only come a little later; where it is slower, a queue builds up, and a closed loop goes at the front end's pace.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from backends.sim.drafting import DraftingExecutor
from backends.sim.executor import SimExecutor
from reports.run_data import TokenTimes


class Counting:
    """Has an executor tell how many tokens the plan that came back last gave those who decode (`rows`; in each of its steps), and
    whether it computes prompts (`prompts`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows, self.prompts = 0, False
        self._sent: dict[int, tuple[int, bool]] = {}

    def submit(self, plan: Any, *args: Any) -> Any:
        """Run a plan."""
        outcome = super().submit(plan, *args)
        tokens = plan.rows if outcome.gained is None else sum(outcome.gained)
        self._sent[id(outcome)] = tokens, bool(plan.chunks)
        return outcome

    def collect(self, ticket: Any) -> Any:
        """What came of a plan; the last step of a stretch comes as one of its own, of the same sequences."""
        self.rows, self.prompts = self._sent.pop(id(ticket), (self.rows, self.prompts))
        return super().collect(ticket)


class CountingExecutor(Counting, SimExecutor):
    """Of engines that decode a token a step."""


class CountingDrafts(Counting, DraftingExecutor):
    """Of engines that speculate."""


class Delivery:
    """The queue in front of the client, step by step.

    Args:
        lag: seconds from the end of a step to the client, without a queue. work: seconds that a token occupies the server.
    """

    def __init__(self, lag: float, work: float) -> None:
        self.lag, self.work = lag, work
        self.ends, self.out = array("d"), array("d")  # ends of steps, and when their tokens are out
        self._free = 0.0

    def steps(self, ends: Sequence[float], rows: int) -> None:
        """Steps that ended, each with a token for `rows` sequences."""
        busy, free, out = rows * self.work, self._free, self.out
        self.ends.extend(ends)
        # Steps of a stretch grow longer, so if the first leaves the server idle, all do.
        if free <= ends[0] and (len(ends) == 1 or 1.000001 * busy < ends[1] - ends[0]):
            out.extend([end + busy for end in ends])
            self._free = out[-1]
            return
        for end in ends:
            free = (free if free > end else end) + busy
            out.append(free)
        self._free = free

    def time(self, end: float) -> float:
        """When a token that the engine had at `end` is with the client."""
        at = bisect_right(self.ends, end) - 1
        out = self.out[at] if at >= 0 else end
        return (out if out > end else end) + self.lag

    def apply(self, tokens: TokenTimes, *others: np.ndarray, counts: np.ndarray | None = None) -> None:
        """Turn times at the engine into times at the client, in place: those of tokens, and `others`, which are among them.

        Args:
            counts: tokens of every decode step, where it gave sequences several.
        """
        if not self.work:
            for times in (tokens.start, tokens.step_ends, *others):
                times += self.lag
            return
        ends, out = np.array(self.ends), np.array(self.out)
        if not len(ends):  # nobody had to wait for it: worked out afterwards
            ends, out = tokens.step_ends.copy(), drained(tokens, self.work, counts)
        for times in (tokens.start, tokens.step_ends, *others):
            at = np.searchsorted(ends, times, "right") - 1
            known = at >= 0
            times[known] = np.fmax(times[known], out[at[known]]) + np.where(np.isnan(times[known]), np.nan, 0.0)
            times += self.lag


def drained(tokens: TokenTimes, work: float, counts: np.ndarray | None = None) -> np.ndarray:
    """When the tokens of every decode step are out, from how many sequences have one then, or from their `counts`."""
    ends = tokens.step_ends
    if counts is None:
        change = np.zeros(len(ends) + 1)
        np.add.at(change, tokens.first_step, 1)
        np.add.at(change, tokens.first_step + tokens.steps, -1)
        counts = np.cumsum(change)[: len(ends)]
    busy = np.cumsum(counts) * work
    before = np.concatenate([[0.0], busy[:-1]]) if len(ends) else busy
    return np.maximum(busy + np.maximum.accumulate(ends - before), ends) if len(ends) else ends
