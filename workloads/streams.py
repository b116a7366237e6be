"""Random streams, one per purpose, from one seed.

Each purpose (arrivals, input lengths, think times, …) draws from a stream of its own, so that changing one
law leaves every other draw as it was: the same arrivals with longer answers, not another workload altogether.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Streams:
    """Makes generators for `(seed, purpose, numbers…)`; equal arguments give equal streams."""

    seed: int

    def get(self, purpose: str, *numbers: int) -> np.random.Generator:
        """A fresh generator for `purpose`, always from the start of its stream."""
        # hashed, since numpy pads seeds with zeros: as plain words (1,) and (1, 0) would be the same stream
        name = "/".join(map(str, (int(self.seed), purpose, *numbers)))
        key = hashlib.blake2b(name.encode(), digest_size=16).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))
