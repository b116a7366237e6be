"""The whole of `workload.yaml` as one frozen value."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo, model_validator

from experiments import registries
from experiments.schema.base import Milliseconds, Section, Text, Wrong, registered, wrong_from
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
    if backend is not None and backend.name in registries.REAL and path:
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


class BackendSection(Section):
    """`backend`: who runs the steps.

    Attributes:
        name: `sim` (virtual time), `torch` or `triton` (a real model, here).
        gpu: `sim` only: a name from `bench list gpus`, or a file that describes a device (`bench profile` writes one).
        link: `sim` only: what joins the GPUs of a node, if not what the table says (`bench list links`).
        network: `sim` only: what joins nodes, an adapter for each GPU; InfiniBand NDR if nothing is said.
        gpus_per_node: `sim` only: how many GPUs `link` joins.
        load: real models: `auto` reads the checkpoint, `dummy` makes weights up, so that none is needed.
        dtype: real models: of weights, activations and KV; `auto` is the checkpoint's own.
        device: real models: `cpu` or `cuda`; `auto` is a GPU where there is one.
    """

    name: Annotated[str, registered("backend")] = "sim"
    gpu: Annotated[str, AfterValidator(_gpu)] | None = None
    link: Text | None = None
    network: Text | None = None
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] | None = None
    load: Literal["auto", "dummy"] | None = None
    dtype: Literal["auto", "bf16", "fp16", "fp32"] | None = None
    device: Literal["auto", "cpu", "cuda"] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> BackendSection:
        if self.name == "sim" and self.gpu is None:
            raise Wrong("the simulator needs a GPU", "such as {name: sim, gpu: h100-sxm}; see `bench list gpus`")
        return self


class LoadSection(Section):
    """`load`: how requests are sent.

    Attributes:
        mode: `open`: at their arrival times, whatever the server does; `closed`: as many in flight as `concurrency`,
            times ignored.
        concurrency: closed only: requests in flight.
    """

    mode: Literal["open", "closed"] = "open"
    concurrency: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> LoadSection:
        if self.mode == "closed" and self.concurrency is None:
            raise Wrong("a closed loop needs a concurrency", "such as {mode: closed, concurrency: 64}")
        if self.mode == "open" and self.concurrency is not None:
            raise Wrong(
                "concurrency belongs to a closed loop",
                "set load.mode to closed, or remove it",
                "concurrency",
            )
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
