"""From what the user wrote to everything a run needs, with where each value came from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from experiments.conflicts import DEFAULT, DERIVED, PRESET, SECTIONS, USER, Draft, OwnAllocator, settle
from experiments.registries import REAL, REMOTE
from experiments.schema import Workload
from experiments.schema.workload import HTTP_KEYS, REAL_KEYS, gpu_source, model_source
from experiments.states import bound_by_states, settle_states, state_notices
from experiments.traffic import make_traffic
from sim.config import EngineConfig, KVConfig
from sim.hardware import GPUSpec, load_gpu
from sim.memory import MemoryBudget, memory_budget
from sim.models import UNKNOWN_FAMILY, ModelSpec, load_model
from sim.presets import Preset, find_preset, preset_config
from sim.versions import behind
from workloads.errors import InputError
from workloads.registry import plugins_from
from workloads.traffic import Traffic

if TYPE_CHECKING:
    from backends.torch.memory import Device
    from experiments.pools import Pools
    from experiments.real import Progress, RealBackend
    from experiments.remote import RemoteBackend
    from sim.cost.base import CostModel

_BY_GPU = ("scheduler.max_num_seqs", "scheduler.max_num_batched_tokens")  # engines that size them by the GPU
_PROBE_TOKENS = 1 << 16  # of an allocator that is made to see what it is like


@dataclass(slots=True)
class Resolved:
    """A workload, ready to run.

    Attributes:
        workload: what the user wrote.
        engine, model, gpu, budget, cost: what it means; on a real backend there is no GPU of the table and no cost, and of a
            remote server none of them is known.
        real: the model that runs here; None elsewhere.   remote: the server that is asked; None elsewhere.
        pools: engines for prompts and engines for answers, where they are apart; `engine`, `budget` and `cost` are then those of
            a decode engine. None elsewhere.
        config: nested dict of {"value", "source"} leaves, for people and for `run.json`: what has an effect.
        info: facts that metrics need; see `reports.run_data.RunData.info`.
        warnings: sentences for the user.
    """

    workload: Workload
    engine: EngineConfig | None
    model: ModelSpec | None
    gpu: GPUSpec | None
    budget: MemoryBudget | None
    cost: CostModel | None
    config: dict[str, Any]
    info: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    real: RealBackend | None = None
    remote: RemoteBackend | None = None
    pools: Pools | None = None
    _traffic: Traffic | None = None

    @property
    def traffic(self) -> Traffic:
        """The requests, made on first use."""
        if self._traffic is None:
            traffic = make_traffic(self.workload, self.budget.max_model_len)
            traffic.validate()
            self._traffic = traffic
        return self._traffic


def resolve(workload: Workload, progress: Progress | None = None) -> Resolved:
    """Work out everything a run needs. On a real backend that includes reading the model, on a remote one asking the server.

    Args:
        progress: told of the reading.

    Raises:
        InputError: at a key of the file: something does not fit together, or not into the GPU.
        TargetError: the server cannot be reached, or refuses requests.
    """
    from sim.cost import build_cost

    if workload.cluster.apart:
        from experiments.pools import resolve_pools

        return resolve_pools(workload)
    if workload.cluster.autoscale is not None and workload.backend.name != "sim":
        message = f"replicas come and go in simulation only, not on backend {workload.backend.name}"
        raise workload.error("cluster.autoscale", message, "--backend sim --gpu NAME, or remove it")
    if workload.backend.name == REMOTE:
        from experiments.remote import resolve_remote

        return resolve_remote(workload)
    if workload.backend.name in REAL:
        return _resolve_real(workload, progress)
    model = load_model(workload.model_source)
    gpu = _gpu(workload)
    engine, draft = resolve_engine(workload, model, gpu)
    _ranks(draft, model)
    engine = draft.config()
    try:
        budget = memory_budget(model, gpu, engine)
        engine = bound_by_states(draft, engine, budget)
        cost = build_cost(model, gpu, engine, **workload.cost.build_arguments(workload.folder))
    except InputError as error:
        raise _placed(workload, error) from None
    if workload.load.mode == "offline" and hasattr(cost, "front_end"):
        cost.front_end = cost.front_end.scaled(0.0)
    config = _config(workload, draft, budget)
    if engine.parallel.data > 1:
        from sim.cost.ranks import as_group

        engine, budget, cost = as_group(engine, budget, cost)
    warnings = [
        *draft.notices,
        *_unread(workload),
        *_one_replica(workload),
        *_one_node(workload, gpu, budget.gpus),
        *([model.notes] if model.notes.startswith(UNKNOWN_FAMILY) else ()),
        *getattr(cost, "notes", ()),
        *_oracles(engine),
        *_assumed(engine),
        *_windows(model, engine),
        *_shortened(model, engine, budget),
        *state_notices(model, engine, budget),
    ]
    return Resolved(
        workload, engine, model, gpu, budget, cost, config, _info(workload, engine, model, budget), warnings
    )


def _ranks(draft: Draft, model: ModelSpec) -> None:
    """Attention data parallelism: ranks that meet in the experts, which lie over all of them unless the user says otherwise."""
    ranks = draft["parallel.data"]
    if ranks == 1:
        return
    if not model.experts:
        draft.refuse(
            "parallel.data", f"{model.name} has no experts in which ranks would meet: they would be replicas",
            "write data: 1, and a share of the rate",
        )  # fmt: skip
    if draft["parallel.pipeline"] > 1:
        draft.refuse("parallel.data", "ranks of pipeline stages are not simulated", "write pipeline: 1, or data: 1")
    if not draft.user("parallel.expert"):
        draft.values["parallel.expert"], draft.sources["parallel.expert"] = ranks * draft["parallel.tensor"], DERIVED
    if draft["preset"].startswith(
        "sglang"
    ):  # both of its arguments are of all ranks (server_args.py, enable_dp_attention)
        for key in _BY_GPU:
            if not draft.user(key):
                draft.values[key], draft.sources[key] = max(draft[key] // ranks, 1), DERIVED
    draft.notices.append(
        f"{ranks} ranks of attention take their steps together; max_num_seqs, max_num_batched_tokens and capacity_tokens are "
        "of each"
    )


def _gpu(workload: Workload) -> GPUSpec:
    """The GPU, in the machines that the file describes."""
    said = workload.backend
    try:
        return load_gpu(gpu_source(said.gpu, workload.folder)).placed(
            said.link or "", said.network or "", said.gpus_per_node or 0
        )
    except InputError as error:
        key = f"backend.{error.place.key or 'gpu'}"
        raise workload.error(key, error.message, error.hint) from None


def _one_node(workload: Workload, gpu: GPUSpec, gpus: int) -> list[str]:
    """A network that nothing crosses: told, and no error, since another point of a sweep may cross it."""
    if workload.backend.network is None or gpus > gpu.gpus_per_node:
        return []
    share = "one GPU is" if gpus == 1 else f"{gpus} GPUs are"
    return [
        f"backend.network has no effect: {share} in one node of {gpu.gpus_per_node} (backend.gpus_per_node, engine.parallel)"
    ]


def _one_replica(workload: Workload) -> list[str]:
    """A router of one replica: told, and no error, since another point of a sweep may have more."""
    if workload.cluster.most > 1 or not workload.cluster.written() & {"router", "options"}:
        return []
    return ["cluster.router has no effect: there is one replica (cluster.replicas)"]


def _resolve_real(workload: Workload, progress: Progress | None) -> Resolved:
    """A workload on a model that really runs. What can be wrong is looked at before weights are read, as far as possible."""
    from experiments import real

    if workload.cluster.most > 1:
        message = (
            f"backend {workload.backend.name} runs one model, here; {workload.cluster.most} replicas are simulated only"
        )
        raise workload.error("cluster.replicas", message, "--backend sim --gpu NAME, or replicas: 1")
    prepared = real.prepare(workload)
    model = prepared.architecture.spec
    engine, draft = resolve_engine(workload, model, prepared.described)
    real.check_engine(draft, prepared)
    traffic = real.real_traffic(workload, prepared, engine)
    backend = real.load(workload, prepared, engine, traffic, progress)
    budget = real.budget_of(prepared, engine, backend.room, backend.model)
    config, info = _config(workload, draft, budget), _info(workload, engine, model, budget)
    info["gpu"] = prepared.described.name
    warnings = [*draft.notices, *prepared.notices, *_oracles(engine), *_windows(model, engine)]
    return Resolved(workload, engine, model, None, budget, None, config, info, warnings, real=backend, _traffic=traffic)


def _unread(workload: Workload) -> list[str]:
    """Settings of real models and servers, which the simulator does not read: the same file runs on all."""
    keys = (*REAL_KEYS, *HTTP_KEYS)
    written = [f"backend.{key}" for key in keys if getattr(workload.backend, key) is not None]
    written += ["sampling"] if workload.sampling.written() else []
    if not written:
        return []
    return [f"{' and '.join(written)} {'has' if len(written) == 1 else 'have'} no effect in simulation"]


def resolve_engine(workload: Workload, model: ModelSpec, gpu: GPUSpec | Device) -> tuple[EngineConfig, Draft]:
    """The engine that a workload asks for: what the user wrote, over the preset, made consistent."""
    section = workload.engine
    name = section.preset or "vllm"
    full, preset = find_preset(name)
    base = preset_config(
        name,
        device_memory=gpu.memory_bytes,
        is_a100="a100" in gpu.name,
        max_model_len=section.max_model_len or model.max_position,
    )
    draft = _draft(workload, base, preset)
    if not base.version:
        draft.idle["version"] = "it is the preset's"
    if "@" in name and full != name:
        wider = "; ranges are wider for what its kernels may have been" if behind(base)[0] else ""
        draft.notices.append(f"engine.preset {name} is simulated as {full} ({preset.summary}){wider}")
    draft.own_allocator = _own_allocator(workload, draft)
    settle_states(draft, model)
    settle(draft, preset)
    return draft.config(), draft


def _own_allocator(workload: Workload, draft: Draft) -> OwnAllocator | None:
    """What a KV allocator of the user's own is like, by making one; None for built-in ones."""
    from sim.build import make_allocator
    from sim.kv import ALLOCATORS

    name = draft["kv.allocator"]
    if name in ALLOCATORS:
        return None
    kv = KVConfig(allocator=name, block_size=draft["kv.block_size"], prefix_caching=draft["kv.prefix_caching"])
    try:
        with plugins_from(workload.folder):
            made = make_allocator(kv, _PROBE_TOKENS, _PROBE_TOKENS, None)
        return OwnAllocator(int(made.block_size), bool(made.shares))
    except (AttributeError, TypeError, ValueError) as error:
        message = f"{name} cannot be made for {_PROBE_TOKENS:,} tokens of KV: {type(error).__name__}: {error}"
        hint = "it needs attributes block_size and shares, and any capacity must do"
        raise workload.error("engine.kv.allocator", message, hint) from None


