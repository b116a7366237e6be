"""The whole of `workload.yaml` as one frozen value."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo, model_validator

from experiments import registries
from experiments.schema.base import Milliseconds, Seconds, Section, Text, Wrong, registered, wrong_from
from experiments.schema.cluster import ClusterSection
from experiments.schema.cost import CostSection
from experiments.schema.engine import EngineSection
from experiments.schema.sampling import SamplingSection
from experiments.schema.sweep import Axis
from experiments.schema.traffic import TrafficSection
from workloads.errors import InputError, Place

if TYPE_CHECKING:
    from experiments.workload_file import Source


def model_source(name: str, folder: Path) -> str:
    """A model's name, or its path where there is a folder or config.json of that name beside the workload file."""
    try:
        path = folder / Path(name).expanduser()
        return str(path) if path.is_dir() or (path.suffix == ".json" and path.is_file()) else name
    except (OSError, ValueError, RuntimeError):
        return name


def _model(name: str, info: ValidationInfo) -> str:
    from sim.models import load_model

    source = model_source(name, (info.context or {}).get("folder", Path()))
    backend = info.data.get("backend")
    path = registries.is_hub_id(source) or source.startswith((".", "/", "~"))
    if backend is not None and backend.name in registries.WALL and path:
        return name  # a folder that is yet to be made, or a repository of the hub: looked for when it is needed
    try:
        load_model(source)
    except InputError as error:
        raise wrong_from(error, "") from None
    return name


def gpu_source(name: str, folder: Path) -> str:
    """A GPU's name, or the path of a description, from the workload file's folder."""
    return str(folder / Path(name).expanduser()) if name.endswith(".toml") else name


def _gpu(name: str, info: ValidationInfo) -> str:
    try:
        registries.check("gpu", gpu_source(name, (info.context or {}).get("folder", Path())))
    except InputError as error:
        raise wrong_from(error, "") from None
    return name


