"""Workloads on somebody's server: what the file asks for, and what the server says to that before anything is measured."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from backends.http.need import need_aiohttp
from experiments.conflicts import DEFAULT, DERIVED, USER
from experiments.real import forces_lengths
from experiments.registries import REMOTE
from experiments.schema import Workload
from experiments.schema.workload import REAL_KEYS
from experiments.traffic import make_traffic
from sim.models import load_model
from sim.presets import find_preset
from workloads.errors import InputError, TargetError
from workloads.traffic import Traffic

if TYPE_CHECKING:
    from backends.http.client import Access, Client
    from backends.http.counting import Measure
    from backends.http.request import Form
    from backends.http.server import Server
    from experiments.resolve import Resolved

TIMEOUT = 600.0
_NOT_THERE = (404, 405, 501)
_Found = TypeVar("_Found")


@dataclass(slots=True)
class RemoteBackend:
    """A server that answered, and how it is to be asked.

    Attributes:
        access, form: how it is reached, and what goes into every request.
        measure: how it counts words.   counted_by: who said so.   ids: whether prompts are token ids.
        server: what it says of itself.   forced: whether it can be told how long answers shall be.
        fresh: whether made-up words are others in every run.   warmup: requests before the run.
        max_duration: seconds after which nothing more is sent.
    """

    access: Access
    form: Form
    measure: Measure
    counted_by: str
    ids: bool
    server: Server
    forced: bool
    fresh: bool = True
    warmup: int = 0
    max_duration: float = float("inf")
    notices: list[str] = field(default_factory=list)


def resolve_remote(workload: Workload) -> Resolved:
    """Ask the server what it serves and takes.

    Raises:
        InputError: something does not fit together.
        TargetError: the server cannot be reached, or refuses requests.
    """
    need_aiohttp(workload.place("backend.name"))
    if workload.load.mode == "offline":
        raise workload.error(
            "load.mode", "a server is never offline: everything reaches it through its front end",
            "write mode: open with arrivals: {process: constant, rate: 1e6}, which sends all at once, or mode: closed",
        )  # fmt: skip
    from experiments.resolve import Resolved

    access = _access(workload)
    backend, traffic = run_async(_meet(workload, access))
    config, info = _config(workload, backend), _info(workload)
    warnings = [*_unused(workload), *backend.notices]
    return Resolved(workload, None, None, None, None, None, config, info, warnings, remote=backend, _traffic=traffic)


def run_async(work: Coroutine[Any, Any, _Found]) -> _Found:
    """Run to the end what is asynchronous, also where a loop is running already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    found: list[_Found] = []
    failed: list[BaseException] = []

    def apart() -> None:
        try:
            found.append(asyncio.run(work))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=apart)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _access(workload: Workload) -> Access:
    from backends.http.client import Access

    backend = workload.backend
    key = None
    if backend.api_key_env is not None:
        key = os.environ.get(backend.api_key_env, "").strip()
        if not key:
            raise workload.error(
                "backend.api_key_env", f"the environment variable {backend.api_key_env} is not set", "export it"
            )
    return Access(
        backend.base_url, key, dict(backend.headers or {}), backend.verify_tls is not False, backend.timeout or TIMEOUT
    )


async def _meet(workload: Workload, access: Access) -> tuple[RemoteBackend, Traffic]:
    from backends.http.client import Client
    from backends.http.counting import Measure, measure
    from backends.http.request import CHAT, Form
    from backends.http.server import find_count, look
    from backends.http.words import WORDS

    said = workload.backend
    async with Client(access) as client:
        server = await look(client)
        traffic = _traffic(workload, server)
        endpoint = _endpoint(workload, traffic)
        settings, forced = _settings(workload)
        ids = said.prompts == "ids"
        urgent = bool((traffic.priority != traffic.priority[0]).any())
        form = Form(
            endpoint, _model(workload, server), settings, "ignore_eos" if forced else "", True, bool(said.chunk_usage),
            priority=urgent,
        )  # fmt: skip
        form, notices = await _settle(client, form, ids, said.endpoint in (None, "auto"))
        notices += _several(workload, server, form.model) + _too_long(traffic, server)
        found, counted_by = Measure(WORDS), "token ids"
        if not ids and (traffic.texts is None or None in traffic.texts):
            count, counted_by = await find_count(client, form)
            found = await measure(count, WORDS, chat=form.endpoint == CHAT, sessions=bool((traffic.parent >= 0).any()))
            notices += _inexact(found)
        elif not ids:
            counted_by = "words of the trace"
    backend = RemoteBackend(
        access, form, found, counted_by, ids, server, forced and bool(form.force), said.fresh_prompts is not False,
        said.warmup or 0, said.max_duration or float("inf"), notices,
    )  # fmt: skip
    return backend, traffic


