"""Gates: may this sequence be admitted, given an estimate of the memory that the running ones will still need?

This is what really tells the engines apart. vLLM reserves nothing for answers and preempts when it was too hopeful; SGLang
reserves a learned share; TensorRT-LLM's default reserves all that was declared and never preempts; LightLLM works out the
peak that is still to come. Each gate cites where its rule is from.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sim.config import SchedulerConfig
from sim.engine.sequence import Sequence
from sim.engine.state import LONG_ANSWER, EngineState
from sim.kv.base import NO_HIT, Hit


class Gate(Protocol):
    """Decides on admission; allocating comes after and may still fail.

    Attributes:
        reads_totals: whether it reads `state.promised`, `declared` or `long_answers`.
        steady: a refusal stands until somebody gives memory back, a prefix appears, or another sequence is asked about;
            otherwise it is asked again at every step.
    """

    steady: bool
    reads_totals: bool

    def admits(self, seq: Sequence, hit: Hit, tokens: int, state: EngineState) -> bool:
        """Whether `seq` may start with its first `tokens` tokens, `hit.tokens` of which are cached."""

    def preempted(self, state: EngineState) -> None:
        """Sequences had to give memory back; an estimate may learn from it."""


class _Fixed:
    steady = True
    reads_totals = False

    def preempted(self, state: EngineState) -> None:
        return None


class Optimistic(_Fixed):
    """Only what the first step computes must fit (vLLM v1 until 2026)."""

    def admits(self, seq: Sequence, hit: Hit, tokens: int, state: EngineState) -> bool:
        return True  # the allocator itself refuses what does not fit now


class FullPrompt(_Fixed):
    """All known tokens must fit, though only the first chunk is allocated, leaving a watermark unless nothing runs.

    vLLM 2026, `scheduler_reserve_full_isl` and `watermark` (`vllm/v1/core/kv_cache_manager.py`).
    """

    def __init__(self, watermark: float = 0.0) -> None:
        self.watermark = watermark

    def admits(self, seq: Sequence, hit: Hit, tokens: int, state: EngineState) -> bool:
        allocator = state.allocator
        need = allocator.footprint(seq._known)
        if hit is not NO_HIT:
            need += hit.idle - hit.tokens
        if self.watermark and state.running:
            need += self.watermark * allocator.capacity
        return need <= allocator.available


class Watermark(_Fixed):
    """The whole prompt must fit, without credit for cached parts, and leave a share of the pool free.

    vLLM v0 (`vllm/core/block_manager.py`, watermark 0.01).
    """

    def __init__(self, watermark: float = 0.01) -> None:
        self.watermark = watermark

    def admits(self, seq: Sequence, hit: Hit, tokens: int, state: EngineState) -> bool:
        allocator = state.allocator
        spare = self.watermark * allocator.capacity
        need = allocator.footprint(seq.known)
        if need > allocator.capacity - spare:  # would never be let in: let it in alone rather than never
            return not state.running
        return allocator.available - need >= spare


class ReserveOutput(_Fixed):
    """Room to finish must be left for everyone: declared answers are reserved in full, so nobody is ever preempted.

    TensorRT-LLM's GUARANTEED_NO_EVICT (`batch_manager/capacityScheduler.cpp`); also mini-sglang's rule.
    """

    reads_totals = True

    def admits(self, seq: Sequence, hit: Hit, tokens: int, state: EngineState) -> bool:
        allocator = state.allocator
        outstanding = max(0, state.promised - allocator.held(state.stored))
        need = allocator.footprint(seq.limit) * (1 + len(seq.siblings)) - hit.tokens + hit.idle
        return need + outstanding <= allocator.available


class Ratio(_Fixed):
    """A learned share of what the decoding sequences may still generate is reserved, and all of what new ones may.

    SGLang's PrefillAdder (`python/sglang/srt/managers/schedule_policy.py`), which never counts on more than 4,096 tokens
    of an answer. The share starts at 0.7 × conservativeness,
    sinks to 14 % of that over 600 decode steps without a retraction, and is reset from what was seen at a retraction.
    """

    reads_totals = True

    def __init__(self, conservativeness: float = 1.0) -> None:
        self._start = min(0.7 * conservativeness, 1.0)
        self._floor = self._start * 0.14
        self._from = self._start
        self._since = 0

    def ratio(self, state: EngineState) -> float:
        """The share now; it sinks with every decode step."""
        steps = state.decode_steps - self._since
        return max(self._floor, self._from - steps * (self._start - self._floor) / 600)

    def admits(self, seq: Sequence, hit: Hit, tokens: int, state: EngineState) -> bool:
        if not state.running:
            self._from, self._since = self._start, state.decode_steps
        new = state.prefilling  # admitted before it in this step: reserved in full, like its own
        if state.long_answers:
            left = sum(min(s.left, LONG_ANSWER) for s in state.cohort.members)
        else:
            left = state.declared - state.cohort.context - sum(s.limit for s in (*new, *state.draining))
            left -= sum(s._known for s in state.transit)
        allocator = state.allocator
        answers = sum(min(s.left, LONG_ANSWER) * (1 + len(s.siblings)) for s in (*new, seq))
        need = seq.known - hit.tokens + hit.idle + allocator.block_size
        if need + answers < allocator.available - left * self.ratio(state) or not (state.running or state.swapped):
            return True  # alone, the rest of the pool is its own
        if need < allocator.available:
            state.kept_for_answers += 1
        return False

    def preempted(self, state: EngineState) -> None:
        running = list(state.running)
        declared = sum(seq.max_tokens for seq in running)
        seen = sum(seq.generated for seq in running)
        self._from = min(1.0, (seen + 20 * len(running)) / declared) if declared else self._start
        self._since = state.decode_steps


class FuturePeak(_Fixed):
    """The highest use that is still to come, if everyone generates all it declared, must stay below the pool's size.

    LightLLM (`lightllm/server/router/req_queue`): with sequences sorted by tokens left, descending, the peak is the
    maximum over i of `left_i × (i + 1) + tokens of the first i + 1`. While a sequence waits the others come closer to their
    ends, so the peak with it sinks at every step.
    """

    steady = False

    def __init__(self) -> None:
        self._members = (-1, -1)  # who ran when the sums were made: admissions so far, sequences running
        self._tick = 0

    def admits(self, seq: Sequence, hit: Hit, tokens: int, state: EngineState) -> bool:
        if not (state.running or state.swapped):
            return True  # alone, it has all of the pool
        return self.peak_with(seq, state) < state.allocator.capacity

    def peak_with(self, seq: Sequence, state: EngineState) -> int:
        """Tokens at the peak if `seq` ran too.

        With `left` falling and `known` rising by one a step for everybody, `left_i × (i + 1) + sum of known` does not change
        for those sorted before the candidate, and changes by the same for all behind it; so sums made once serve until the
        next arrival or departure.
        """
        members = (state.admissions, len(state.running))
        if members != self._members or state.prefilling or state.transit or state.cohort.uneven:
            self._sum_up(state)
            self._members = members
        steps = state.cohort.tick - self._tick
        place = int(np.searchsorted(-self._left, -(seq.left + steps), side="right"))
        known_before = int(self._known[place - 1]) + steps * place if place else 0
        own = seq.left * (place + 1) + known_before + seq.known
        before = int(self._before[place - 1]) if place else 0
        behind = int(self._behind[place]) - steps + seq.known if place < len(self._left) else 0
        return max(before, own, behind)

    def _sum_up(self, state: EngineState) -> None:
        tick, prefilling = state.cohort.tick, [*state.prefilling, *state.transit]
        known = [seq._base for seq in state.cohort.members]
        limits = [seq.limit for seq in state.cohort.members]
        rows = len(known)
        known = np.array(known + [seq.known for seq in prefilling], np.int64)
        limits = np.array(limits + [seq.limit for seq in prefilling], np.int64)
        known[:rows] += tick
        left = limits - known
        order = np.argsort(-left, kind="stable")
        self._left = left[order]
        self._known = np.cumsum(known[order])
        peaks = self._left * np.arange(1, len(order) + 1) + self._known
        self._before = np.maximum.accumulate(peaks)
        self._behind = np.maximum.accumulate((peaks + self._left)[::-1])[::-1]
        self._tick = tick


class MaxLength(_Fixed):
    """Each running sequence is taken to need all it declared, from the whole pool (Orca, OSDI '22)."""

    reads_totals = True

    def admits(self, seq: Sequence, hit: Hit, tokens: int, state: EngineState) -> bool:
        allocator = state.allocator
        return state.promised + allocator.footprint(seq.limit) * (1 + len(seq.siblings)) <= allocator.capacity


def make_gate(config: SchedulerConfig) -> Gate:
    """The gate that `config.gate` names."""
    match config.gate:
        case "optimistic":
            return Optimistic()
        case "full-prompt":
            return FullPrompt(config.watermark)
        case "watermark":
            return Watermark(config.watermark)
        case "reserve-output":
            return ReserveOutput()
        case "ratio":
            return Ratio(config.conservativeness)
        case "future-peak":
            return FuturePeak()
    return MaxLength()


GATES = {
    "optimistic": "what the first step computes must fit (vLLM v1 to 2025)",
    "full-prompt": "the whole prompt must fit (vLLM 2026)",
    "watermark": "the whole prompt must fit and leave a share of the pool free (vLLM v0)",
    "ratio": "a learned share of running answers is reserved (SGLang)",
    "reserve-output": "all declared answers are reserved (TensorRT-LLM GUARANTEED_NO_EVICT)",
    "future-peak": "the peak that is still to come must fit (LightLLM)",
    "max-length": "declared lengths add up to the pool at most (Orca, static batching)",
}