def _draft(workload: Workload, base: EngineConfig, preset: Preset) -> Draft:
    """The preset's values with the user's on top."""
    values, sources = {}, {}
    untouched = _flat(EngineConfig())
    for key, value in _flat(base).items():
        values[key] = value
        section, _, leaf = key.rpartition(".")
        stated = getattr(preset, section or "engine", {}) if section in ("", "scheduler", "kv") else {}
        if key == "preset" or (leaf in stated and value == stated[leaf]):
            sources[key] = PRESET
        elif leaf in stated:  # preset_config chose otherwise for this model or GPU
            sources[key] = DERIVED
        else:
            sources[key] = DERIVED if value != untouched[key] or key in _BY_GPU else DEFAULT
    written = workload.engine.written()
    for key in written - {"preset"}:
        value = workload.engine
        for part in key.split("."):
            value = getattr(value, part)
        values[key], sources[key] = value, USER
    if values["speculation.draft_model"]:
        values["speculation.draft_model"] = model_source(values["speculation.draft_model"], workload.folder)
    if "preset" in written:
        sources["preset"] = USER
    return Draft(values, sources, workload.error)


def _flat(config: EngineConfig) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for each in fields(config):
        value = getattr(config, each.name)
        if each.name in SECTIONS:
            flat |= {f"{each.name}.{leaf}": inner for leaf, inner in asdict(value).items()}
        else:
            flat[each.name] = value
    return flat


