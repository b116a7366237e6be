"""Which drafts hold: drawn for every place of an answer, whoever else is in the batch and whenever it comes to be verified."""

from __future__ import annotations

import zlib

import numpy as np

from sim.engine.sequence import Sequence

_STEP, _FIRST, _SECOND, _MASK = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, (1 << 64) - 1
_PURPOSE = zlib.crc32(b"acceptance of drafts")
_STEPS, _FIRSTS, _SECONDS = (np.array([number], np.uint64) for number in (_STEP, _FIRST, _SECOND))
_30, _27, _31, _11 = (np.array([number], np.uint64) for number in (30, 27, 31, 11))


def uniforms(seed: int, row: int, sample: int, count: int) -> np.ndarray:
    """`count` numbers in [0, 1), float64, one for each place of an answer: SplitMix64 (Steele et al., OOPSLA 2014) of counters
    that begin at a hash of seed, purpose and sequence."""
    key = 0
    for part in (seed, _PURPOSE, row, sample):
        key = (key + part * _STEP + _STEP) & _MASK
        key = ((key ^ (key >> 30)) * _FIRST) & _MASK
        key = ((key ^ (key >> 27)) * _SECOND) & _MASK
        key ^= key >> 31
    x = np.arange(1, count + 1, dtype=np.uint64) * _STEPS + np.array([key], np.uint64)
    x ^= x >> _30
    x *= _FIRSTS
    x ^= x >> _27
    x *= _SECONDS
    x ^= x >> _31
    return (x >> _11) * 2.0**-53


class Acceptance:
    """A model of verification: draft `i` of a step holds with probability `rates[i]` if all before it did.

    Args:
        rates: one for each draft. seed: of the run.
    """

    def __init__(self, rates: tuple[float, ...], seed: int = 0) -> None:
        self.rates, self.seed = rates, seed

    def held(self, seq: Sequence, length: int) -> list[int]:
        """For every place of an answer of `length` tokens: how many drafts hold in a step whose first is for that place."""
        draws = uniforms(self.seed, seq.row, seq.sample, length + len(self.rates))
        holds: np.ndarray | bool = True
        total = np.zeros(length, np.int64)
        for place, rate in enumerate(self.rates):
            holds = (draws[place : place + length] < rate) & holds
            total += holds
        return total.tolist()
