"""The simulator's allocators, naming content by token ids, and where a sequence's tokens lie.

Nothing of how memory is shared out differs from simulation: the same code keeps the same pools. What differs is the names of
content, and that somebody asks which pages a sequence has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import count

import numpy as np

from backends.torch.tokens import TokenBook, Tokens
from sim.engine.sequence import Sequence
from sim.kv.base import KVAllocator
from sim.kv.keys import KeyRun
from sim.kv.paged import PagedAllocator
from sim.kv.radix import RadixAllocator
from workloads.errors import InputError, Place
from workloads.traffic import Span

_NOTHING = KeyRun(0, 0, -1)
"""Stands where a sequence has no full block of known tokens yet; no block of that name is ever cached."""

_UNKNOWN = count(-1, -1)
"""Contents of tokens that the host does not know yet, each unlike any other."""


class BlockKeys:
    """The key runs of a sequence, one run a block, for as many blocks as its tokens are known. It grows with them.

    A block's key is a 128-bit hash of the key before it and the block's token ids, so equal keys mean equal prefixes.
    """

    def __init__(self, tokens: Tokens, block: int) -> None:
        self._tokens = tokens
        self._block = block
        self._runs: list[KeyRun] = []

    def _grow(self) -> list[KeyRun]:
        ids, block, runs = self._tokens.ids, self._block, self._runs
        done = len(runs)
        key = runs[-1].key if runs else 0
        for index in range(done, len(ids) // block):
            content = key.to_bytes(16, "little") + ids[index * block : (index + 1) * block].tobytes()
            key = int.from_bytes(hashlib.blake2b(content, digest_size=16).digest(), "little")
            runs.append(KeyRun(index, index + 1, key))
        return runs

    def __iter__(self) -> Iterator[KeyRun]:
        return iter(self._grow())

    def __getitem__(self, index: int) -> KeyRun:
        runs = self._grow()
        return runs[index] if runs else _NOTHING


class TokenPagedAllocator(PagedAllocator):
    """Paged KV whose blocks are named by token ids. `book` is set before the first sequence comes."""

    book: TokenBook

    def keys_of(self, seq: Sequence) -> BlockKeys:
        """Grows by itself as tokens become known."""
        return BlockKeys(self.book[seq], self.block_size)


class TokenRadixAllocator(RadixAllocator):
    """Token-level KV whose tree spells token ids. `book` is set before the first sequence comes."""

    book: TokenBook

    def next_slots(self, members: list[Sequence], known: np.ndarray) -> np.ndarray | None:
        """The slot of each member's last known token, given a number if it had none: all at once, which one by one takes a
        millisecond for every few dozen.

        Args:
            members: sequences of the cohort. known: tokens that each has.

        Returns:
            [members] int64; None where one lacks more than its last slot, or has it already: then look at each table.
        """
        have = np.fromiter((len(seq.blocks) for seq in members), np.int64, len(members))
        if not len(members) or self._grown_tick != members[0].cohort.tick or (have + 1 != known).any():
            return None
        free, count = self._free, len(members)
        self._counted -= count
        if (short := count + self._counted - len(free)) > 0:
            free += self.tree.evict(short)
        slots = free[-count:]
        del free[-count:]
        for seq, slot in zip(members, slots, strict=True):
            seq.blocks.append(slot)
        return np.array(slots, np.int64)

    def _content(self, seq: Sequence, tokens: int) -> list[Span]:
        """A span of one token each, its content the token id; tokens that are not known yet agree with nothing."""
        spans = self.book[seq].spell_out()[:tokens]
        if (missing := tokens - len(spans)) > 0:
            spans.append(Span(next(_UNKNOWN), 0, missing))
        return spans


ALLOCATORS = {
    "paged": f"{__name__}:TokenPagedAllocator",
    "radix": f"{__name__}:TokenRadixAllocator",
}
"""Name in `kv.allocator` → the plug-in that stands in for it on a real backend."""


def pages_from(allocator: KVAllocator, seq: Sequence, first: int) -> np.ndarray:
    """Pages of a sequence from number `first` on, of `allocator.block_size` slots each; int64.

    Raises:
        InputError: an allocator that does not tell them.
    """
    if isinstance(allocator, PagedAllocator):  # what decoding added is at the end of a sequence's own blocks
        allocator.settle(seq)
        if first >= seq.registered:
            return np.array(seq.blocks[first - seq.registered :], np.int64)
    table = getattr(allocator, "table", None)
    if table is None:
        raise InputError(
            f"{type(allocator).__name__} cannot serve a real model: it has no `table`", place=Place(key="kv.allocator")
        )
    return np.array(table(seq)[first:], np.int64)