def _placed(workload: Workload, error: InputError) -> InputError:
    """An error of the lower floors, at the key of the file that it is about."""
    if error.place.file is not None:
        return error
    key = error.place.key or "engine"
    if key.split(".")[0] in ("kv", "scheduler", "parallel", "quantization", "speculation"):
        key = f"engine.{key}"
    return InputError(error.message, place=replace(workload.place(key), key=key), hint=error.hint)


def _windows(model: ModelSpec, engine: EngineConfig) -> list[str]:
    """What the KV pool takes sliding windows for."""
    from sim.memory import TYPICAL_TOKENS, window_rule

    if not model.window_layers:
        return []
    layers = f"{model.window_layers} of {model.layers} layers, which have a sliding window of {model.window:,} tokens"
    rule = window_rule(engine)
    if rule == "full":
        return [f"KV is kept for the whole context also in {layers}: this engine frees nothing behind a window"]
    if rule == "ratio":
        return []
    return [
        f"KV in {layers}, is sized for requests of {TYPICAL_TOKENS:,} tokens: longer ones hold less than is counted here, "
        "shorter ones more"
    ]


def _shortened(model: ModelSpec, engine: EngineConfig, budget: MemoryBudget) -> list[str]:
    """A KV pool that is smaller than the context, with an engine that starts all the same."""
    if budget.max_model_len >= (engine.max_model_len or model.max_position):
        return []
    return [
        f"the KV pool holds {budget.kv_tokens:,} tokens and the model's context is {model.max_position:,}: this engine starts "
        f"all the same and takes requests of up to {budget.max_model_len:,} tokens"
    ]


