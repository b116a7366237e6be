"""The body of a request: what OpenAI's interface has, what vLLM and SGLang add to it, and what a server takes of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

COMPLETIONS, CHAT = "completions", "chat"
PATHS = {COMPLETIONS: "/v1/completions", CHAT: "/v1/chat/completions"}
LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"


@dataclass(frozen=True, slots=True)
class Form:
    """What goes into every request.

    Attributes:
        endpoint: `completions` or `chat`.   model: as the server calls it.
        settings: how tokens are chosen, and whatever the user adds.
        force: how answers are made as long as the traffic says: by `ignore_eos`, by `min_tokens`, or not at all ("").
            Both would do no more than the first, and `min_tokens` costs vLLM a mask over the logits in every step.
        usage: whether the server is asked to count.   chunk_usage: in every chunk.
        limit: the name of the longest length.   priority: whether requests say theirs; vLLM takes it where it schedules by it.
    """

    endpoint: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    force: str = "ignore_eos"
    usage: bool = True
    chunk_usage: bool = False
    limit: str = LIMIT
    priority: bool = False

    @property
    def path(self) -> str:
        return PATHS[self.endpoint]

    def body(
        self, prompt: str | list[int] | list[dict[str, str]], tokens: int, n: int = 1, priority: int = 0
    ) -> dict[str, Any]:
        """A request for an answer of at most `tokens` tokens.

        Args:
            prompt: text or token ids for completions, messages for chat.
        """
        body: dict[str, Any] = {"model": self.model, "messages" if self.endpoint == CHAT else "prompt": prompt}
        body |= {self.limit: tokens, "stream": True}
        if self.usage:
            body["stream_options"] = {"include_usage": True}
            if self.chunk_usage:
                body["stream_options"]["continuous_usage_stats"] = True
        if n > 1:
            body["n"] = n
        if self.priority:
            body["priority"] = priority
        if self.force:
            body[self.force] = True if self.force == "ignore_eos" else tokens
        return body | dict(self.settings)

    def simpler(self) -> list[Form]:
        """What to try where a server refuses this, in order: each asks for less that is not in OpenAI's interface."""
        ways = ["ignore_eos", "min_tokens", ""]
        forms = [replace(self, force=way) for way in ways[ways.index(self.force) :]]
        if self.chunk_usage:
            forms += [replace(form, chunk_usage=False) for form in forms]
        if self.usage:
            forms += [replace(form, usage=False, chunk_usage=False) for form in forms[-1:]]
        if self.priority:
            forms = [each for form in forms for each in (form, replace(form, priority=False))]
        return [form for form in forms if form != self]
