"""One request to a server: when what came back, and what it said of itself."""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from backends.http.events import DONE

CONNECT, TIMEOUT, STATUS, CUT, STREAM, EMPTY, BROKEN = (
    "connect", "timeout", "status", "cut", "error in the stream", "empty", "not understood",
)  # fmt: skip
KINDS = (CONNECT, TIMEOUT, STATUS, CUT, STREAM, EMPTY, BROKEN)
"""Ways in which a request can fail: no connection; no end in time; an HTTP status that is not 2xx; a stream that ended in the
middle; an error in it; no token at all; something that is no completion."""
MOST_ANSWER = 1_000_000
"""No model gives a longer answer at once: a server that counts more does not count tokens."""
MOST_TOKENS = 10_000_000
"""No model has a longer context: a server that counts more does not count tokens."""
_LONGEST = 200  # characters of what a server says that are kept
_TITLE = re.compile(r"<title[^>]*>([^<]*\S[^<]*)</title", re.IGNORECASE)  # of a page, which says the most in the least
_DEEPEST = 8  # errors within errors
_BROKEN_OFF = ("abort", "error", "cancelled")
"""Reasons for the end of an answer that the server gave up: vLLM's `abort` and `error`, SGLang's `abort`. OpenAI's own are
`stop`, `length`, `content_filter` and `tool_calls`."""
_ODD = (ValueError, TypeError, AttributeError, RecursionError)  # what JSON of any shape but that of a chunk leads to


@dataclass(slots=True)
class Answer:
    """What came of a request. Times are seconds on the run's clock, NaN for never.

    Attributes:
        row: of the traffic.   due: when it was to be sent.
        begun: when the client took it up.   sent: when its head went to the socket, after a connection was there.
        status: of HTTP, 0 where none came.   head: when that came.
        times, sizes: of every chunk with generated text (reasoning and tool calls are generated too): when it came, characters.
        counts: tokens up to and including each chunk, where the server says so in every one; else empty.
        any_chunk: when the first chunk of any kind came, such as one that only names the role.
        end: when the stream was over.
        prompt_tokens, output_tokens, cached_tokens: as the server counts; -1 where it does not.
        text: of the answer, without reasoning.
        kind, reason: why it failed; "" where it did not.   cancelled: whether it was given up at the end of the run.
    """

    row: int
    due: float
    begun: float = float("nan")
    sent: float = float("nan")
    status: int = 0
    head: float = float("nan")
    times: array = field(default_factory=lambda: array("d"))
    sizes: array = field(default_factory=lambda: array("i"))
    counts: array = field(default_factory=lambda: array("i"))
    any_chunk: float = float("nan")
    end: float = float("nan")
    prompt_tokens: int = -1
    output_tokens: int = -1
    cached_tokens: int = -1
    text: str = ""
    kind: str = ""
    reason: str = ""
    cancelled: bool = False

    @property
    def good(self) -> bool:
        return not self.kind and not self.cancelled

    def fail(self, kind: str, message: str = "") -> None:
        """Note why it failed; the first reason stays."""
        if not self.kind:
            self.kind = kind
            words = _plain(message)
            self.reason = f"{kind}: {words[:_LONGEST]}" if words else kind


