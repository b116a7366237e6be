"""Random numbers that are a function of where they are used: Philox-4x32-10 (Salmon et al., SC '11) on torch tensors.

A counter-based generator has no state: a token's noise depends on its seed, request, sample and position and on nothing else,
so that a sequence draws the same tokens alone, in a batch, after a preemption, and on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_AT_ONCE = 1 << 22
"""Values made together; each takes some hundred bytes on the way."""


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Ten rounds on four counter words and two key words, 32 bits each in int64 tensors that broadcast.

    Returns:
        Four words of random bits.
    """
    a, b, c, d = counter
    low, high = key
    for _ in range(10):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]  # the upper bits survive the overflow of int64
        a, b, c, d = (
            ((second >> 32) & _WORD) ^ b ^ low,
            second & _WORD,
            ((first >> 32) & _WORD) ^ d ^ high,
            first & _WORD,
        )
        low, high = (low + _WEYL[0]) & _WORD, (high + _WEYL[1]) & _WORD
    return a, b, c, d


def uniform(bits: Tensor) -> Tensor:
    """32 random bits as float32 strictly between 0 and 1: the middles of 2²³ equal intervals, each exactly representable."""
    return ((bits >> 9).to(torch.float32) + 0.5) * 2.0**-23


def exponential(seed: Tensor, request: Tensor, sample: Tensor, position: Tensor, width: int) -> Tensor:
    """Standard exponential noise [R, width] for the vocabulary of R tokens; arguments [R] int64.

    Word `v % 4` of the block with counter `(v // 4, position, request, sample)` under the key `seed` belongs to token id `v`.
    """
    blocks = torch.arange(-(-width // 4), device=seed.device)[None, :]
    noise = torch.empty(len(seed), width, dtype=torch.float32, device=seed.device)
    rows = max(1, _AT_ONCE // width)
    for first in range(0, len(seed), rows):
        part = slice(first, first + rows)
        column = [word[part, None] & _WORD for word in (position, request, sample)]
        key = seed[part, None] & _WORD, (seed[part, None] >> 32) & _WORD
        words = torch.stack(philox((blocks, *column), key), dim=-1).flatten(1)
        noise[part] = -torch.log(uniform(words[:, :width]))
    return noise
