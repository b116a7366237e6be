"""A plan's candidate as something to be started, and what to know before it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.registries import is_hub_id
from experiments.resolve import Resolved
from sim.models import hub_id
from sim.quantization import load_weight_mode
from workloads.errors import Place

if TYPE_CHECKING:
    from experiments.planner.plan import Plan
    from experiments.planner.search import Found

PLACE = Place(key="--emit")
SOMEBODY = "YOUR-ORG"
"""Stands for the organisation in ids that only the user knows."""
TITLES = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM"}
ONLINE = {"fp8": "fp8", "fp8-dynamic": "fp8"}
"""Modes into which vLLM and SGLang turn a 16-bit checkpoint by themselves, by the name of their flag."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is to be started.

    Attributes:
        model: as the engine is to load it.   resolved: the candidate, with everything it means.   replicas: how many.
        native: the mode that the checkpoint ships in; "" = 16 bit.
    """

    model: str
    resolved: Resolved
    replicas: int
    native: str = ""

    @property
    def served(self) -> str:
        """What the engine is to load: a name to be replaced where only a checkpoint in another format will do."""
        if not self.needs_checkpoint:
            return self.model
        return f"{SOMEBODY}/{self.model.rstrip('/').rpartition('/')[2]}-{self.weights}"

    @property
    def online(self) -> bool:
        """Whether the engine makes these weights itself, from a 16-bit checkpoint that it has the memory to load."""
        return self._could_be_online and self._loads_in_16_bit

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the weights must be quantized beforehand."""
        return not load_weight_mode(self.weights).plain and self.weights != self.native and not self.online

    @property
    def downloads(self) -> bool:
        """Whether the model is fetched by its name from the Hugging Face hub."""
        return is_hub_id(self.served)

    @property
    def preset(self) -> str:
        """The engine and what it is a variant of: `vllm`, `sglang`, `sglang-mixed`, `tensorrt-llm`."""
        return self.resolved.engine.preset.partition("@")[0]

    @property
    def engine(self) -> str:
        """`vllm`, `sglang` or `tensorrt-llm`."""
        return self.preset.removesuffix("-mixed")

    @property
    def gpus(self) -> int:
        """Of a replica."""
        return self.resolved.budget.gpus

    @property
    def nodes(self) -> int:
        """Of a replica."""
        return -(-self.gpus // self.resolved.gpu.gpus_per_node)

    @property
    def weights(self) -> str:
        """Name of the mode that weights are in."""
        return self.resolved.budget.weights

    @property
    def checkpoint_bytes(self) -> int:
        """Size of the checkpoint that is loaded."""
        return self.resolved.model.weight_bytes("bf16" if self.online else self.weights)

    @property
    def _could_be_online(self) -> bool:
        return self.weights in ONLINE and self.weights != self.native and self.engine != "tensorrt-llm"

    @property
    def _loads_in_16_bit(self) -> bool:
        parallel, gpu = self.resolved.engine.parallel, self.resolved.gpu
        whole = self.resolved.model.weight_bytes("bf16", parallel.tensor, parallel.pipeline, parallel.expert)
        return whole <= self.resolved.budget.utilization * gpu.memory_bytes

    def about_weights(self) -> str:
        """Where weights in a mode that the model does not ship in come from; "" where it ships in it."""
        title = TITLES[self.engine]
        if self.online:
            return (
                f"weights: {title} makes {self.weights} of the 16-bit checkpoint while it loads (--quantization "
                f"{ONLINE[self.weights]}); one that is {self.weights} already loads faster"
            )
        if not self.needs_checkpoint:
            return ""
        why = ""
        if self._could_be_online:
            why = f" ({title} could make it while loading, but a GPU does not hold its share of the 16-bit weights)"
        return f"weights: a checkpoint in {self.weights} has to be found or made beforehand{why}"


def deployment_of(plan: Plan, found: Found) -> Deployment:
    """What starts a candidate of a plan."""
    from experiments.planner.search import resolved

    question = plan.question
    source = question.workload.model
    model = source if Path(source).exists() else hub_id(source) or f"{SOMEBODY}/{source}"
    engine = resolved(question, found.candidate, plan.longest)
    return Deployment(model, engine, found.replicas, question.model.native_quantization)


def notes(deployment: Deployment) -> list[str]:
    """What to know before it is started."""
    d = deployment
    told = [f"{d.replicas} replica{'s' * (d.replicas > 1)} of {d.gpus} x {d.resolved.gpu.name}"]
    if d.replicas > 1:
        told.append(
            "in front of them a router that hands out sessions in turn and keeps each on its replica, where its prefix is cached"
        )
    if weights := d.about_weights():
        told.append(weights)
    if d.needs_checkpoint:
        told.append(f"put the name of that checkpoint in place of {d.served}")
    elif d.model.startswith(f"{SOMEBODY}/"):
        told.append(f"put the model's id on the Hugging Face hub in place of {d.served} (or give it as MODEL)")
    if d.nodes > 1:
        told.append(f"one replica spans {d.nodes} nodes of {d.resolved.gpu.gpus_per_node} GPUs")
    return told
