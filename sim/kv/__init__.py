"""KV memory: who owns which block, and which prefix is where."""

from __future__ import annotations

from sim.kv.base import NO_HIT, Hit, KVAllocator, KVUse, PrivateAllocator
from sim.kv.contiguous import ContiguousAllocator
from sim.kv.paged import PagedAllocator
from sim.kv.radix import RadixAllocator

ALLOCATORS: dict[str, type[KVAllocator]] = {
    "contiguous": ContiguousAllocator,
    "paged": PagedAllocator,
    "radix": RadixAllocator,
}

SLABS = {
    "max-length": "every slab holds the longest sequence the engine allows",
    "power-of-two": "prompt and declared answer, rounded up to a power of two; buddy allocation",
    "exact": "prompt and true answer; an oracle",
}

__all__ = [
    "ALLOCATORS",
    "NO_HIT",
    "SLABS",
    "ContiguousAllocator",
    "Hit",
    "KVAllocator",
    "KVUse",
    "PagedAllocator",
    "PrivateAllocator",
    "RadixAllocator",
]
