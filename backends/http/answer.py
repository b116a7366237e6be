"""One request to a server: when what came back, and what it said of itself."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

from backends.http.events import DONE

CONNECT, TIMEOUT, STATUS, CUT, STREAM, EMPTY, BROKEN = (
    "connect", "timeout", "status", "cut", "error in the stream", "empty", "not understood",
)  # fmt: skip
KINDS = (CONNECT, TIMEOUT, STATUS, CUT, STREAM, EMPTY, BROKEN)
"""Ways in which a request can fail: no connection; no end in time; an HTTP status that is not 2xx; a stream that ended in the
middle; an error in it; no token at all; something that is no completion."""
_LONGEST = 200  # characters of what a server says that are kept


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
            words = " ".join(str(message).split())
            self.reason = f"{kind}: {words[:_LONGEST]}" if words else kind


class Reader:
    """Reads the events of one stream into an answer.

    Args:
        keep: whether the text of the answer is wanted, since a later turn contains it.
    """

    def __init__(self, answer: Answer, keep: bool = False) -> None:
        self._answer, self._keep = answer, keep
        self._text: list[str] = []
        self._stopped = self._done = False

    def take(self, event: bytes, now: float) -> None:
        """An event that came at `now`."""
        answer = self._answer
        if event == DONE:
            self._done = True
            return
        try:
            chunk = json.loads(event)
            choices = chunk.get("choices") or ()
        except (ValueError, AttributeError):
            answer.fail(BROKEN, event[:_LONGEST].decode("utf-8", "replace"))
            return
        if chunk.get("error") is not None and not choices:
            answer.fail(STREAM, message_of(chunk))
            return
        if answer.any_chunk != answer.any_chunk and choices:
            answer.any_chunk = now
        usage = chunk.get("usage")
        size = 0
        for choice in choices:
            size += self._choice(choice)
        if size:
            answer.times.append(now)
            answer.sizes.append(size)
        if usage:
            self._usage(usage, bool(choices))

    def _choice(self, choice: dict[str, Any]) -> int:
        """Characters that were generated in a choice."""
        if choice.get("finish_reason"):
            self._stopped = True
        delta = choice.get("delta")
        if delta is None:
            said, size = choice.get("text") or "", 0
        else:
            said = delta.get("content") or ""
            size = len(delta.get("reasoning_content") or delta.get("reasoning") or "")
            for call in delta.get("tool_calls") or ():
                made = call.get("function") or {}
                size += len(made.get("name") or "") + len(made.get("arguments") or "")
        if said and self._keep:
            self._text.append(said)
        return size + len(said)

    def _usage(self, usage: dict[str, Any], with_text: bool) -> None:
        answer = self._answer
        answer.prompt_tokens = _count(usage, "prompt_tokens", answer.prompt_tokens)
        answer.output_tokens = _count(usage, "completion_tokens", answer.output_tokens)
        answer.cached_tokens = _count(usage.get("prompt_tokens_details"), "cached_tokens", answer.cached_tokens)
        if with_text and len(answer.counts) == len(answer.times) - 1:  # so far with every chunk
            answer.counts.append(max(answer.output_tokens, 0))

    def finish(self, now: float) -> None:
        """The stream is over."""
        answer = self._answer
        answer.end = now
        answer.text = "".join(self._text)
        if not (self._done or self._stopped):
            answer.fail(CUT, "the stream ended before the answer did" if len(answer.times) else "")
        if not len(answer.times):
            answer.fail(EMPTY, "the answer had no token")


def _count(usage: Any, key: str, otherwise: int) -> int:
    value = usage.get(key) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and value >= 0 else otherwise


def message_of(said: Any) -> str:
    """What an error says, in the forms that servers give it: OpenAI's, FastAPI's, plain text."""
    if isinstance(said, bytes | str):
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        try:
            said = json.loads(text)
        except ValueError:
            return text.strip()[:_LONGEST]
    if isinstance(said, dict):
        inner = next((said[key] for key in ("error", "detail", "message") if said.get(key)), None)
        return message_of(inner) if inner is not None else json.dumps(said)[:_LONGEST]
    if isinstance(said, list) and said:  # FastAPI's list of what is wrong
        return message_of(said[0].get("msg") if isinstance(said[0], dict) and said[0].get("msg") else str(said[0]))
    return str(said)[:_LONGEST]
