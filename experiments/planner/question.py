"""What a plan is asked: model, traffic, SLO, and what may be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.planner.demand import Demand, Wanted, demand_of
from experiments.planner.prices import Price, parse_prices, prices_for
from experiments.planner.slo import EXAMPLE, Limit, limits_of, parse_slo
from experiments.schema import Workload
from experiments.schema.workload import BackendSection
from experiments.workload_file import Override, Source, build_workload, load_workload, parse_override
from sim.hardware import GPUSpec, list_gpus, load_gpu
from sim.models import ModelSpec, load_model
from workloads.errors import InputError, Place, unknown_name

DEFAULT_GPUS = ("l40s", "a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm")
"""Where nobody says: kinds that the cost model was fitted to, and one of the same architecture."""
MAX_GPUS = 16
ENGINES = ("vllm", "sglang", "tensorrt-llm")
WORDS = (".yaml", ".yml")
MACHINE = ("link", "network", "gpus_per_node")
"""What a workload says of the machines, whatever GPUs are in them."""
MOST_GPUS = 4096
MOST_RATE = 1e6  # requests a second: no trace comes near


@dataclass(frozen=True, slots=True)
class Question:
    """A plan's question, checked.

    Attributes:
        workload: model, traffic and what the user fixed of the engine and of the machines; its GPU is a stand-in.
        model: its shape.   limits: the SLO.   gpus: kinds that may be used.   prices: of those, as far as they are known.
        max_gpus: at most so many in all.   presets: engines to look at.
        quantizations, kv_dtypes: names of modes, or `auto`, which looks at what suits.
        rate: requests a second that the traffic is scaled to; None leaves it.
        requests: simulated of a replica while searching; more where many are in flight.
        notes: sentences for the user.
    """

    workload: Workload
    model: ModelSpec
    limits: tuple[Limit, ...]
    gpus: tuple[GPUSpec, ...]
    prices: dict[str, Price]
    max_gpus: int
    presets: tuple[str, ...]
    quantizations: tuple[str, ...]
    kv_dtypes: tuple[str, ...]
    rate: float | None
    requests: int
    notes: tuple[str, ...]

    @property
    def context(self) -> int:
        """Longest request that the model takes, or that the user allows."""
        return min(self.workload.engine.max_model_len or self.model.max_position, self.model.max_position)

    def demand(self) -> Demand:
        """The traffic, read once a process."""
        return demand_of(
            Wanted(
                f"{self.workload.source.file}\n{self.workload.plain()}", self.context, self.rate, self.max_gpus,
                2 * self.requests, self.workload,
            )
        )  # fmt: skip


def ask(
    model: str,
    traffic: str,
    *,
    slo: str | None = None,
    gpus: Sequence[str] = (),
    max_gpus: int = MAX_GPUS,
    prices: Sequence[str] = (),
    presets: Sequence[str] = (),
    quantizations: Sequence[str] = (),
    kv_dtypes: Sequence[str] = (),
    rate: float | None = None,
    settings: Sequence[str] = (),
    seed: int | None = None,
    requests: int = 1000,
) -> Question:
    """Check and complete a question.

    Args:
        model: a name, folder or config.json.   traffic: a workload file, or a trace.
        settings: `key=value` texts over the workload, as `--set` has them.

    Raises:
        InputError: anything that is wrong, with its place.
    """
    spec = _at("MODEL", load_model, model)
    cards = _gpus(gpus)
    known, notes = prices_for(cards, parse_prices(prices))
    if not 1 <= max_gpus <= MOST_GPUS:
        raise InputError(f"expected 1 to {MOST_GPUS} GPUs, got {max_gpus}", place=Place(key="--max-gpus"))
    if rate is not None and not 0 < rate <= MOST_RATE:
        raise InputError(
            f"expected requests a second above 0 and at most {MOST_RATE:,.0f}, got {rate:g}", place=Place(key="--rate")
        )
    workload = _workload(model, traffic, cards[0], settings, seed)
    cards = tuple(_in_machines(card, workload) for card in cards)
    if said := [f"{key} {value}" for key in MACHINE if (value := getattr(workload.backend, key)) is not None]:
        notes.append(f"machines as the workload has them: {', '.join(said)}")
    limits = parse_slo(slo) if slo is not None else limits_of(workload.slo.plain())
    if not limits:
        raise InputError("the workload has no slo, and none is given", place=Place(key="--slo"), hint=EXAMPLE)
    if slo is None:
        notes.append("the workload's own slo is held at the 95th percentile; --slo says otherwise")
    return Question(
        workload, spec, limits, cards, known, max_gpus, _names(presets, ENGINES, "engine", "--engine") or ("vllm",),
        _modes(quantizations, "--quantization"), _modes(kv_dtypes, "--kv-dtype"), rate, requests, tuple(notes),
    )  # fmt: skip


def _workload(model: str, traffic: str, gpu: GPUSpec, settings: Sequence[str], seed: int | None) -> Workload:
    place = Place(file="--traffic")
    path = Path(model).expanduser()
    local = str(path.resolve()) if path.exists() else model
    fixed = [
        Override(("model",), local, Place(file="MODEL")),
        *(Override(("backend", key), None, place) for key in BackendSection.model_fields if key not in MACHINE),
        Override(("backend", "name"), "sim", place),
        Override(("backend", "gpu"), gpu.name, Place(file="--gpus")),
        Override(("sweep",), None, place),
    ]
    given = [parse_override(text) for text in settings]
    fixed += given
    if seed is not None:
        fixed.append(Override(("seed",), seed, Place(file="--seed")))
    for override in given:
        if override.path[0] == "backend" and not (len(override.path) == 2 and override.path[1] in MACHINE):
            hint = f"of the backend only {', '.join(MACHINE)} may be set; --gpus names the GPUs"
            raise InputError("a plan chooses backend itself", place=override.place, hint=hint)
        if override.path == ("engine", "preset"):
            raise InputError(
                "a plan chooses engine.preset itself", place=override.place, hint="--engine names the engines"
            )
        if override.path[0] in ("model", "sweep"):
            raise InputError(f"a plan chooses {override.path[0]} itself", place=override.place)
    if Path(traffic).suffix.lower() in WORDS:
        workload = load_workload(traffic, fixed)
        if workload.cluster.apart:
            message = "a plan looks for engines that compute prompts and answers; these apart are for `bench run` and its sweeps"
            raise workload.error("cluster.prefill", message, "add --set cluster=null")
        return workload
    return build_workload(Source(_for_trace(traffic), "--traffic", tuple(fixed)))


def _in_machines(card: GPUSpec, workload: Workload) -> GPUSpec:
    """A GPU in the machines that the workload describes."""
    said = workload.backend
    try:
        return card.placed(said.link or "", said.network or "", said.gpus_per_node or 0)
    except InputError as error:
        raise workload.error(f"backend.{error.place.key or 'gpu'}", error.message, error.hint) from None


def _for_trace(traffic: str) -> str:
    """A workload file around a trace."""
    import json

    from experiments.trace_path import find_trace

    if not traffic.strip():
        raise InputError("expected a workload file or a trace, got nothing", place=Place(key="--traffic"))
    try:
        path = find_trace(traffic, Path())
    except InputError as error:
        raise error.at(Place(key="--traffic")) from None
    section = {"trace": {"path": str(path.resolve())}}
    return json.dumps({"name": path.name, "model": "x", "backend": {}, "traffic": section})


def _gpus(names: Sequence[str]) -> tuple[GPUSpec, ...]:
    asked = _split(names) or list(DEFAULT_GPUS)
    if asked == ["all"]:
        return tuple(list_gpus())
    found: dict[str, GPUSpec] = {}
    for name in asked:
        card = _at("--gpus", load_gpu, name)
        found[card.name] = card
    return tuple(found.values())


def _at(key: str, load: Any, name: str) -> Any:
    try:
        return load(name)
    except InputError as error:
        raise error.at(Place(key=key)) from None


def _names(asked: Sequence[str], known: Sequence[str], kind: str, key: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(_split(asked)))
    for name in names:
        if name not in known:
            raise unknown_name(kind, name[:60], known, place=Place(key=key))
    return names


def _modes(asked: Sequence[str], key: str) -> tuple[str, ...]:
    """Names of modes as the registry has them; `auto` stands for itself, `none` for what the model ships in."""
    from sim.quantization import load_kv_mode, load_weight_mode

    load = load_weight_mode if key == "--quantization" else load_kv_mode
    names = [name if name in ("auto", "none") else _at(key, load, name).name for name in _split(asked)]
    if "auto" in names and len(names) > 1:
        raise InputError("auto chooses by itself", place=Place(key=key), hint="give auto alone, or a list without it")
    return tuple(dict.fromkeys(names)) or ("auto",)


def _split(texts: Sequence[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]
