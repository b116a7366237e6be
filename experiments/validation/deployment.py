"""What a measured row was served by: model, GPUs, layout, engine and precision, as the simulator takes them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from experiments.validation.apart import Side, is_apart, sides_of
from experiments.validation.drafts import assumed, speculates, states
from experiments.validation.load import Load
from experiments.validation.mapping import Mapped, map_row
from experiments.validation.names import find_gpu, find_model, version_of
from experiments.validation.table import Row
from sim.hardware import GPUSpec
from sim.models import ModelSpec
from sim.presets import find_preset
from workloads.errors import InputError

_NOTED_SETTINGS = (
    (r"max_num_seqs\s*=\s*(\d+)", "scheduler.max_num_seqs", int),
    (r"max_num_batched_tokens\s*=\s*(\d+)", "scheduler.max_num_batched_tokens", int),
    (r"chunked_prefill_size\s*=\s*(\d+)", "scheduler.max_num_batched_tokens", int),
    (r"max_batch_size\s*=\s*(\d+)", "scheduler.max_num_seqs", int),
    (r"(?:gpu_memory_utilization|mem_fraction_static)\s*=\s*(0\.\d+)", "kv.memory_utilization", float),
    (r"kv tokens\s*=\s*(\d+)", "kv.capacity_tokens", int),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """How GPUs share a model.

    Attributes:
        tensor, pipeline, expert, data: as in `engine.parallel`; `data` are the ranks of attention data parallelism.
        replicas: whole copies that share the load.
        guesses: sentences on what the row did not say.
    """

    tensor: int
    pipeline: int
    expert: int
    data: int
    replicas: int
    guesses: tuple[str, ...] = ()

    @property
    def share(self) -> int:
        """Schedulers that share the load: each simulated engine sees one part in so many."""
        return self.data * self.replicas

    @property
    def gpus(self) -> int:
        """All GPUs of the deployment."""
        return self.tensor * self.pipeline * self.data * self.replicas


@dataclass(slots=True)
class Deployment:
    """A deployment.

    Attributes:
        model, gpu: of our tables. layout: see `Layout`. mapped: what the rules of `mapping.toml` say.
        settings: dotted keys of `engine:` beside preset, parallel, quantization and KV dtype.
        notes: what was guessed, for the warnings of its cells.
        apart: prefill and decode engines, where they are apart and told; `layout` is then that of a decode engine.
    """

    model: ModelSpec
    model_name: str
    gpu: GPUSpec
    layout: Layout
    mapped: Mapped
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    apart: tuple[Side, Side] | None = None

    @property
    def gpus(self) -> int:
        """All GPUs that serve."""
        return sum(side.gpus for side in self.apart) if self.apart else self.layout.gpus


def deployment_of(row: Row) -> Deployment | None:
    """The deployment of a row; None where its model or GPU is not in our tables."""
    gpu, model = find_gpu(row.gpu), find_model(row.model)
    if gpu is None or model is None:
        return None
    mapped = map_row(row)
    settings = dict(mapped.settings)
    large = gpu.memory_bytes >= 70 * (1 << 30) and "a100" not in gpu.name
    settings |= mapped.by_memory[0 if large else 1]
    for pattern, key, kind in _NOTED_SETTINGS:
        if found := re.search(pattern, row.notes, re.IGNORECASE):
            settings[key] = kind(found.group(1))
    settings |= {key: value for key, value in row.extra.items() if not key.startswith(("traffic.", "load."))}
    apart = sides_of(row.notes) if is_apart(row.notes) else None
    if apart is None and speculates(row.notes, mapped.speculation) and not states(settings):
        settings |= assumed(model)
    if apart is not None:
        side = apart[1]
        layout = Layout(side.tensor, side.pipeline, side.expert, side.data, 1)
    else:
        layout = layout_of(row, model, gpu, mapped)
    return Deployment(model, row.model, gpu, layout, mapped, settings, list(layout.guesses), apart)


def layout_of(row: Row, model: ModelSpec, gpu: GPUSpec, mapped: Mapped) -> Layout:
    """The layout that the columns and the notes describe; what they leave open is filled and noted."""
    guesses: list[str] = []
    pipeline = row.pp or 1
    data = _noted(
        row.notes, r"dp_attention\s*=\s*(\d+)", r"attention data-parallel (\d+)", r"data_parallel\s*=\s*(\d+)"
    )
    data = max(data, 1)
    tensor = row.tp
    if data == 1 and model.experts and pipeline == 1 and _of_each_rank(row):
        tensor, data = 1, row.n_gpu
        guesses.append(f"the batch of a rank times {data} GPUs is the load: attention is taken as data-parallel")
    if not tensor and row.n_gpu and data == 1 and re.search(r"\bEP\s?\d+\b", row.notes):
        tensor, data = 1, row.n_gpu // pipeline
        guesses.append("only expert parallelism is stated; attention is taken as data-parallel")
    if not tensor:
        tensor, why = _guess_tensor(row, model, gpu, mapped, pipeline * data)
        if row.load_kind == "mlperf_offline" and mapped.family == "tensorrt-llm" and not row.pp and tensor > 1:
            # As in NVIDIA's settings for Llama-2-70B on H100 (mlcommons/inference_results_v5.0, closed/NVIDIA/configs).
            tensor, pipeline = 1, tensor
            why = f"parallelism is not stated; taken as {pipeline} pipeline stages, as NVIDIA's submissions have them"
        guesses.append(why)
    gpus = row.n_gpu or tensor * pipeline * data
    if squared := _squared(row.notes, tensor * data):
        tensor, data, gpus = (squared, 1, squared) if tensor > 1 else (1, squared, squared)
        guesses.append(f"tensor and expert degree {squared} are stated multiplied; taken as the same {squared} GPUs")
    replicas = max(gpus // (tensor * pipeline * data), 1)
    if replicas * tensor * pipeline * data != gpus:
        guesses.append(f"{gpus} GPUs do not divide into tensor {tensor} × pipeline {pipeline} × data {data}")
    if not model.experts:
        return Layout(tensor, pipeline, 1, 1, replicas * data, tuple(guesses))
    expert = _noted(row.notes, r"moe_ep\s*=\s*(\d+)", r"expert-parallel (\d+)", r"\bEP\s?(\d+)\b")
    if re.search(r"expert_parallel\s*=\s*true", row.notes, re.IGNORECASE):
        expert = tensor * data
    expert = _fitting_expert(model, max(expert, 1), tensor, data, guesses)
    return Layout(tensor, pipeline, expert, data, replicas, tuple(guesses))


def _of_each_rank(row: Row) -> bool:
    """Whether the batch that a row states is that of one GPU of several, by the load being so many times as much."""
    batch = _noted(row.notes, r"batch_size column\s*=\s*(\d+)")
    load = _noted(row.load, r"concurrency\s*=\s*(\d+)")
    return row.n_gpu > 1 and 0 < load == batch * row.n_gpu


def _squared(notes: str, ways: int) -> int:
    """The degree that a table multiplied with itself, or 0.

    InferenceX states tensor and expert degree of the same GPUs, one node of eight at most. A table made of its dumps
    multiplies the two: 8 and 8 become 64 GPUs with `moe_tp=8 moe_ep=8`.
    """
    parts = re.search(r"moe_tp\s*=\s*(\d+) moe_ep\s*=\s*(\d+).*inference(?:x|max)", notes, re.IGNORECASE)
    if not parts or parts.group(1) != parts.group(2):
        return 0
    degree = int(parts.group(1))
    return degree if degree > 1 and degree * degree == ways else 0


def _fitting_expert(model: ModelSpec, expert: int, tensor: int, data: int, guesses: list[str]) -> int:
    wanted = expert if data == 1 else max(expert, tensor * data)
    fitting = [
        e for e in range(1, tensor * data + 1)
        if model.experts % e == 0 and (e % tensor == 0 or tensor % e == 0) and e <= wanted
    ]  # fmt: skip
    if fitting[-1] != expert:
        guesses.append(f"experts over {expert} GPUs are simulated over {fitting[-1]}")
    return fitting[-1]


def _noted(notes: str, *patterns: str) -> int:
    for pattern in patterns:
        if found := re.search(pattern, notes, re.IGNORECASE):
            return int(found.group(1))
    return 0


def _guess_tensor(row: Row, model: ModelSpec, gpu: GPUSpec, mapped: Mapped, others: int) -> tuple[int, str]:
    """The smallest degree that holds the weights twice over: what is left over serves KV."""
    weights = model.weight_bytes(mapped.weights or "auto")
    most = max((row.n_gpu or 8) // others, 1)
    ways = next((t for t in (1, 2, 4, 8, 16) if 1.4 * weights / t < gpu.memory_bytes and model.heads % t == 0), most)
    ways = min(ways, most)
    return ways, f"tensor parallelism is not stated; taken as {ways}, the least that leaves room for KV"


def _dated(mapped: Mapped) -> str:
    """The preset, by the engine's version where the row states one that it holds for: older ones are told more widely."""
    numbers = version_of(mapped.version)
    name = f"{mapped.family}@{'.'.join(map(str, numbers))}" if numbers and len(numbers) > 1 else mapped.preset
    try:
        return name if find_preset(name)[0] == mapped.preset else mapped.preset
    except InputError:  # an engine of another name, or older than any preset
        return mapped.preset


