"""Runs plans against a cost model: time is computed, tokens are counted.

It alone knows the true length of every answer. A decoding sequence's last token is due at a known value of the cohort's
counter, so ends are kept in a calendar and no step looks at rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from heapq import heappop, heappush

import numpy as np

from sim.cost.base import CostModel, StepShape
from sim.engine.plan import NO_MOVES, StepOutcome, StepPlan
from sim.engine.sequence import Sequence

_NEVER = 1 << 62
_VECTOR = 96
"""Stretches of at least this many steps are summed by numpy; below it a loop is quicker. The sums are the same to the bit."""


class SimExecutor:
    """An executor in virtual time.

    Args:
        cost: prices the steps.
        depth: plans in flight. With two, the next plan is made before this one is known to have ended an answer.
    """

    knows_lengths = True

    def __init__(self, cost: CostModel, depth: int = 1) -> None:
        self._cost = cost
        self.depth = depth
        self._ahead = depth > 1
        self._ending = False  # whether an answer ended with the last step submitted
        self._lengths: dict[Sequence, int] = {}
        self._due: dict[Sequence, int] = {}
        self._calendar: dict[int, dict[Sequence, None]] = {}
        self._ticks: list[int] = []
        self._line = (0, 0, 0.0, 0.0)
        self._line_rows = 0
        self._busy_until = self._began = 0.0

    def length(self, seq: Sequence) -> int:
        """The true length of an answer: the simulator's `LengthOracle`."""
        return self._lengths[seq]

    def start(self, seq: Sequence, output_tokens: int) -> None:
        self._lengths[seq] = output_tokens

    def forget(self, seq: Sequence) -> None:
        self._lengths.pop(seq, None)
        if seq in self._due:  # else its answer has ended
            self._strike(seq)

    def forked(self, child: Sequence, tick: int) -> None:
        left = self._lengths[child] - 1
        if left:
            self._expect(child, tick, left)

    def received(self, seq: Sequence, tick: int, tokens: int) -> None:
        """The KV of `seq` came from elsewhere, with `tokens` tokens of its answer; it decodes from counter `tick` on."""
        self._expect(seq, tick, self._lengths[seq] - tokens)

    def submit(self, plan: StepPlan, now: float, until: float) -> StepOutcome:
        start = self._began = self._busy_until if self._busy_until > now else now
        tick = plan.tick
        ended: list[Sequence] = []
        if plan.moves is not NO_MOVES:
            for seq in plan.moves.preempted:
                self._strike(seq)
            for seq, tokens, _ in plan.moves.swapped_in:
                self._expect(seq, tick, self._lengths[seq] - (tokens + 1 - seq.prompt_tokens))
        if plan.chunks:
            after = tick + 1 if plan.cohort is not None else tick
            for seq, tokens, past, _, samples in plan.chunks:
                if samples:
                    self._sampled(seq, past + tokens, after, ended)
        if plan.cohort is None:
            outcome = StepOutcome((start + self._cost.step_seconds(shape_of(plan)),), ended)
        else:
            outcome = self._decode(plan, start, until, ended)
        self._busy_until = outcome.ends[-1]
        self._ending = bool(outcome.ended)
        return outcome

    def collect(self, ticket: StepOutcome) -> StepOutcome:
        return ticket

    def shorten(self, plan: StepPlan, outcome: StepOutcome, until: float) -> None:
        """Make a stretch, the last plan submitted, as long as if it had been submitted with this `until`."""
        ends = outcome.ends
        steps = bisect_left(ends, until) + 1
        if self._ahead:
            steps = 1 if self._began >= until else steps + 1
        if steps >= len(ends):
            return
        last, due = plan.tick + len(ends), plan.tick + steps
        for seqs, tick in ((outcome.ended, last), (outcome.ended_before, last - 1)):
            for seq in seqs:
                self._expect(seq, tick, 0)
        outcome.ends, outcome.ended_before = ends[:steps], ()
        outcome.ended = [*self._take_due(due)] if due in self._calendar else []
        self._busy_until = outcome.ends[-1]
        self._ending = bool(outcome.ended)

    # --- ends of answers

    def _sampled(self, seq: Sequence, known: int, after: int, ended: list[Sequence]) -> None:
        """All `known` tokens are computed and another came; the rest of the answer is due from counter `after` on."""
        left = self._lengths[seq] - (known - seq.prompt_tokens) - 1
        if left > 0:
            self._expect(seq, after, left)
        else:
            ended.append(seq)
        for child in seq.siblings:
            if self._lengths[child] <= 1:
                ended.append(child)

    def _expect(self, seq: Sequence, tick: int, left: int) -> None:
        """The last `left` tokens of its answer come from counter `tick` on."""
        self._due[seq] = tick = tick + left
        bucket = self._calendar.get(tick)
        if bucket is None:
            self._calendar[tick] = {seq: None}
            heappush(self._ticks, tick)
        else:
            bucket[seq] = None

    def _strike(self, seq: Sequence) -> None:
        """Its answer does not end when it was due."""
        tick = self._due.pop(seq, None)
        if tick is not None:
            del self._calendar[tick][seq]

    # --- time

    def _decode(self, plan: StepPlan, start: float, until: float, ended: list[Sequence]) -> StepOutcome:
        tick = plan.tick
        ticks, calendar = self._ticks, self._calendar
        while ticks and not calendar[ticks[0]]:  # all of them were struck off
            del calendar[heappop(ticks)]
        due = ticks[0] if ticks else _NEVER
        if plan.repeat == 1:
            if plan.chunks or (plan.moves is not NO_MOVES and plan.moves.swaps):
                ends = (start + self._cost.step_seconds(shape_of(plan)),)
            else:
                rows, context = plan.rows, plan.context
                low, high, intercept, slope = self._line
                if rows != self._line_rows or not low <= context < high:
                    _, _, intercept, slope = self._decode_line(rows, context)
                ends = (start + (intercept + slope * context),)
        else:
            steps = min(plan.repeat, due - tick)
            if self._ahead:  # one step more: that something ended is known only when the next is on its way
                steps = 1 if self._ending else min(plan.repeat, due - tick + 1)
            if due == _NEVER and steps > 1:
                raise RuntimeError("sequences decode whose answers are never due; no stretch of their steps would end")
            ends = self._stretch(plan.rows, plan.context, steps, start, until)
        last = tick + len(ends)
        if due == last:
            ended += self._take_due(due)
        elif due < last:
            before = list(self._take_due(due))
            again = ticks and ticks[0] == last and calendar[last]
            return StepOutcome(ends, [*self._take_due(last)] if again else ended, before)
        return StepOutcome(ends, ended)

    def _take_due(self, due: int) -> Iterable[Sequence]:
        """Whose last token comes at this counter value."""
        heappop(self._ticks)
        last = self._calendar.pop(due)
        for seq in last:
            del self._due[seq]
        return last

    def _decode_line(self, rows: int, context: int):
        line = self._line
        if rows != self._line_rows or not line[0] <= context < line[1]:
            line = self._line = self._cost.decode_line(rows, context)
            self._line_rows = rows
        return line

    def _stretch(self, rows: int, context: int, steps: int, now: float, until: float) -> list[float]:
        """End times of up to `steps` decode steps.

        The last is the first that ends at or after `until`; with two plans in flight, the one after the first such end, since
        it was planned before.
        """
        ends: list[float] = []
        ahead = self._ahead
        while steps > 0:
            _, high, intercept, slope = self._decode_line(rows, context)
            part = min(steps, -(-(high - context) // rows))
            if part >= _VECTOR:
                times = np.empty(part + 1)
                times[0] = now
                np.multiply(np.arange(context, context + part * rows, rows), slope, out=times[1:])
                times[1:] += intercept
                np.cumsum(times, out=times)
                stop = int(times[0 if ahead else 1 :].searchsorted(until)) + 1
                ends += times[1 : min(part, stop) + 1].tolist()
                if stop <= part:
                    return ends
                now = ends[-1]
                context += part * rows
            else:
                for _ in range(part):
                    before = now
                    now += intercept + slope * context
                    ends.append(now)
                    context += rows
                    if (before if ahead else now) >= until:
                        return ends
            steps -= part
        return ends


def shape_of(plan: StepPlan) -> StepShape:
    """A plan as the cost model sees it."""
    moved = 0
    if plan.moves is not NO_MOVES:
        moved = sum(move.tokens for move in plan.moves.swaps)
    sampled = plan.rows
    chunks = []
    for seq, _, past, width, samples in plan.chunks:
        chunks.append((width, past))
        if samples:
            sampled += 1 + len(seq.siblings)
    if plan.drafts is None:
        return StepShape(plan.rows, plan.context, tuple(chunks), sampled, swapped_tokens=moved)
    drafts = sum(plan.drafts.counts)
    return StepShape(
        plan.rows, plan.context + drafts, tuple(chunks), sampled + drafts, swapped_tokens=moved, drafts=drafts,
        passes=plan.drafts.passes,
    )  # fmt: skip