def _url(address: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or any(each.isspace() for each in address):
        raise Wrong(f"expected an address of a server, got {address!r}", "such as http://localhost:8000")
    return address


HTTP_KEYS = (
    "base_url", "api_key_env", "headers", "verify_tls", "model", "endpoint", "prompts", "fresh_prompts", "extra_body",
    "chunk_usage", "timeout", "warmup", "max_duration",
)  # fmt: skip
"""Keys of `backend` that only `http` reads."""
REAL_KEYS = ("load", "dtype", "device")
"""Keys of `backend` that only a real model here reads."""


class BackendSection(Section):
    """`backend`: who runs the steps.

    Attributes:
        name: `sim` (virtual time), `torch` or `triton` (a real model, here), `http` (somebody's server).
        gpu: `sim` only: a name from `bench list gpus`, or a file that describes a device (`bench profile` writes one).
        link: `sim` only: what joins the GPUs of a node, if not what the table says (`bench list links`).
        network: `sim` only: what joins nodes, an adapter for each GPU; InfiniBand NDR if nothing is said.
        gpus_per_node: `sim` only: how many GPUs `link` joins.
        load: real models: `auto` reads the checkpoint, `dummy` makes weights up, so that none is needed.
        dtype: real models: of weights, activations and KV; `auto` is the checkpoint's own.
        device: real models: `cpu` or `cuda`; `auto` is a GPU where there is one.
        base_url: `http`: where the server is, such as `http://localhost:8000`.
        api_key_env: `http`: the environment variable that holds the key.
        headers: `http`: more of them, name and value.
        verify_tls: `http`: whether the server's certificate must be good; true unless said otherwise.
        model: `http`: what the server calls its model; unset = it is asked.
        endpoint: `http`: `completions` or `chat`; `auto` is chat where the traffic has messages.
        prompts: `http`: what made-up prompts are: `text`, of words that the server counts as a token each, or `ids`.
        fresh_prompts: `http`: made-up words are others in every run, so that a server's prefix cache does not have them from
            the run before; true unless said otherwise.
        extra_body: `http`: fields for every request.
        chunk_usage: `http`: have the server count in every chunk, for those that put several tokens into one.
        timeout: `http`: a request that takes longer has failed; 10 min unless said otherwise.
        warmup: `http`: requests sent before the run, which are not counted.
        max_duration: `http`: nothing more is sent after that; what is in flight is waited for.
    """

    name: Annotated[str, registered("backend")] = "sim"
    gpu: Annotated[str, AfterValidator(_gpu)] | None = None
    link: Text | None = None
    network: Text | None = None
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] | None = None
    load: Literal["auto", "dummy"] | None = None
    dtype: Literal["auto", "bf16", "fp16", "fp32"] | None = None
    device: Literal["auto", "cpu", "cuda"] | None = None
    base_url: Annotated[str, AfterValidator(_url)] | None = None
    api_key_env: Text | None = None
    headers: dict[str, str] | None = None
    verify_tls: bool | None = None
    model: Text | None = None
    endpoint: Literal["auto", "completions", "chat"] | None = None
    prompts: Literal["text", "ids"] | None = None
    fresh_prompts: bool | None = None
    extra_body: dict[str, Any] | None = None
    chunk_usage: bool | None = None
    timeout: Annotated[Seconds, Field(gt=0)] | None = None
    warmup: Annotated[int, Field(ge=0)] | None = None
    max_duration: Annotated[Seconds, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> BackendSection:
        if self.name == "sim" and self.gpu is None:
            raise Wrong("the simulator needs a GPU", "such as {name: sim, gpu: h100-sxm}; see `bench list gpus`")
        if self.name == registries.REMOTE and self.base_url is None:
            raise Wrong("where is the server?", "such as {name: http, base_url: http://localhost:8000}")
        if self.prompts == "ids" and self.endpoint == "chat":
            raise Wrong("chat takes messages, no token ids", "write endpoint: completions, or prompts: text", "prompts")
        return self


class LoadSection(Section):
    """`load`: how requests are sent.

    Attributes:
        mode: `open`: at their arrival times, whatever the server does; `closed`: as many in flight as `concurrency`,
            times ignored; `offline`: all at once and straight to the engine, as a script has it that calls the engine without a
            server (vLLM's `LLM.generate`, `vllm bench throughput`, `trtllm-bench`): times ignored, no front end.
        concurrency: closed only: requests in flight.
        max_concurrency: open only: the most in flight; who is due then is sent when one before it is over.
    """

    mode: Literal["open", "closed", "offline"] = "open"
    concurrency: Annotated[int, Field(ge=1)] | None = None
    max_concurrency: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> LoadSection:
        if self.mode == "closed" and self.concurrency is None:
            raise Wrong("a closed loop needs a concurrency", "such as {mode: closed, concurrency: 64}")
        if self.mode == "open" and self.concurrency is not None:
            raise Wrong(
                "concurrency belongs to a closed loop",
                "set load.mode to closed, or write max_concurrency: arrivals as they come, but no more than that in flight",
                "concurrency",
            )
        if self.mode == "closed" and self.max_concurrency is not None:
            raise Wrong("a closed loop has as many in flight as concurrency says", "remove it", "max_concurrency")
        if self.mode == "offline" and (self.concurrency or self.max_concurrency) is not None:
            key = "concurrency" if self.concurrency is not None else "max_concurrency"
            hint = "remove it; how many run at once is engine.scheduler.max_num_seqs"
            raise Wrong("an offline run sends everything at once", hint, key)
        return self


class SLOSection(Section):
    """`slo`: what a good request is; a request meets the SLO when it meets every limit given."""

    ttft_ms: Annotated[Milliseconds, Field(gt=0)] | None = None
    tpot_ms: Annotated[Milliseconds, Field(gt=0)] | None = None
    e2e_ms: Annotated[Milliseconds, Field(gt=0)] | None = None


class Workload(Section):
    """A workload file that holds together. Made by `experiments.workload_file.load_workload`.

    With a `sweep`, the swept keys hold their first value; `experiments.sweep` makes the points.
    """

    name: Text
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    backend: BackendSection
    model: Annotated[Text, AfterValidator(_model)]
    engine: EngineSection = EngineSection()
    cluster: ClusterSection = ClusterSection()
    cost: CostSection = CostSection()
    traffic: TrafficSection
    sampling: SamplingSection = SamplingSection()
    load: LoadSection = LoadSection()
    slo: SLOSection = SLOSection()
    sweep: dict[str, Axis] = Field(default_factory=dict)

    _source: Source | None = PrivateAttr(default=None)

    @property
    def source(self) -> Source:
        """The text this came from, with the overrides on it."""
        if self._source is None:
            raise RuntimeError("this workload was not loaded from text")
        return self._source

    @property
    def folder(self) -> Path:
        """The folder that relative paths in the file start from."""
        return self.source.folder if self._source else Path.cwd()

    @property
    def model_source(self) -> str:
        """What `sim.models.load_model` should be given: a name, or a path that starts from the file's folder."""
        return model_source(self.model, self.folder)

    def place(self, key: str) -> Place:
        """Where a dotted key was written (or its nearest written section), for errors found later."""
        if self._source is None:
            return Place(key=key)
        return self._source.place(key)

    def error(self, key: str, message: str, hint: str | None = None) -> InputError:
        """An `InputError` at a key of this file."""
        return InputError(message, place=self.place(key), hint=hint)

    def plain(self) -> dict[str, Any]:
        """What the user set, as nested plain values; a sweep's axes are expanded."""
        values = super().plain()
        return {**values, "sweep": {key: list(axis) for key, axis in self.sweep.items()}} if self.sweep else values