def engine_section(deployment: Deployment, load: Load, longest: int) -> dict[str, Any]:
    """The `engine:` section of a workload.

    Args:
        longest: prompt plus answer of the longest request, tokens.
    """
    mapped, layout, model = deployment.mapped, deployment.layout, deployment.model
    section: dict[str, Any] = {"preset": _dated(mapped), "quantization": mapped.weights or "auto"}
    section["kv"] = {"dtype": mapped.kv or "auto"}
    degrees = {"tensor": layout.tensor, "pipeline": layout.pipeline, "expert": layout.expert, "data": layout.data}
    if deployment.apart is None:
        section["parallel"] = {key: degree for key, degree in degrees.items() if degree > 1}
    # Benchmarks are started with the context that they need, which is what the memory for KV is then sized by.
    # vLLM v0 sizes its prompt budget by it, and was started without.
    usual = 8192 if mapped.preset == "vllm-v0" else 2048
    section["max_model_len"] = max(longest + 64, min(usual, model.max_position))
    if model.learned_positions:
        section["max_model_len"] = min(section["max_model_len"], model.max_position)
    settings = dict(deployment.settings)
    if mapped.limits and deployment.apart is None:
        from experiments.validation.limits import LIMITS

        found = LIMITS[mapped.limits](
            model, deployment.gpu, tensor=layout.tensor, pipeline=layout.pipeline, data=layout.data,
            weights=mapped.weights, kv=mapped.kv, inputs=load.inputs.high, outputs=load.outputs.mean,
            number=load.number // layout.share,
        )  # fmt: skip
        settings = {f"scheduler.{key}": value for key, value in found.items()} | settings
    if load.kind == "static" and mapped.preset in ("static", "tensorrt-llm-static"):
        settings["scheduler.max_num_seqs"] = max(load.number // layout.share, 1)
    for key, value in settings.items():
        where, _, leaf = key.rpartition(".")
        (section.setdefault(where, {}) if where else section)[leaf] = value
    return section
