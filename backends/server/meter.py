"""What the server counts: plain numbers, written by the engine's thread alone and read whenever somebody scrapes.

Histograms are lists of counts, so that the tokens of a step, which all came equally late, are one addition.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence as Seq

from sim.engine.plan import StepPlan
from sim.engine.recorder import Recorder
from sim.engine.sequence import Sequence
from sim.engine.state import EngineState

# vLLM's bounds, and finer ones below its first, which a fast GPU never leaves.
TTFT = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
PER_TOKEN = (
    0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
STEP_TOKENS = tuple(1 << power for power in (0, *range(3, 15)))
LATE = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")


def rounded_bounds(most: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, … up to `most`."""
    bounds = [step * 10**power for power in range(10) for step in (1, 2, 5)]
    return tuple(bound for bound in bounds if bound <= most)


class Histogram:
    """Counts of values by upper bound.

    Attributes:
        bounds: ascending. counts: of values up to each bound and above the one before; the last has those above all.
        sum: of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Seq[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """So many equal values."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class Tally(Recorder):
    """An engine's records for a server that runs for weeks: sums in place of a row for everything.

    Attributes:
        preemptions: so far. prefilled: prompt tokens computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.due = float("inf")
        self.preemptions = self.prefilled = 0
        self.step_ends = _Ends()

    def accepted(self, seq: Sequence, output_tokens: int) -> None:
        """Not kept."""

    def seated(self, seq: Sequence, now: float) -> None:
        """It got memory."""
        if not seq.preemptions:
            seq.admitted_at = now

    def preempted(self, seq: Sequence, now: float) -> None:
        """It lost its memory."""
        self.preemptions += 1

    def segment(
        self, seq: Sequence, tick: int, ticks: int, start: float, gains: list[int] | None = None
    ) -> None:  # fmt: skip
        """Not kept."""

    def left(self, seq: Sequence, now: float, finished: bool, seated: bool) -> None:
        """Not kept."""

    def stepped(self, plan: StepPlan, start: float, ends: Seq[float], state: EngineState | None) -> None:
        """A plan came back."""
        self.steps += len(ends)
        self._busy += ends[-1] - start
        self.prefilled += sum(chunk.tokens for chunk in plan.chunks)
        if plan.cohort is not None:
            self.step_ends.count += len(ends)


class _Ends:
    """Stands where the ends of decode steps are kept: their number is all that an engine asks for."""

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return self.count


class Meter:
    """All counts of one server. Times are wall clock seconds.

    Args:
        max_len: longest sequence.
        capacity: tokens of KV.
        shares: whether prefixes are cached.

    Attributes:
        tally: what the engine itself counts.
        finished_by: finished requests by reason, as vLLM names them. http: responses by (path, method, class of status).
    """

    def __init__(self, max_len: int, capacity: int, shares: bool) -> None:
        sizes = rounded_bounds(max_len)
        self.tally = Tally()
        self.capacity, self._shares = capacity, shares
        self.running = self.waiting = self.swapped = 0
        self.kv_use = 0.0
        self.prompt_tokens = self.generation_tokens = self.refusals = 0
        self.prefix_queries = self.prefix_hits = 0
        self.finished_by: Counter[str] = Counter(stop=0, length=0, abort=0, error=0)
        self.http: Counter[tuple[str, str, str]] = Counter()
        self.ttft, self.per_token, self.gaps = Histogram(TTFT), Histogram(PER_TOKEN), Histogram(PER_TOKEN)
        self.e2e, self.queue, self.prefill = Histogram(REQUEST), Histogram(REQUEST), Histogram(REQUEST)
        self.decode, self.inference = Histogram(REQUEST), Histogram(REQUEST)
        self.prompts, self.answers, self.declared = Histogram(sizes), Histogram(sizes), Histogram(sizes)
        self.step_tokens, self.lateness = Histogram(STEP_TOKENS), Histogram(LATE)
        self._prefilled = 0

    # --- written by the engine's thread

    def asked(self, max_tokens: int) -> None:
        """A request is here. Each is counted once more when it has finished, was refused, or left."""
        self.declared.add(max_tokens)

    def refused(self) -> None:
        """A request can never be served."""
        self.refusals += 1
        self.finished_by["error"] += 1

    def left(self, reason: str) -> None:
        """A request went without having finished."""
        self.finished_by[reason] += 1

    def first(self, seq: Sequence, ttft: float, queue: float, prefill: float) -> None:
        """The first token of an answer is out."""
        self.ttft.add(ttft)
        self.queue.add(queue)
        self.prefill.add(prefill)
        self.prompt_tokens += seq.prompt_tokens
        if self._shares:
            self.prefix_queries += seq.prompt_tokens
            self.prefix_hits += seq.cached_tokens

    def step(self, tokens: int, gaps: dict[float, int]) -> None:
        """A step came back; so many answers waited so long for a further token."""
        self.generation_tokens += tokens
        for gap, times in gaps.items():
            self.gaps.add(gap, times)
        prefilled, self._prefilled = self._prefilled, self.tally.prefilled
        self.step_tokens.add(tokens + self._prefilled - prefilled)

    def finished(self, reason: str, prompt: int, said: int, e2e: float, decode: float, inference: float) -> None:
        """An answer is complete."""
        self.finished_by[reason] += 1
        self.e2e.add(e2e)
        self.inference.add(inference)
        self.decode.add(decode)
        self.prompts.add(prompt)
        self.answers.add(said)
        if said > 1:
            self.per_token.add(decode / (said - 1))

    def state(self, state: EngineState) -> None:
        """The queues and the memory, as they stand."""
        self.running, self.waiting, self.swapped = len(state.running), len(state.waiting), len(state.swapped)
        self.kv_use = 1.0 - state.allocator.available / self.capacity if self.capacity else 0.0

    def late(self, seconds: float) -> None:
        """A simulated step ended so long after it should have."""
        self.lateness.add(seconds)

    # --- written by the event loop's

    def responded(self, path: str, method: str, status: int) -> None:
        """An HTTP response was begun."""
        self.http[path, method, _CLASSES[min(max(status // 100, 1), 5) - 1]] += 1
