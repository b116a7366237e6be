"""Bodies of requests as OpenAI and vLLM define them, and what of them the server cannot do."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backends.server.errors import ApiError
from backends.server.words import Message

_EXPECTED = {
    "prompt": "text, token ids, a list of texts, or a list of lists of token ids",
    "stop": "a text or a list of texts",
    "messages": "a list of {role, content}, content text or parts of text",
}

MOST_STOPS = 64
"""Texts that may end an answer: each is looked for in all that is said (OpenAI allows 4)."""

Id = Annotated[int, Field(strict=True, ge=0)]
Count = Annotated[int, Field(ge=0)]
# At the first item that is wrong the rest is not looked at: to tell of a million costs seconds, in which no stream goes on.
Ids = Annotated[list[Id], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]


class Body(BaseModel):
    """A JSON object; keys that mean nothing here are let pass, as vLLM does. Numbers are finite."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str | None = None


Some = TypeVar("Some", bound=Body)


class StreamOptions(Body):
    """`stream_options`: usage in a last chunk, or (as vLLM has it) in every one."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Generation(Body):
    """What both ways of asking share; defaults are told by the engine's side where None.

    Attributes:
        priority: smaller is more urgent, for the policy `priority`.
    """

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Count = 0
    ignore_eos: bool = False
    n: int | None = 1
    best_of: int | None = None
    stop: str | Texts | None = None
    stop_token_ids: Ids | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    logit_bias: dict[str, Any] | None = None
    seed: int | None = None
    priority: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] = 0
    prompt_logprobs: int | None = None
    response_format: dict[str, Any] | None = None

    @property
    def limit(self) -> int | None:
        """Tokens of the answer at most, if the client said."""
        return self.max_tokens

    @property
    def stops(self) -> list[str]:
        """Texts that end the answer."""
        return [self.stop] if isinstance(self.stop, str) else [text for text in self.stop or () if text]

    def check(self) -> None:
        """Refuse what the server does not do, rather than answer something else.

        Raises:
            ApiError: naming it.
        """
        unable = {
            "n": self.n not in (None, 1),
            "best_of": self.best_of not in (None, 1),
            "presence_penalty": bool(self.presence_penalty),
            "frequency_penalty": bool(self.frequency_penalty),
            "logit_bias": bool(self.logit_bias),
            "prompt_logprobs": self.prompt_logprobs is not None,
            "response_format": (self.response_format or {}).get("type", "text") != "text",
            **self.unable(),
        }
        for name, asked in unable.items():
            if asked:
                only = " other than 1" if name in ("n", "best_of") else ""
                raise ApiError(f"this server does not support {name}{only}", param=name)
        if len(self.stops) > MOST_STOPS:
            raise ApiError(f"at most {MOST_STOPS} texts may end an answer, got {len(self.stops):,}", param="stop")
        if self.stream_options is not None and not self.stream:
            raise ApiError("stream_options need stream: true", param="stream_options")
        if self.limit is not None and self.min_tokens > self.limit:
            message = f"min_tokens must be at most max_tokens={self.limit}, got {self.min_tokens}"
            raise ApiError(message, param="min_tokens")

    def unable(self) -> dict[str, bool]:
        """Further keys that are not supported, and whether they were asked for."""
        return {}

    def sampling(self) -> dict[str, Any]:
        """How tokens are chosen, as far as the client said, by the names of `backends.torch.sampling.SamplingParams`."""
        named = ("temperature", "top_p", "min_p", "repetition_penalty", "seed")
        wishes = {name: value for name in named if (value := getattr(self, name)) is not None}
        if self.top_k is not None:
            wishes["top_k"] = max(self.top_k, 0)  # vLLM takes −1 for all
        wishes["ignore_eos"] = self.ignore_eos
        wishes["stop"] = tuple(self.stops)
        wishes["stop_token_ids"] = tuple(self.stop_token_ids or ())
        return wishes


class Completion(Generation):
    """The body of `/v1/completions`."""

    prompt: str | Ids | Texts | Annotated[list[Ids], Field(fail_fast=True)]
    echo: bool | None = False
    suffix: str | None = None
    logprobs: int | None = None

    def unable(self) -> dict[str, bool]:
        """Further keys that are not supported, and whether they were asked for."""
        return {"echo": bool(self.echo), "suffix": bool(self.suffix), "logprobs": self.logprobs is not None}

    def prompts(self) -> list[str | list[int]]:
        """Each prompt, as text or token ids.

        Raises:
            ApiError: there is none, or an empty one.
        """
        one = isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int))
        prompts = [self.prompt] if one else list(self.prompt)
        if not prompts or not all(prompts):
            raise ApiError("a prompt must not be empty", param="prompt")
        return prompts


class ChatMessage(BaseModel):
    """One message; content is text, or parts that are all text."""

    model_config = ConfigDict(extra="ignore")

    role: str
    content: str | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None

    def plain(self) -> Message:
        """The message with its text in one piece.

        Raises:
            ApiError: a part is no text.
        """
        content = self.content or ""
        if not isinstance(content, str):
            for part in content:
                if not isinstance(part.get("text"), str):
                    raise ApiError(
                        f"this server reads text only, got a part of type {part.get('type')}", param="messages"
                    )
            content = "\n".join(part["text"] for part in content)
        return {"role": self.role, "content": content}


Messages = Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]


class Chat(Generation):
    """The body of `/v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = False
    tools: list[Any] | None = None
    tool_choice: Any = None

    @property
    def limit(self) -> int | None:
        """Tokens of the answer at most, if the client said; the newer name wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def unable(self) -> dict[str, bool]:
        """Further keys that are not supported, and whether they were asked for."""
        return {"logprobs": bool(self.logprobs), "tools": bool(self.tools) and self.tool_choice != "none"}

    def plain(self) -> list[Message]:
        """The messages as text."""
        return [message.plain() for message in self.messages]


class Tokenize(Body):
    """The body of `/tokenize`: a prompt, or messages."""

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class Detokenize(Body):
    """The body of `/detokenize`."""

    tokens: Ids


def parsed(kind: type[Some], data: bytes) -> Some:
    """A body of that kind.

    Raises:
        ApiError: no JSON, or not such a body; the first thing that is wrong.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = first["loc"]
        name = str(where[0]) if where else None
        if name in _EXPECTED and len(where) > 1 and first["type"] != "missing":  # of several that might be meant
            raise ApiError(f"{name}: expected {_EXPECTED[name]}", param=name) from None
        key = ".".join(str(part) for part in where)
        raise ApiError(f"{key}: {first['msg']}" if key else first["msg"], param=name) from None
