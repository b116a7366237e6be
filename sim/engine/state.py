"""Everything a scheduler may look at."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from sim.config import SchedulerConfig
from sim.engine.cohort import Cohort
from sim.engine.sequence import DEVICE, Sequence
from sim.kv.base import KVAllocator

if TYPE_CHECKING:
    from sim.schedulers.queue import WaitingQueue


LONG_ANSWER = 4096
"""Answers declared longer than this are counted apart: SGLang's gate clips them."""


RESERVING = ("reserve-output", "max-length")
"""Gates that keep back memory for all that running sequences declared."""


class EngineState:
    """Queues and memory of one engine, as they stand when a step is planned.

    Attributes:
        config: the scheduler's settings.
        allocator: KV memory.
        waiting: sequences without memory.
        swapped: sequences whose KV is on the host, oldest first. `host_free`: tokens of host memory left.
        running: sequences with memory on the device, in order of admission.
        prefilling: those of them whose known tokens are not all computed, in order of admission.
        cohort: those of them that decode.
        retained: finished sequences whose memory is held until their batch ends (static batching).
        kept_seats: seats kept for samples that will be split off running sequences, and for KV that is on its way here.
        expected: sequences whose KV another engine has computed, without memory here, in order (`sim.engine.handover`).
        transit: sequences with memory on the device whose KV is on its way here, or away from here.
        draining: running sequences that reached their declared limit in a plan that has not come back.
        promised: memory that the running sequences would take at their declared limits, in tokens.
        declared: tokens that the running sequences may ever know together, by their declared limits.
        long_answers: running sequences that declared more than 4,096 tokens.
        keeps_totals: whether `promised`, `declared` and `long_answers` are kept; a gate that reads them says so.
        kept_for_answers: how often a gate refused for what is declared alone: the prompt would have fitted.
        blocked: a refusal that stands until something changes: the head of the queue was not admitted for lack of memory
            or seats, and since then nobody gave anything back, nothing new can be hit and nobody overtook it.
    """

    __slots__ = (
        "admissions",
        "allocator",
        "blocked",
        "cohort",
        "config",
        "declared",
        "draining",
        "expected",
        "host_free",
        "keeps_totals",
        "kept_for_answers",
        "kept_seats",
        "long_answers",
        "prefilling",
        "promised",
        "retained",
        "running",
        "swapped",
        "transit",
        "waiting",
    )  # fmt: skip

    def __init__(
        self,
        config: SchedulerConfig,
        allocator: KVAllocator,
        waiting: WaitingQueue,
        host_tokens: int = 0,
        keeps_totals: bool = True,
    ) -> None:
        self.config = config
        self.allocator = allocator
        self.waiting = waiting
        self.swapped: deque[Sequence] = deque()
        self.host_free = host_tokens
        self.running: dict[Sequence, None] = {}
        self.prefilling: list[Sequence] = []
        self.cohort = Cohort(allocator.block_size)
        self.retained: list[Sequence] = []
        self.draining: dict[Sequence, None] = {}
        self.expected: deque[Sequence] = deque()
        self.transit: dict[Sequence, None] = {}
        self.keeps_totals = keeps_totals
        self.promised = 0
        self.declared = 0
        self.kept_for_answers = 0
        self.kept_seats = 0
        self.long_answers = 0
        self.blocked = False
        self.admissions = 0

    @property
    def decode_steps(self) -> int:
        """Decode steps since the start."""
        return self.cohort.tick

    @property
    def seats(self) -> int:
        """How many more sequences may hold memory."""
        return self.config.max_num_seqs - len(self.running) - len(self.retained) - self.kept_seats

    @property
    def known(self) -> int:
        """Tokens that the running sequences know together."""
        return self.cohort.context + sum(seq.known for seq in self.prefilling)

    @property
    def stored(self) -> int:
        """Tokens of KV that sequences have computed and hold, shared ones counted once for each."""
        cohort = self.cohort
        stored = cohort.context - cohort.size
        for seq in self.prefilling:
            stored += seq.computed
        for seq in self.retained:
            stored += seq.computed
        for seq in self.draining:
            stored += seq.computed
        for seq in self.transit:
            stored += seq.computed
        return stored

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits or is on its way."""
        return not (self.running or self.waiting or self.swapped or self.retained or self.expected or self.transit)

    def seat(self, seq: Sequence) -> None:
        """`seq` now holds memory on the device."""
        self.running[seq] = None
        if seq.siblings:
            self.kept_seats += len(seq.siblings)
        self.admissions = seq.order = self.admissions + 1
        seq.place = DEVICE
        if self.keeps_totals:
            self._total(seq, 1)

    def unseat(self, seq: Sequence) -> None:
        """`seq` no longer holds memory on the device."""
        del self.running[seq]
        if seq.siblings:
            self.kept_seats -= len(seq.siblings)
        self.blocked = False
        if self.keeps_totals:
            self._total(seq, -1)

    def await_kv(self, seq: Sequence) -> None:
        """`seq` now holds memory on the device, into which its KV is to come."""
        self.transit[seq] = None
        self.kept_seats += 1
        if self.keeps_totals:
            self._total(seq, 1)

    def has_kv(self, seq: Sequence) -> None:
        """The KV of `seq` has come: it runs."""
        del self.transit[seq]
        self.kept_seats -= 1
        if self.keeps_totals:
            self._total(seq, -1)
        self.seat(seq)

    def _total(self, seq: Sequence, sign: int) -> None:
        if not seq.footprint:
            seq.footprint = self.allocator.footprint(seq.limit) * (1 + len(seq.siblings))
        self.promised += sign * seq.footprint
        self.declared += sign * seq.limit
        if seq.max_tokens > LONG_ANSWER:
            self.long_answers += sign

    def disperse(self, seq: Sequence) -> None:
        """The parallel samples of `seq` have sequences of their own from now on."""
        share = seq.footprint // (1 + len(seq.siblings))
        if self.keeps_totals:
            self.promised -= seq.footprint - share
        seq.footprint = share
        self.kept_seats -= len(seq.siblings)
        seq.siblings = ()