async def _settle(client: Client, form: Form, ids: bool, free: bool) -> tuple[Form, list[str]]:
    """What the server takes of a form, and what is to be said of that; chat where it has no completions, if we are `free`."""
    from backends.http.request import CHAT
    from backends.http.server import Refused, settle_form

    message = [{"role": "user", "content": "Go on"}]
    sample: Any = message if form.endpoint == CHAT else [2000, 2001, 2002] if ids else "Go on"
    try:
        form, _, notices = await settle_form(client, form, sample)
        return form, notices
    except Refused as refused:
        if not free or ids or form.endpoint == CHAT or refused.status not in _NOT_THERE:
            raise
        try:
            form, _, notices = await settle_form(client, replace(form, endpoint=CHAT), message)
        except Refused:  # it is something else that it does not have, such as the model
            raise refused from None
    return form, [*notices, "the server has no completions: prompts are sent as chat"]


def _inexact(found: Measure) -> list[str]:
    if not found.exact:
        return [
            "the server does not say how many tokens a prompt has: a word is taken for a token, so lengths are rough"
        ]
    if found.per_word != 1.0:
        return [
            f"to this server a word has {found.per_word:.3g} tokens in the mean: lengths of prompts are near what was asked"
        ]
    return []


def _traffic(workload: Workload, server: Server) -> Traffic:
    """The requests, with what clients declare: by the context that the file says, the server, or the model's own."""
    context = workload.engine.max_model_len or server.context or _context_of(workload)
    traffic = make_traffic(workload, context)
    if context is None and (traffic.max_tokens == 0).any():
        unsaid = traffic.max_tokens == 0
        traffic = replace(traffic, max_tokens=np.where(unsaid, traffic.output_tokens, traffic.max_tokens))
        traffic.notes.append("max_tokens: the true length, since nobody says how long a context the server takes")
    traffic.validate()
    return traffic


def _context_of(workload: Workload) -> int | None:
    try:
        return load_model(workload.model_source).max_position
    except InputError:  # a name of the hub that no table has
        return None


def _endpoint(workload: Workload, traffic: Traffic) -> str:
    from backends.http.request import CHAT, COMPLETIONS

    said = workload.backend.endpoint or "auto"
    messages = any(isinstance(words, list) for words in traffic.texts or ())
    if said == COMPLETIONS and messages:
        raise workload.error(
            "backend.endpoint",
            "the traffic has messages, which only chat takes",
            "write endpoint: chat, or leave it out",
        )
    if said == "auto":
        said = CHAT if messages else COMPLETIONS
    if said == CHAT and workload.backend.prompts == "ids":
        raise workload.error("backend.prompts", "chat takes messages, no token ids", "write prompts: text")
    return said


def _settings(workload: Workload) -> tuple[dict[str, Any], bool]:
    """How tokens are chosen, with what the user adds, and whether lengths are to be forced."""
    written = workload.sampling.plain()
    written.pop("ignore_eos", None)
    forced = forces_lengths(workload)
    return {**written, **(workload.backend.extra_body or {})}, forced


def _model(workload: Workload, server: Server) -> str:
    """What the server calls the model: as written, as the workload calls it if it serves that, else its first."""
    if workload.backend.model is not None:
        return workload.backend.model
    if not server.models:
        raise TargetError(
            f"{workload.backend.base_url} does not say what it serves (/v1/models: {server.answered}): is that its address? "
            "If so, name the model: --set backend.model=NAME"
        )
    return workload.model if workload.model in server.models else server.models[0]


