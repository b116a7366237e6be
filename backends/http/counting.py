"""Words that are one token each to a server, and how many tokens it puts around a prompt.

A prompt of made-up content is an opening and words with a space before each. Tokenizers cut text at spaces before anything
else, so if each word of a list is one token, so is each of any choice of them, and a prompt of `k` words has `k` tokens more
than the opening alone. What the opening, a template and special tokens take is asked of the server once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

Count = Callable[[str | list[dict[str, str]]], Awaitable[int | None]]
"""Tokens of a prompt, text or messages, with all that the server puts around it; None where it does not say."""

OPENING = "Go"
"""What every prompt begins with, since a first word, without a space before it, may be another number of tokens."""
_PROBES = 40  # at most so many questions for the words that are not one token
_TURN = "ok"
_THINNER = (1, 4, 4)


@dataclass(frozen=True, slots=True)
class Measure:
    """How a server counts prompts of made-up words.

    Attributes:
        words: that are one token each, with a space before them.
        around: tokens of a prompt without any word: opening, template, special tokens.
        turn: what an answer and the next message of a conversation put between themselves.
        exact: whether the server's count was seen to be right; else a word is taken for a token.
        per_word: tokens of a word in the mean; 1 where `words` could be sorted out.
    """

    words: Sequence[str]
    around: int = 0
    turn: int = 0
    exact: bool = False
    per_word: float = 1.0


def text_of(words: Sequence[str]) -> str:
    """Words as they follow on from something else."""
    return "".join([f" {word}" for word in words])


async def measure(count: Count, words: Sequence[str], *, chat: bool, sessions: bool) -> Measure:
    """Ask a server how it counts.

    Args:
        chat: whether prompts are messages.   sessions: whether conversations go on, in messages.
    """

    async def counted(text: str) -> int | None:
        return await count([{"role": "user", "content": text}] if chat else text)

    around = await counted(OPENING)
    if around is None:
        return Measure(tuple(words))
    for every in _THINNER:  # all of them may be too long for a small context
        words = words[::every]
        whole = await counted(OPENING + text_of(words))
        if whole is not None:
            break
    else:
        return Measure(tuple(words), around)
    good, per_word = tuple(words), 1.0
    if whole - around != len(words):
        good = await _single(counted, around, list(words), whole - around)
        if len(good) < len(words) // 4:  # characters or bytes are its tokens, or it does not tell the truth
            good, per_word = tuple(words), max((whole - around) / len(words), 0.01)
    return Measure(good, around, await _turn(count, around) if chat and sessions else 0, True, per_word)


async def _single(counted: Count, around: int, words: list[str], tokens: int) -> tuple[str, ...]:
    """Of words that take `tokens` together, those that take one each: halves are looked at until they are right.

    Halves that would take too many questions are left out as a whole.
    """
    good: list[str] = []
    left = [(words, tokens)]
    asked = 0
    while left:
        part, found = left.pop()
        if found == len(part):
            good += part
            continue
        if len(part) == 1 or asked >= _PROBES:
            continue
        half = len(part) // 2
        asked += 1
        first = await counted(OPENING + text_of(part[:half]))
        if first is None:
            continue
        left.insert(0, (part[:half], first - around))
        left.insert(0, (part[half:], found - (first - around)))
    return tuple(good)


async def _turn(count: Count, around: int) -> int:
    """What a template puts between turns: a conversation of two, less its words."""
    first = await count([{"role": "user", "content": f"{OPENING} {_TURN}"}])
    second = await count([
        {"role": "user", "content": OPENING}, {"role": "assistant", "content": _TURN},
        {"role": "user", "content": f"{_TURN} {_TURN}"},
    ])  # fmt: skip
    if first is None or second is None:
        return 0
    word = first - around
    return max(second - around - 3 * word, 0)