class Reader:
    """Reads the events of one stream into an answer.

    Args:
        keep: whether the text of the answer is wanted, since a later turn contains it.
    """

    def __init__(self, answer: Answer, keep: bool = False) -> None:
        self._answer, self._keep = answer, keep
        self._text: list[str] = []
        self._stopped = self._done = self._seen = False

    @property
    def empty(self) -> bool:
        """Whether nothing has come that could be a part of an answer, not even one that cannot be understood."""
        return not self._seen

    def take(self, event: bytes, now: float) -> None:
        """An event that came at `now`. Nothing that a server says raises."""
        self._seen = True
        if event == DONE:
            self._done = True
            return
        try:
            chunk = _loaded(event)
            if self._is_error(chunk):
                self._answer.fail(STREAM, message_of(chunk))
                return
            choices = () if self._done else chunk.get("choices") or ()  # what comes after the end is none of the answer
            size = sum([self._choice(choice) for choice in choices])
        except _ODD:
            if event.strip() == DONE:
                self._done = True
            else:
                self._answer.fail(BROKEN, event[:_LONGEST].decode("utf-8", "replace"))
            return
        answer = self._answer
        if answer.any_chunk != answer.any_chunk and choices:
            answer.any_chunk = now
        if size:
            answer.times.append(now)
            answer.sizes.append(size)
        usage = chunk.get("usage")
        if usage and isinstance(usage, dict):
            self._usage(usage, bool(choices))

    @staticmethod
    def _is_error(chunk: dict[str, Any]) -> bool:
        """Whether a chunk is an error, in the forms that servers give it."""
        if chunk.get("error") is not None or chunk.get("object") == "error":
            return True
        return "choices" not in chunk and "usage" not in chunk and bool(chunk.get("message") or chunk.get("detail"))

    def _choice(self, choice: dict[str, Any]) -> int:
        """Characters that were generated in a choice."""
        if why := choice.get("finish_reason"):
            self._stopped = True
            why = why.get("type") if isinstance(why, dict) else why
            if why in _BROKEN_OFF:
                self._answer.fail(STREAM, f"the server ended the answer with finish_reason {why}")
        delta = choice.get("delta")
        if delta is None:
            said, size = _text(choice.get("text")), 0
        else:
            said = _text(delta.get("content"))
            size = len(_text(delta.get("reasoning_content") or delta.get("reasoning")))
            for call in delta.get("tool_calls") or ():
                made = call.get("function") or {}
                size += len(_text(made.get("name"))) + len(_text(made.get("arguments")))
        if said and self._keep:
            self._text.append(said)
        return size + len(said)

    def _usage(self, usage: dict[str, Any], with_text: bool) -> None:
        answer = self._answer
        answer.prompt_tokens = _count(usage, "prompt_tokens", answer.prompt_tokens)
        answer.output_tokens = _count(usage, "completion_tokens", answer.output_tokens, MOST_ANSWER)
        answer.cached_tokens = _count(usage.get("prompt_tokens_details"), "cached_tokens", answer.cached_tokens)
        if with_text and len(answer.counts) == len(answer.times) - 1:  # so far with every chunk
            answer.counts.append(max(answer.output_tokens, 0))

    def finish(self, now: float) -> None:
        """The stream is over."""
        answer = self._answer
        answer.end = now
        answer.text = "".join(self._text)
        if not answer.output_tokens and len(answer.times):  # there is text, so nobody counted
            answer.output_tokens = -1
        if not (self._done or self._stopped):
            answer.fail(CUT, "the stream ended before the answer did" if len(answer.times) else "")
        if not len(answer.times):
            answer.fail(EMPTY, "the answer had no token")


def _loaded(event: bytes) -> dict[str, Any]:
    """The object that an event is. The fast reader takes a quarter of the other's time, which is most of what a token takes,
    and refuses halves of characters, and bytes that are no UTF-8: those are replaced, as browsers do."""
    try:
        return from_json(event, cache_strings="keys")
    except ValueError:
        return json.loads(event.decode("utf-8", "replace"))


def _text(said: Any) -> str:
    """A text, or parts of one.

    Raises:
        TypeError: neither.
    """
    if isinstance(said, str):
        return said
    if isinstance(said, list):
        return "".join([_text(part.get("text")) for part in said])
    if isinstance(said, dict):  # arguments of a call that are not written out as text
        return json.dumps(said)
    if said is None:
        return ""
    raise TypeError(f"no text: {said!r}")


def whole_number(value: Any, most: int = MOST_TOKENS) -> bool:
    """Whether a server's figure can be a number of tokens."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _count(usage: Any, key: str, otherwise: int, most: int = MOST_TOKENS) -> int:
    value = usage.get(key) if isinstance(usage, dict) else None
    return value if whole_number(value, most) else otherwise


def _plain(text: str) -> str:
    """The beginning of a text as one line of letters, since it goes to a terminal."""
    words = " ".join(text[: 2 * _LONGEST].split())
    return "".join([letter if letter.isprintable() else "?" for letter in words])


def message_of(said: Any) -> str:
    """What an error says, in the forms that servers give it: OpenAI's, FastAPI's, plain text."""
    return _plain(_message(said, 0))[:_LONGEST]


def _message(said: Any, depth: int) -> str:
    if isinstance(said, bytes | str):
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            title = _TITLE.search(text)
            return (title.group(1) if title else text).strip()[:_LONGEST]
    inner = None
    if isinstance(said, dict):
        inner = next((said[key] for key in ("error", "detail", "message") if said.get(key)), None)
    elif isinstance(said, list) and said:  # FastAPI's list of what is wrong
        inner = said[0].get("msg") if isinstance(said[0], dict) and said[0].get("msg") else str(said[0])
    if inner is not None and depth < _DEEPEST:
        return _message(inner, depth + 1)
    return (json.dumps(said) if isinstance(said, dict) else str(said))[:_LONGEST]
