"""What an engine leaves behind while it runs: rows noted once, columns made at the end.

Times of tokens are not stored one by one. Decode steps have a shared array of end times (`step_ends`, indexed by the
cohort's counter); a sequence's tokens are a *segment*: one at the end of its prefill, then one at each of so many counters.
Only a preempted sequence has more than one.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from sim.engine.plan import StepPlan
from sim.engine.sequence import Sequence
from sim.engine.state import RESERVING, EngineState

_SAMPLES = 512
_PACK = 1 << 16


class Table:
    """Rows of equal shape, kept as tuples for a while and as arrays for good. `add(row)` appends a tuple."""

    def __init__(self, *columns: str) -> None:
        self.columns = columns
        self.rows: list[tuple] = []
        self.add = self.rows.append
        self._blocks: list[np.ndarray] = []

    def pack(self) -> None:
        """Turn the rows into an array."""
        self._blocks.append(np.array(self.rows, np.float64).reshape(len(self.rows), len(self.columns)))
        self.rows.clear()

    def array(self) -> dict[str, np.ndarray]:
        """All rows so far, by column; float64."""
        if self.rows or not self._blocks:
            self.pack()
        table = np.concatenate(self._blocks)
        return {name: table[:, index] for index, name in enumerate(self.columns)}


class Sample(NamedTuple):
    """The state of an engine at `time` (seconds) and its counters up to then; `kv_*` and `swapped` in tokens and sequences.

    `kept_back`: tokens of KV that nobody holds, but that a gate keeps for what running sequences declared. They count as
    free or cached in `kv_*`: the allocator knows nothing of them.
    """

    time: float
    steps: int
    decode_rows: int
    prefill_tokens: int
    busy: float
    kv_used: int
    kv_cached: int
    kv_reserved: int
    kv_internal: int
    kv_external: int
    kv_free: int
    swapped: int
    kept_back: int = 0


class Recorder:
    """The records of one engine.

    Attributes:
        step_ends: end of every decode step, indexed by the cohort's counter.
        segments: row, start (time of the first token), tick (counter from which on there is one token a step), ticks (how many).
        gains: tokens at each decode step of each segment, one segment after another, where steps give different numbers.
        drafts: (drafts verified, drafts accepted) of a sequence in a step → how often.
        departures: row, time it left, whether it finished, admitted (time, NaN if never), cached, recomputed, preemptions.
        changes: time, running, waiting: increments by preemptions and resumptions.
        deliveries: row, time: answers that were held back to the end of their batch.
        samples: at about equal distances, a few thousand at most.
        steps: engine steps.
        due: when the state of memory is to be noted next.
    """

    def __init__(self, slabs: bool = False) -> None:
        self.step_ends = array("d")
        self.segments = Table("row", "start", "tick", "ticks")
        self.gains = array("B")
        self.drafts: Counter[tuple[int, int]] = Counter()
        self.departures = Table("row", "time", "finished", "admitted", "cached", "recomputed", "preemptions")
        self.changes = Table("time", "running", "waiting")
        self.deliveries = Table("row", "time")
        self.samples: list[Sample] = []
        self.steps = 0
        self._decode_rows = self._prefill_tokens = 0
        self._busy = 0.0
        self.due, self._spacing = 0.0, 5e-3
        self._slabs = slabs
        self._final = 0  # tokens that the running sequences will have in the end
        self._lengths: dict[Sequence, int] = {}  # for that; kept only where slabs reserve memory ahead

    @property
    def busy(self) -> float:
        """Seconds for which steps ran."""
        return self._busy

    # --- one sequence

    def accepted(self, seq: Sequence, output_tokens: int) -> None:
        """A sequence joined the queue; its answer truly has `output_tokens` tokens."""
        if self._slabs:
            self._lengths[seq] = seq.prompt_tokens + output_tokens - 1

    def seated(self, seq: Sequence, now: float) -> None:
        """It got memory."""
        if seq.preemptions:
            self.changes.add((now, 1, -1))
        else:
            seq.admitted_at = now
        if self._slabs:
            self._final += self._lengths[seq]

    def preempted(self, seq: Sequence, now: float) -> None:
        """It lost its memory."""
        self.changes.add((now, -1, 1))
        if self._slabs:
            self._final -= self._lengths[seq]

    def segment(
        self, seq: Sequence, tick: int, ticks: int, start: float, gains: list[int] | None = None
    ) -> None:  # fmt: skip
        """It had a token at `start` (none if that is NaN), then one at each of `ticks` decode steps from `tick` on, or as many
        as `gains` says."""
        self.segments.add((seq.row, start, tick, ticks))
        if gains is not None:
            self.gains.extend(gains[:ticks])

    def left(self, seq: Sequence, now: float, finished: bool, seated: bool) -> None:
        """It is gone, finished or cancelled; `seated` if it held memory."""
        self.departures.add(
            (seq.row, now, finished, seq.admitted_at, seq.cached_tokens, seq.recomputed_tokens, seq.preemptions)
        )
        if self._slabs:
            length = self._lengths.pop(seq)
            if seated:
                self._final -= length
            if finished and (never := length + 1 - seq.known) > 0:
                self._never_came(seq.admitted_at, never)

    def _never_came(self, since: float, tokens: int) -> None:
        """An answer ended of itself, before its limit: what was taken to be reserved for it since then was for nothing."""
        for index, sample in enumerate(self.samples):
            if sample.time >= since:
                moved = min(tokens, sample.kv_reserved)
                self.samples[index] = sample._replace(
                    kv_reserved=sample.kv_reserved - moved, kv_internal=sample.kv_internal + moved
                )

    # --- one plan

    def drafted(self, counts: Iterable[int], accepted: Iterable[int]) -> None:
        """Of every sequence of a step: how many drafts were verified, and how many held (-1: it had ended before)."""
        self.drafts.update(zip(counts, accepted, strict=True))

    def stepped(self, plan: StepPlan, start: float, ends, state: EngineState | None) -> None:
        """A plan came back; `state` as it is now, None if it is not that of this time."""
        steps = len(ends)
        now = ends[-1]
        self.steps += steps
        self._busy += now - start
        if plan.cohort is not None:
            if steps == 1:
                self.step_ends.append(now)
            else:
                self.step_ends.extend(ends)
            self._decode_rows += plan.rows * steps
        for _, tokens, _, _, _ in plan.chunks:
            self._prefill_tokens += tokens
        if now >= self.due and state is not None:
            self.sample(now, state)
            if len(self.segments.rows) > _PACK:
                self.segments.pack()
                self.departures.pack()

    def watch_end(self, plan: StepPlan, start: float, ends, state: EngineState) -> None:
        """A stretch of steps has ended, and nobody has left yet: note the state if it is time, the stretch counted in."""
        if ends[-1] < self.due:
            return
        self.sample(ends[-1], state)
        last, steps = self.samples[-1], len(ends)
        self.samples[-1] = last._replace(
            steps=last.steps + steps,
            decode_rows=last.decode_rows + plan.rows * steps,
            busy=last.busy + ends[-1] - start,
        )

    def sample(self, now: float, state: EngineState) -> None:
        """Note the state of memory; when there are too many notes, drop every second and take fewer from then on."""
        use = state.allocator.use(state.stored)
        live, internal, reserved = use.live, use.allocated, 0
        if self._slabs:
            dead = sum(seq.computed for seq in state.retained)
            live -= dead
            reserved = min(max(0, self._final - live), internal)
            internal += dead - reserved
        kept_back = 0
        if state.config.gate in RESERVING and state.keeps_totals:
            kept_back = max(0, state.promised - state.allocator.held(state.stored))
        self.samples.append(
            Sample(now, self.steps, self._decode_rows, self._prefill_tokens, self._busy, live, use.cached, reserved,
                   internal, use.holes, use.free, len(state.swapped), kept_back)
        )  # fmt: skip
        if len(self.samples) >= _SAMPLES:
            self.samples = self.samples[1::2]
            self._spacing = 2 * now / _SAMPLES
        self.due = now + self._spacing
