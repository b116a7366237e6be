"""Getting to know a server before it is measured: what it serves, what it takes, how it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from backends.http.answer import BROKEN, CONNECT, CUT, STATUS, TIMEOUT, Answer, message_of, whole_number
from backends.http.client import Client, encoded, told
from backends.http.counting import OPENING, Count
from backends.http.request import CHAT, LIMIT, NEW_LIMIT, Form
from workloads.errors import TargetError

Prompt = str | list[dict[str, str]] | list[int]
_REFUSED = (400, 404, 405, 415, 422, 501)  # a server may say in any of these that it does not know a field
_CHECK_TOKENS = 2
_KEY = "(backend.api_key_env names the variable that holds the key)"
_NOTICES = {
    "min_tokens": "the server does not know ignore_eos: answers get their lengths by min_tokens",
    "": "the server cannot be told how long answers shall be (neither ignore_eos nor min_tokens): they end where the model "
    "ends them, and may be shorter than the traffic says",
}


@dataclass(slots=True)
class Server:
    """What a server says of itself.

    Attributes:
        models: names that it serves.   context: its longest prompt plus answer, where it says so.
        version: where it says so.   told: all of it, for the record.   answered: what /v1/models gave, such as "HTTP 404".
    """

    models: list[str] = field(default_factory=list)
    context: int | None = None
    version: str | None = None
    told: dict[str, Any] = field(default_factory=dict)
    answered: str = ""


class Refused(TargetError):
    """The server refuses requests, or does not answer them; `status` is HTTP's, 0 for none."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def look(client: Client) -> Server:
    """Ask for models and version.

    Raises:
        TargetError: nobody answers there, or the key is refused.
    """
    try:
        status, said = await client.get("/v1/models")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        mute = isinstance(error, aiohttp.ServerDisconnectedError) and not client.access.tls
        hint = " (is it https://?)" if mute else ""
        raise TargetError(f"cannot reach {client.access.root}: {told(error)}{hint}") from None
    if status in (401, 403):
        raise TargetError(f"{client.access.root} refuses the key: HTTP {status} {message_of(said)} {_KEY}")
    server = Server(answered=f"HTTP {status}")
    rows = said.get("data") if status == 200 and isinstance(said, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("id"), str):
            server.models.append(row["id"])
            longest = row.get("max_model_len")
            if server.context is None and whole_number(longest, 1 << 31) and longest > 0:
                server.context = longest
    server.version = await _version(client)
    server.told = {key: value for key, value in (
        ("models", server.models[:20]), ("max_model_len", server.context), ("version", server.version),
    ) if value}  # fmt: skip
    return server


async def _version(client: Client) -> str | None:
    """vLLM, and our own server, tell their version at /version."""
    try:
        status, said = await client.get("/version")
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    version = said.get("version") if status == 200 and isinstance(said, dict) else None
    return version if isinstance(version, str) else None


async def settle_form(client: Client, form: Form, prompt: Prompt) -> tuple[Form, Answer, list[str]]:
    """Find what a server takes, by one short request, and shorter ones where it refuses.

    Returns:
        The form, the answer to it, and what was given up.

    Raises:
        Refused: all of it, or there is no answer.
    """
    first: Answer | None = None
    tries = [form, *form.simpler()]
    while tries:
        tried = tries.pop(0)
        answer = await ask(client, tried, prompt, _CHECK_TOKENS)
        if answer.good:
            return tried, answer, _given_up(form, tried)
        first = first or answer
        if answer.kind != STATUS or answer.status not in _REFUSED:
            break
        if tried.limit == LIMIT and NEW_LIMIT in answer.reason:  # OpenAI's own newer models
            tries = [replace(each, limit=NEW_LIMIT) for each in (tried, *tries)]
    raise Refused(f"{client.access.root}{form.path} {_why(first)}", first.status)


async def ask(client: Client, form: Form, prompt: Prompt, tokens: int) -> Answer:
    """A request that is not counted."""
    return await client.stream(form.path, encoded(form.body(prompt, tokens, priority=1)), Answer(-1, 0.0))


def _why(answer: Answer) -> str:
    words = {
        CONNECT: "cannot be reached",
        TIMEOUT: "does not answer",
        CUT: "cannot be reached",
        STATUS: "refuses requests",
        BROKEN: "gives no stream",
    }
    if answer.kind == CUT and answer.status:
        words[CUT] = "gives no whole answer"
    key = f" {_KEY}" if answer.status in (401, 403) else ""
    return f"{words.get(answer.kind, 'gives no answer')}: {answer.reason.removeprefix(answer.kind).lstrip(': ')}{key}"


def _given_up(asked: Form, taken: Form) -> list[str]:
    notices = []
    if asked.force != taken.force:
        notices.append(_NOTICES[taken.force])
    if asked.priority and not taken.priority:
        notices.append("the server takes no priorities: requests are sent without")
    if asked.usage and not taken.usage:
        notices.append("the server does not count tokens (stream_options refused): a chunk is taken for a token")
    elif asked.chunk_usage and not taken.chunk_usage:
        notices.append("the server does not count tokens in every chunk: backend.chunk_usage has no effect")
    return notices


async def find_count(client: Client, form: Form) -> tuple[Count, str]:
    """The best way to have a server count prompts, and its name: its own /tokenize, or what it says of a short request."""
    sample: Prompt = [{"role": "user", "content": OPENING}] if form.endpoint == CHAT else OPENING
    if await _tokenize(client, form, sample) is not None:

        async def by_tokenize(prompt: Prompt) -> int | None:
            return await _tokenize(client, form, prompt)

        return by_tokenize, "the server's /tokenize"

    async def by_usage(prompt: Prompt) -> int | None:
        answer = await ask(client, replace(form, force=""), prompt, 1)
        return answer.prompt_tokens if answer.prompt_tokens > 0 else None

    return by_usage, "the usage that the server tells"


async def _tokenize(client: Client, form: Form, prompt: Prompt) -> int | None:
    """vLLM's and SGLang's count, with what the model wants around a prompt."""
    key = "prompt" if isinstance(prompt, str) else "messages"
    try:
        status, said = await client.post("/tokenize", {"model": form.model, key: prompt})
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    if status != 200 or not isinstance(said, dict):
        return None
    count = said.get("count")
    if not whole_number(count):
        tokens: Sequence[int] | Any = said.get("tokens")
        count = len(tokens) if isinstance(tokens, list) else None
    return count if count and count > 0 else None
