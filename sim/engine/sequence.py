"""The state of one sequence: three counters and a place.

*known* tokens are the prompt and what was generated; *computed* tokens have their keys and values in the cache; *scheduled*
tokens are in a plan that has not come back. Prefill, chunks, decode, prefix hits, recompute after preemption and swap are
all these numbers in different states, so there is no phase to keep in step with them.

Decoding sequences all gain one token a step. They live in a `Cohort` (see `sim.engine.cohort`) and store only the
difference to its counter, so that a step touches none of them.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.engine.cohort import Cohort
    from workloads.traffic import Span

NEVER = float("nan")
NOWHERE, DEVICE, HOST = "nowhere", "device", "host"

NO_BLOCKS: array[int] = array("i")
"""Stands where a sequence has no blocks of its own; never changed in place."""


class Sequence:
    """One sample of one request, as policies see it. The true length of its answer is not among its attributes.

    A policy with something to remember about a sequence keeps it in a (weak) dict of its own: nothing can be hung onto this.

    Attributes:
        row: the request's row in the traffic; `sample` counts from 0 where a request asks for several.
        arrival: seconds, when the engine received it.
        order: number of its first admission, -1 before; ties between sequences are broken by `(arrival, row, sample)`.
        prompt_tokens, max_tokens: as declared by the client, already cut to the engine's longest sequence.
        limit: most tokens it may ever know: prompt plus declared answer.
        priority: smaller is more urgent.
        prompt: the prompt's spans.
        place: where its keys and values are: `nowhere`, `device` or `host`.
        runs, blocks: the allocator's own account of its memory: leading parts that may be shared, then blocks or slots of
            its own; only the allocator writes them.
        keys: the allocator's names for its content, made on first use.
        registered: how many of its leading blocks or slots are in the allocator's index.
        node: radix tree node it holds a lock on.
        cached_tokens: prompt tokens found in the cache at its first admission.
        preemptions, recomputed_tokens: how often it was preempted, and tokens it had to prefill again.
        seated_in: number of the plan that gave it memory last.
        lost_tokens: how many were computed when it lost its memory last.
        admitted_at: seconds, when it first got memory, NaN before. token_at: when its latest prefill gave a token,
            NaN if it came back from the host since.
        footprint: tokens of memory it would take at its limit, once it was admitted.
        siblings: sequences still to fork from it once its prompt is computed (parallel samples).
        gains: tokens that each step of its present stay gave it, where steps give different numbers (speculative decoding);
            else None.
        alive: False once it has finished, was cancelled or refused.
    """

    # Slots, and everything set at once: attributes found on the class cost several times as much to read.
    __slots__ = (
        "__weakref__", "_base", "_computed", "_known", "admitted_at", "alive", "arrival", "blocks", "bucket",
        "cached_tokens", "cohort", "footprint", "gains", "join_tick", "keys", "limit", "lost_tokens", "max_tokens", "node",
        "order", "place", "preemptions", "priority", "prompt", "prompt_tokens", "recomputed_tokens", "registered",
        "row", "runs", "sample", "seated_in", "siblings", "slab", "token_at",
    )  # fmt: skip

    def __init__(
        self, row: int, prompt: tuple[Span, ...], prompt_tokens: int, max_tokens: int, arrival: float = 0.0,
        priority: int = 0, sample: int = 0,
    ) -> None:  # fmt: skip
        self.row = row
        self.sample = sample
        self.arrival = arrival
        self.prompt = prompt
        self.prompt_tokens = self._known = prompt_tokens
        self.max_tokens = max_tokens
        self.limit = prompt_tokens + max_tokens
        self.priority = priority
        self.order = self.seated_in = -1
        self.place = NOWHERE
        self.alive = True
        self.cohort: Cohort | None = None
        self.bucket: dict[Sequence, None] | None = None
        self.keys: list | None = None
        self.node: object = None
        self.gains: list[int] | None = None
        self.admitted_at = self.token_at = NEVER
        self.siblings: tuple[Sequence, ...] = ()
        self.runs: list | tuple[()] = ()
        self.blocks = NO_BLOCKS
        self._computed = self._base = self.join_tick = self.registered = self.slab = self.footprint = 0
        self.cached_tokens = self.preemptions = self.recomputed_tokens = self.lost_tokens = 0

    @property
    def known(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self._known if self.cohort is None else self._base + self.cohort.tick

    @property
    def computed(self) -> int:
        """Tokens whose keys and values are in the cache; one less than `known` while decoding."""
        return self._computed if self.cohort is None else self._base + self.cohort.tick - 1

    def known_at(self, tick: int) -> int:
        """What it knew when the cohort's counter stood at `tick`, in its present or last stay there."""
        if self.gains is None:
            return self._base + tick
        return self.known - sum(self.gains[tick - self.join_tick :])

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return self._known - self._computed if self.cohort is None else 1

    @property
    def generated(self) -> int:
        """Tokens of the answer so far."""
        return self.known - self.prompt_tokens

    @property
    def left(self) -> int:
        """Answer tokens it may still generate by its declaration."""
        return self.limit - self.known

    @property
    def tie(self) -> tuple[float, int, int]:
        """Stable tie-break between sequences."""
        return (self.arrival, self.row, self.sample)

    def __repr__(self) -> str:
        sample = f".{self.sample}" if self.sample else ""
        return f"<Sequence {self.row}{sample}: {self.computed}/{self.known} of {self.limit} tokens, {self.place}>"