def _oracles(engine: EngineConfig) -> list[str]:
    """What only a simulator can do must be labelled."""
    labels = []
    if engine.scheduler.policy == "shortest-job":
        labels.append("policy shortest-job is an oracle: it knows the true length of every answer; no real engine can")
    if engine.kv.allocator == "contiguous" and engine.kv.slab == "exact":
        labels.append("slab exact is an oracle: it knows the true length of every answer; no real engine can")
    return labels


def _assumed(engine: EngineConfig) -> list[str]:
    """What no simulation can know must be said."""
    speculation = engine.speculation
    if not speculation.active:
        return []
    rates = ", ".join(f"{rate:.0%}" for rate in dict.fromkeys(speculation.rates))
    return [
        f"how many drafts hold is assumed, not predicted: {rates} of those before which all held (engine.speculation.acceptance)"
    ]


def _config(workload: Workload, draft: Draft, budget: MemoryBudget) -> dict[str, Any]:
    """The resolved configuration as nested {"value", "source"} leaves, without settings that do nothing in it."""
    plain = workload.plain()
    config: dict[str, Any] = {
        key: leaves_of(value) for key, value in plain.items() if key not in ("engine", "sweep", "name")
    }
    engine: dict[str, Any] = {}
    for key, value in draft.values.items():
        if key in draft.idle:
            continue
        section, _, leaf = key.rpartition(".")
        target = engine.setdefault(section, {}) if section else engine
        target[leaf] = {"value": value, "source": draft.sources[key]}
    for key, value in (("quantization", budget.weights), ("max_model_len", budget.max_model_len)):
        if engine[key]["source"] != USER:
            engine[key] = {"value": value, "source": DERIVED}
    if engine["kv"]["dtype"]["source"] != USER:
        engine["kv"]["dtype"] = {"value": budget.kv_dtype, "source": DERIVED}
    if not draft["kv.memory_utilization"] and "memory_utilization" in engine["kv"]:  # automatic
        engine["kv"]["memory_utilization"] = {"value": budget.utilization, "source": DERIVED}
    if not draft["kv.capacity_tokens"]:
        engine["kv"]["capacity_tokens"] = {"value": budget.kv_tokens, "source": DERIVED}
    config["engine"] = engine
    config.setdefault("seed", {"value": workload.seed, "source": DEFAULT})
    if workload.cluster.most > 1:
        config["cluster"].setdefault("router", {"value": workload.cluster.router_name, "source": DEFAULT})
    config.setdefault("load", {"mode": {"value": workload.load.mode, "source": DEFAULT}})
    if "max_tokens" not in config["traffic"]:
        config["traffic"]["max_tokens"] = {"value": workload.traffic.max_tokens, "source": DEFAULT}
    return config


def leaves_of(value: Any) -> Any:
    """Plain values as leaves that say the user wrote them."""
    if isinstance(value, dict):
        return {key: leaves_of(inner) for key, inner in value.items()}
    return {"value": value, "source": USER}


def _info(workload: Workload, engine: EngineConfig, model: ModelSpec, budget: MemoryBudget) -> dict[str, Any]:
    replicas = workload.cluster.most
    return {
        "name": workload.name,
        "seed": workload.seed,
        "backend": workload.backend.name,
        "model": model.name,
        "gpu": workload.backend.gpu,
        "load": workload.load.plain() or {"mode": "open"},
        "slo": workload.slo.plain(),
        "kv_pool_tokens": budget.kv_tokens * replicas,
        "kv_block_tokens": engine.kv.block_size,
        "kv_bytes_per_token": budget.bytes_per_token * budget.gpus // engine.parallel.data,
        "max_num_seqs": engine.scheduler.max_num_seqs * replicas,
        "gpus": budget.gpus * replicas,
        **({"replicas": replicas} if replicas > 1 else {}),
    }
