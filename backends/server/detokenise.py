"""Text of an answer while it grows, character by whole character, and never past a text that ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"
_PATIENCE = 64  # tokens of which none ends with a character, after which what there is is given out: that is no text


class TextStream:
    """Turns tokens into text as they come.

    A token may end in the middle of a character, and tokenizers put blanks between tokens by what stands before: a few tokens
    are decoded together, and only what is certain is given out.

    Args:
        decode: from token ids to text.
        stops: texts that end the answer; they are no part of it.
        least: so many tokens come before any of them counts.

    Attributes:
        stopped: whether one of them came.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = (), least: int = 0) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._free = least if stops else 0  # tokens that no stop counts in
        self._ids: list[int] = []  # the last tokens that were given out whole, and what came after them
        self._done = self._given = 0  # how many tokens were, and how many characters of the text of all
        self._held = ""  # text that may be the beginning of a stop
        self.stopped = False

    def add(self, tokens: Sequence[int], last: bool = False) -> str:
        """What further tokens add.

        Args:
            last: no more come: nothing is held back.
        """
        if self.stopped:
            return ""
        if self._free:
            free, rest = tokens[: self._free], tokens[self._free :]
            self._free -= len(free)
            passed = self._decoded(free, last or bool(rest) or not self._free)
            return passed + self.add(rest, last) if rest else passed
        new = self._held + self._decoded(tokens, last)
        self._held = ""
        if not self._stops:
            return new
        found = [at for stop in self._stops if (at := new.find(stop)) >= 0]
        if found:
            self.stopped = True
            return new[: min(found)]
        if not last and (held := max(self._begun(new, stop) for stop in self._stops)):
            self._held = new[-held:]
            return new[:-held]
        return new

    def _decoded(self, tokens: Sequence[int], last: bool) -> str:
        ids = self._ids
        ids += tokens
        text = self._decode(ids)
        whole = text if last else text.rstrip(_BROKEN)
        given = self._given
        if len(whole) < len(text) and len(ids) - self._done < _PATIENCE:
            self._given = max(given, len(whole))
            return whole[given:]
        del ids[: self._done]
        self._done = len(ids)
        self._given = len(self._decode(ids))
        return text[given:]

    @staticmethod
    def _begun(text: str, stop: str) -> int:
        """How many characters at the end of a text may be the beginning of a stop."""
        return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if stop.startswith(text[-size:])), 0)
