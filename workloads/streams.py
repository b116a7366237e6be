"""Random streams, one per purpose, from one seed.

Each purpose (arrivals, input lengths, think times, …) draws from a stream of its own, so that changing one
law leaves every other draw as it was: the same arrivals with longer answers, not another workload altogether.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Streams:
    """Makes generators for `(seed, purpose, numbers…)`; equal arguments give equal streams."""

    seed: int

    def get(self, purpose: str, *numbers: int) -> np.random.Generator:
        """A fresh generator for `purpose`, always from the start of its stream."""
        key = [abs(int(self.seed)), int(self.seed < 0), zlib.crc32(purpose.encode()), *numbers]
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))
