"""How many tokens each chunk of a stream carried."""

from __future__ import annotations

import numpy as np

from backends.http.answer import Answer

USAGE, CHUNKS = "usage", "chunks"
"""Who counted the tokens of an answer: the server, or we its chunks."""


def source_of(answer: Answer) -> str:
    """Who counted the tokens of an answer."""
    return USAGE if answer.output_tokens >= 0 else CHUNKS


def total_of(answer: Answer) -> int:
    """Tokens of an answer; at least one for one that has text."""
    return max(answer.output_tokens, 1) if answer.output_tokens >= 0 else len(answer.times)


def tokens_of_chunks(answer: Answer) -> np.ndarray:
    """int64, tokens in each chunk with text.

    From what the server says in every chunk, if it does. Else its total is spread: a token for each chunk, what is more by the
    length of texts; and where there are fewer tokens than chunks (text that was held back for a stop word), evenly. A
    server that gives no total is taken to send a token a chunk.
    """
    chunks, total = len(answer.times), total_of(answer)
    if answer.output_tokens < 0 or total == chunks:
        return np.ones(chunks, np.int64)
    if len(answer.counts) == chunks and chunks:
        told = np.diff(np.array(answer.counts, np.int64), prepend=0)
        if (told >= 0).all() and told.sum() <= total:
            told[-1] += total - int(told.sum())
            return told
    if total < chunks:
        return np.diff(np.arange(chunks + 1) * total // chunks)
    return 1 + _shared(total - chunks, np.array(answer.sizes, np.float64))


def _shared(amount: int, weights: np.ndarray) -> np.ndarray:
    """A whole number shared out by weights, by the largest remainders."""
    exact = amount * weights / weights.sum()
    shares = np.floor(exact).astype(np.int64)
    left = amount - int(shares.sum())
    shares[np.argsort(shares - exact, kind="stable")[:left]] += 1
    return shares
