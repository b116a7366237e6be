"""What could serve the traffic: kinds of GPU × degrees of parallelism × weights × KV × engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from experiments.planner.question import MACHINE, Question
from experiments.resolve import Resolved, resolve
from experiments.schema import Workload
from experiments.schema.engine import EngineSection
from experiments.schema.workload import BackendSection
from sim.hardware import GPUSpec, load_gpu
from sim.models import ModelSpec
from workloads.errors import InputError

DEGREES = (1, 2, 4, 8, 16)
ROUND = 1024
"""The longest request that an engine is set up for is a multiple of so many tokens."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of running a replica.

    Attributes:
        gpu, tensor, pipeline: kind and degrees.   preset: the engine.
        quantization, kv_dtype: names of modes; `auto` is what the model ships in, and 16 bit.
        knobs: further settings of the engine (dotted key, value), over the preset's.
        ranks: of attention data parallelism, as the workload sets them.
    """

    gpu: str
    tensor: int
    pipeline: int
    preset: str
    quantization: str
    kv_dtype: str
    knobs: tuple[tuple[str, Any], ...] = ()
    ranks: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.tensor * self.pipeline * self.ranks

    @property
    def plain(self) -> bool:
        """Neither weights nor KV are quantized further than the model ships."""
        return self.quantization == "auto" and self.kv_dtype == "auto"

    def describe(self, weights: str = "") -> str:
        """`h100-sxm TP2, fp8 weights, fp8-e4m3 KV, vllm`."""
        split = "".join(f" {name}{n}" for name, n in (("TP", self.tensor), ("PP", self.pipeline), ("DP", self.ranks)) if n > 1)
        parts = [f"{self.gpu}{split}", f"{weights or self.quantization} weights"]
        if self.kv_dtype != "auto":
            parts.append(f"{self.kv_dtype} KV")
        parts.append(self.preset)
        return ", ".join([*parts, *(f"{key.rpartition('.')[2]} {value}" for key, value in self.knobs)])

    def workload(self, base: Workload, max_model_len: int) -> Workload:
        """The workload of the question on this candidate; what the user set of the engine stays."""
        engine = base.engine.plain()
        settings: list[tuple[str, Any]] = [
            ("preset", self.preset), ("quantization", self.quantization), ("kv.dtype", self.kv_dtype),
            ("parallel.tensor", self.tensor), ("parallel.pipeline", self.pipeline), *self.knobs,
        ]  # fmt: skip
        if not engine.get("max_model_len"):
            settings.append(("max_model_len", max_model_len))
        for key, value in settings:
            node = engine
            *sections, last = key.split(".")
            for section in sections:
                node = node.setdefault(section, {})
            node[last] = value
        return base.model_copy(
            update={
                "engine": EngineSection.model_validate(engine),
                "backend": self._backend(base.backend),
            }
        )

    def _backend(self, said: BackendSection) -> BackendSection:
        """Its GPUs in the machines that the workload describes; the network where a replica crosses it."""
        keys = [key for key in MACHINE if getattr(said, key) is not None]
        if self.gpus <= (said.gpus_per_node or load_gpu(self.gpu).gpus_per_node):
            keys = [key for key in keys if key != "network"]
        machine = {key: getattr(said, key) for key in keys}
        return BackendSection.model_validate({"name": "sim", "gpu": self.gpu, **machine})

    def resolve(self, base: Workload, max_model_len: int) -> Resolved:
        """Ready to run.

        Raises:
            InputError: it does not fit into the GPU, or does not divide.
        """
        return resolve(self.workload(base, max_model_len))


def candidates(question: Question) -> list[Candidate]:
    """All of them, in an order that does not change."""
    fixed = question.workload.engine.parallel
    ranks = fixed.data or 1
    found: dict[str, Candidate] = {}
    for preset in question.presets:
        for gpu in question.gpus:
            for tensor, pipeline in _splits(question.model, gpu, question.max_gpus // ranks):
                if fixed.tensor not in (None, tensor) or fixed.pipeline not in (None, pipeline):
                    continue
                for quantization, kv in _modes(question, gpu):
                    each = Candidate(gpu.name, tensor, pipeline, preset, quantization, kv, ranks=ranks)
                    found.setdefault(json.dumps([*each.describe().split(", "), gpu.name]), each)
    if not found:
        raise InputError("nothing to choose from: the parallel degrees that are set divide neither model nor GPUs")
    return list(found.values())


def longest_request(question: Question) -> int:
    """What engines are set up for: the longest request of the traffic, rounded up, at most the model's own limit."""
    longest = question.demand().longest
    return min(-(-longest // ROUND) * ROUND, question.context)


def _splits(model: ModelSpec, gpu: GPUSpec, most: int) -> Iterator[tuple[int, int]]:
    """(tensor, pipeline): tensor within a node; stages across nodes, or where there is no fast link between GPUs."""
    for tensor in DEGREES:
        if tensor > min(gpu.gpus_per_node, most) or model.heads % tensor:
            continue
        yield tensor, 1
        for pipeline in (2, 4):
            slow = not gpu.has_fast_link and tensor * pipeline <= gpu.gpus_per_node
            across = tensor == gpu.gpus_per_node
            if (slow or across) and tensor * pipeline <= most and pipeline <= model.layers:
                yield tensor, pipeline


def _modes(question: Question, gpu: GPUSpec) -> Iterator[tuple[str, str]]:
    """(weights, KV) to look at on a kind of GPU.

    `auto` takes what the model ships in; FP8 weights with 16-bit and with FP8 KV where the GPU multiplies FP8, INT8 where it
    does not; and 4-bit weights, for small batches and tight memory.
    """
    fixed = question.workload.engine
    weights = [name.replace("none", "auto") for name in question.quantizations]
    if fixed.quantization is not None:
        weights = [fixed.quantization]
    elif question.quantizations == ("auto",):
        native = question.model.native_quantization
        weights = ["auto"] if native else ["auto", "fp8" if gpu.fp8 > 0 else "int8-w8a8", "awq-int4"]
    kinds = [name.replace("none", "auto") for name in question.kv_dtypes]
    if fixed.kv.dtype is not None:
        kinds = [fixed.kv.dtype]
    for name in weights:
        chosen = kinds
        if question.kv_dtypes == ("auto",) and fixed.kv.dtype is None and name.startswith("fp8") and gpu.fp8 > 0:
            chosen = ["auto", "fp8-e4m3"]
        for kv in chosen:
            yield name, kv


def with_knobs(candidate: Candidate, **knobs: Any) -> Candidate:
    """The candidate with other settings of its scheduler (`max_num_seqs`, `max_num_batched_tokens`)."""
    return replace(candidate, knobs=tuple((f"scheduler.{key}", value) for key, value in knobs.items()))
