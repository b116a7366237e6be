"""How kernel benchmarks hand tokens to experts: which rank is timed, how many experts it touches, and how many rows it has.

NVIDIA aiconfigurator's collector (`collector/helper.py`) draws its skewed routings so: experts' shares from a power law between 1
and 0.8 of the tokens (between 0.01 and 2 where there are fewer choices than experts), rounded to whole tokens that add up; of
several ranks the fullest is timed. Its balanced routing goes around the experts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

_DRAWS = 8


class Load(NamedTuple):
    """What the timed rank has: experts with at least one token, and (token, expert) pairs."""

    touched: float
    rows: float


@lru_cache(maxsize=100_000)
def drawn(tokens: int, experts: int, chosen: int, ranks: int, exponent: float) -> Load:
    """The mean of several draws (the same ones each time) of the fullest rank.

    Args:
        chosen: experts of a token. exponent: of the power law; 0 is balanced.
    """
    pairs, local = tokens * chosen, experts // ranks
    if not exponent:
        return Load(float(min(local, -(-pairs // ranks))), pairs / ranks)
    import numpy as np

    rng = np.random.default_rng(0)
    low, high = (1.0, 0.8 * tokens) if pairs > experts else (0.01, 2.0)
    power, touched, rows = 1.0 - exponent, 0.0, 0.0
    for _ in range(_DRAWS):
        uniform = rng.random(experts)
        share = ((high**power - low**power) * uniform + low**power) ** (1.0 / power)
        counts = np.rint(share / share.sum() * pairs).astype(np.int64)
        order, left = np.argsort(-counts, kind="stable"), pairs - int(counts.sum())
        if left > 0:
            np.add.at(counts, order[np.arange(left) % experts], 1)
        elif left < 0:
            # Taken from the emptiest that have any, as rounding up cannot have given more than that.
            some = order[counts[order] > 0]
            np.subtract.at(counts, some[::-1][np.arange(-left) % len(some)], 1)
        # Nobody chooses an expert twice: what is too much goes to the next fullest that has room.
        room = np.maximum(tokens - counts[order], 0)
        over = int(np.maximum(counts - tokens, 0).sum())
        counts = np.minimum(counts, tokens)
        counts[order] += np.diff(np.minimum(np.cumsum(room), over), prepend=0)
        of_ranks = counts.reshape(ranks, local)
        fullest = of_ranks[of_ranks.sum(axis=1).argmax()]
        touched += float((fullest > 0).sum()) / _DRAWS
        rows += float(fullest.sum()) / _DRAWS
    return Load(touched, rows)
