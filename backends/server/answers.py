"""Answers in OpenAI's shapes: whole, or as server-sent events."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

from backends.server.detokenise import TextStream

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Choice:
    """One answer while it grows.

    Attributes:
        text: turns tokens into text. prompt: tokens of the prompt; cached: of those, found in the prefix cache.
        said: tokens so far. parts: text so far, where it is given out at the end.
    """

    text: TextStream
    prompt: int
    cached: int = 0
    said: int = 0
    finish: str | None = None
    parts: list[str] = field(default_factory=list)


class Shape:
    """How `/v1/completions` and `/v1/chat/completions` answer.

    Args:
        chat: which of the two.
        model: as the client named it.
    """

    def __init__(self, chat: bool, model: str) -> None:
        self.chat = chat
        # uuid4 asks the system for chance, and hands the interpreter's lock to the engine's thread meanwhile.
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{random.getrandbits(128):032x}"
        self.created = int(time.time())
        self.model = model
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = {"id": self.id, "object": kind, "created": self.created, "model": model}
        self._head = "data: " + json.dumps(head)[:-1]

    def first(self, index: int) -> bytes:
        """What comes before the first token of an answer: its role, in a chat."""
        if not self.chat:
            return b""
        return self._event(
            f'{{"index": {index}, "delta": {{"role": "assistant", "content": ""}}, "finish_reason": null}}'
        )

    def chunk(self, index: int, text: str, finish: str | None, usage: dict[str, Any] | None = None) -> bytes:
        """A piece of an answer; usage so far if it is to be in every chunk."""
        quoted = json.dumps(text)
        reason = f'"{finish}"' if finish else "null"
        if self.chat:
            delta = f'{{"content": {quoted}}}' if text or not finish else "{}"
            choice = f'{{"index": {index}, "delta": {delta}, "logprobs": null, "finish_reason": {reason}}}'
        else:
            choice = f'{{"index": {index}, "text": {quoted}, "logprobs": null, "finish_reason": {reason}}}'
        return self._event(choice, usage)

    def closing(self, usage: dict[str, Any]) -> bytes:
        """The chunk without choices that tells the usage."""
        return self._event("", usage)

    def _event(self, choice: str, usage: dict[str, Any] | None = None) -> bytes:
        told = f', "usage": {json.dumps(usage)}' if usage is not None else ""
        return f'{self._head}, "choices": [{choice}]{told}}}\n\n'.encode()

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        told = []
        for index, choice in enumerate(choices):
            text = "".join(choice.parts)
            said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            told.append({"index": index, **said, "logprobs": None, "finish_reason": choice.finish})
        kind = "chat.completion" if self.chat else "text_completion"
        return {
            "id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": told,
            "usage": usage_of(choices),
        }  # fmt: skip


def usage_of(choices: list[Choice]) -> dict[str, Any]:
    """Tokens of prompts and answers."""
    prompt, said = sum(choice.prompt for choice in choices), sum(choice.said for choice in choices)
    return {
        "prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached for choice in choices)},
    }  # fmt: skip