def _several(workload: Workload, server: Server, chosen: str) -> list[str]:
    if workload.backend.model is not None or len(server.models) < 2 or chosen == workload.model:
        return []
    others = ", ".join(server.models[1:4])
    return [f"the server serves several models; {chosen} is asked, others are {others} (backend.model chooses)"]


def _too_long(traffic: Traffic, server: Server) -> list[str]:
    """Requests that the server will refuse, since it takes no prompt and answer that long."""
    if server.context is None:
        return []
    asked = traffic.input_tokens + np.minimum(traffic.output_tokens, traffic.max_tokens)
    count = int((asked > server.context).sum())
    if not count:
        return []
    return [
        f"{count:,} of {len(traffic):,} requests have more than the {server.context:,} tokens that the server takes (the most: "
        f"{int(asked.max()):,}): it will refuse them"
    ]


def _unused(workload: Workload) -> list[str]:
    """Sections of the file that say nothing to a server, though the same file runs on other backends."""
    notices = []
    if workload.engine.written():
        notices.append(
            "engine only describes the server, which is set up as it is: for `bench validate` and for readers"
        )
    written = [f"backend.{key}" for key in (*REAL_KEYS, "link", "network", "gpus_per_node")
               if getattr(workload.backend, key) is not None]  # fmt: skip
    written += [name for name in ("cluster", "cost") if getattr(workload, name).written()]
    if written:
        notices.append(
            f"{' and '.join(written)} {'has' if len(written) == 1 else 'have'} no effect on backend {REMOTE}"
        )
    return notices


def _config(workload: Workload, backend: RemoteBackend) -> dict[str, Any]:
    """What was asked, with what was found out; nobody knows the server's own settings."""
    from experiments.resolve import leaves_of

    plain = {key: value for key, value in workload.plain().items() if key not in ("sweep", "name")}
    hidden = plain["backend"].get("headers")
    if hidden:  # a header may hold a key
        plain["backend"]["headers"] = {name: "..." for name in hidden}
    config = {key: leaves_of(value) for key, value in plain.items()}
    if workload.engine.preset is not None:
        config["engine"]["preset"] = {"value": find_preset(workload.engine.preset)[0], "source": USER}
    found = {
        "model": backend.form.model, "endpoint": backend.form.endpoint,
        "prompts": "ids" if backend.ids else "text", "counted_by": backend.counted_by,
        "lengths": backend.form.force or "as the model ends them",
    }  # fmt: skip
    for key, value in found.items():
        config["backend"].setdefault(key, {"value": value, "source": DERIVED})
    if config["backend"]["endpoint"]["value"] == "auto":
        config["backend"]["endpoint"] = {"value": backend.form.endpoint, "source": DERIVED}
    config.setdefault("seed", {"value": workload.seed, "source": DEFAULT})
    config.setdefault("load", {"mode": {"value": workload.load.mode, "source": DEFAULT}})
    if "max_tokens" not in config["traffic"]:
        config["traffic"]["max_tokens"] = {"value": workload.traffic.max_tokens, "source": DEFAULT}
    config["model"] = {"value": workload.model, "source": USER}
    return config


def _info(workload: Workload) -> dict[str, Any]:
    try:
        name = load_model(workload.model_source).name
    except InputError:
        name = workload.model
    parallel = workload.engine.parallel
    gpus = (parallel.tensor or 1) * (parallel.pipeline or 1) * (parallel.data or 1)
    return {
        "name": workload.name, "seed": workload.seed, "backend": REMOTE, "model": name, "gpu": workload.backend.gpu,
        "load": workload.load.plain() or {"mode": "open"}, "slo": workload.slo.plain(), "kv_pool_tokens": None,
        "kv_block_tokens": None, "kv_bytes_per_token": None, "max_num_seqs": None, "gpus": gpus,
    }  # fmt: skip
