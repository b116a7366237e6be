"""The waiting queue, in the order its policy wants."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from sim.engine.sequence import DEVICE, Sequence
from sim.kv.base import KVAllocator
from sim.kv.keys import merged
from sim.kv.radix_tree import cut
from workloads.traffic import Span


class WaitingQueue(Protocol):
    """Sequences that hold no memory yet, or hold none any more.

    Attributes:
        indifferent: whether an arrival never overtakes the head.
    """

    indifferent: bool

    def push(self, seq: Sequence) -> None:
        """A new sequence."""

    def put_back(self, seq: Sequence, where: str) -> None:
        """A preempted sequence: to the `head`, the `tail`, or its place by `arrival`."""

    def head(self) -> Sequence:
        """Who is next; the queue must not be empty."""

    def remove(self, seq: Sequence) -> None:
        """Admitted or gone."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]: ...


class FirstCome(deque):
    """First come, first served."""

    indifferent = True
    push = deque.append

    def put_back(self, seq: Sequence, where: str) -> None:
        if where == "tail":
            self.append(seq)
        elif where == "head" or not self or seq.tie < self[0].tie:
            self.appendleft(seq)
        else:
            ordered = sorted([*self, seq], key=lambda s: s.tie)
            self.clear()
            self.extend(ordered)

    def head(self) -> Sequence:
        return self[0]

    def remove(self, seq: Sequence) -> None:
        if self[0] is seq:
            self.popleft()
        else:
            super().remove(seq)


class Sorted:
    """By a key that does not change while a sequence waits; ties by arrival. Preempted sequences keep their rank."""

    indifferent = False

    def __init__(self, key: Callable[[Sequence], float]) -> None:
        self._key = key
        self._queue: list[tuple[float, tuple[float, int, int], Sequence]] = []

    def _entry(self, seq: Sequence) -> tuple[float, tuple[float, int, int], Sequence]:
        return (self._key(seq), seq.tie, seq)

    def push(self, seq: Sequence) -> None:
        insort(self._queue, self._entry(seq), key=lambda entry: entry[:2])

    def put_back(self, seq: Sequence, where: str) -> None:
        self.push(seq)

    def head(self) -> Sequence:
        return self._queue[0][2]

    def remove(self, seq: Sequence) -> None:
        if self._queue[0][2] is seq:
            del self._queue[0]
        else:
            self._queue = [entry for entry in self._queue if entry[2] is not seq]

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[2] for entry in self._queue)


class LongestPrefix(FirstCome):
    """Longest cached prefix first (SGLang's `lpm`).

    Sorting looks at every waiting prompt, so above `limit` of them it falls back to first come, as SGLang does, and also
    where nothing is cached. A prompt with a short hit that agrees with an earlier one, which has a short hit too, for
    `short_hit` tokens and more comes last until that one has computed them.
    """

    indifferent = False
    limit = 128
    short_hit = 32

    def __init__(self, allocator: KVAllocator) -> None:
        super().__init__()
        self._allocator = allocator
        self._begun: dict[tuple[Span, ...], Sequence] = {}  # beginnings of those admitted last

    def remove(self, seq: Sequence) -> None:
        super().remove(seq)
        if self._allocator.shares and len(self) <= self.limit and seq.prompt_tokens >= self.short_hit:
            self._begun[beginning(seq.prompt, self.short_hit)] = seq

    def head(self) -> Sequence:
        if len(self) == 1 or len(self) > self.limit or not self._allocator.shares:
            return self[0]
        hits = {seq: self._allocator.lookup(seq).tokens for seq in self}
        self._begun = {start: seq for start, seq in self._begun.items() if self._under_way(seq)}
        seen = set(self._begun)
        deprioritised: set[Sequence] = set()
        for seq in self:
            if hits[seq] > self.short_hit or seq.prompt_tokens < self.short_hit:
                continue
            start = beginning(seq.prompt, self.short_hit)
            if start in seen:
                deprioritised.add(seq)
            seen.add(start)
        return min(self, key=lambda seq: (seq in deprioritised, -hits[seq]))

    def _under_way(self, seq: Sequence) -> bool:
        """Whether it was admitted and its beginning is just being computed."""
        return seq.place == DEVICE and seq.computed < self.short_hit


def beginning(prompt: tuple[Span, ...], tokens: int) -> tuple[Span, ...]:
    """The first `tokens` tokens of a prompt, equal for prompts that agree on them, however their spans are cut."""
    return tuple(merged(cut(list(prompt), tokens)[0]))


def make_queue(policy: str, allocator: KVAllocator, oracle: Callable[[Sequence], int] | None) -> WaitingQueue:
    """The queue for a policy name of `POLICIES`."""
    if policy == "fcfs":
        return FirstCome()
    if policy == "priority":
        return Sorted(lambda seq: seq.priority)
    if policy == "lpm":
        return LongestPrefix(allocator)
    return Sorted(oracle)


POLICIES = {
    "fcfs": "first come, first served",
    "priority": "smallest priority value first, then arrival",
    "lpm": "longest cached prefix first; first come above 128 waiting",
    "shortest-job": "shortest true answer first; an oracle",
}
