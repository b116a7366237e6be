"""How far a configuration is from what was measured, and so how uncertain its prices are.

Every operator class gets a relative standard deviation of the logarithm of its time: from the error of its constants on
timings held out of their fit, widened where they come from another architecture or stand in for another kind of kernel.
What is far outside is told in one sentence that names the nearest validated neighbour.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import hypot
from typing import TYPE_CHECKING, Any

from sim.cost.carried import TIMES_AS_LONG, carried
from sim.cost.constants import nearest_measured
from sim.hardware.gpu import GPUSpec, load_gpu
from sim.models.states import KINDS

if TYPE_CHECKING:
    from sim.config import EngineConfig
    from sim.cost.base import OperatorCost
    from sim.models.spec import ModelSpec
    from sim.quantization.weights import WeightMode

_TO_DEVIATION = 1.4826  # median of |x| to standard deviation, for a normal distribution
_UNKNOWN = 0.15  # median error where a section states none
_FAR = 0.2  # what another architecture adds: transfer of H100's constants to A100, B200 and L40S, medians of 10-30 %
_NEAR = 0.03  # another card of the same architecture: H100 to H200
_STAND_IN = 0.25
TABLE_ERROR = 0.04
FIXED = {"elementwise": 0.3, "link": 0.4, "host": 0.5, "recurrence": 0.35, "indexer": 0.5}
"""Deviations of what has no timings of its own: estimates."""
THROUGH_HOST = 1.0
"""Of collectives without a scale-up link: constants measured over NVLink, while data may go through host memory."""
ACROSS_NODES = 0.7
"""Of collectives over several nodes: adapters by data sheet; between the A100 nodes that were timed, 1 MiB takes three times what
its bytes do."""
LONGEST_CONTEXT = 131_072
WIDEST_HEAD = 128

_CLASSES = {
    "experts": "experts", "all_reduce": "all_reduce", "all_reduce_wait": "all_reduce", "attention_decode": "attention_decode",
    "attention_prefill": "attention_prefill", "host": "host", "kernel_launch": "host", "lm_head": "linear",
    "router": "linear", "kv_swap": "link", "all_to_all": "link", "pipeline_send": "link", "logits_gather": "link",
    "dispatch": "link", "combine": "link", "exchange_wait": "link", "recurrence": "recurrence", "indexer": "indexer",
}  # fmt: skip


def class_of(operator: str) -> str:
    """The class of an operator of `CostModel.explain`, by its name."""
    name = operator.removesuffix("_windowed").removesuffix("_sparse").removeprefix("draft_")
    if name in _CLASSES:
        return _CLASSES[name]
    return "linear" if name.endswith("_proj") else "elementwise"


def deviation(constants: Any, gpu: GPUSpec) -> float:
    """Standard deviation of the log of a time priced with these constants on this device."""
    spread = _TO_DEVIATION * (constants.error or _UNKNOWN)
    if found := re.search(r"taken from \S+ on (\S+) for ", constants.source):
        spread = hypot(spread, _NEAR if load_gpu(found.group(1)).arch == gpu.arch else _FAR)
    if "taken over for" in constants.source:
        spread = hypot(spread, _STAND_IN)
    if TIMES_AS_LONG in constants.source and (found := carried(gpu)) and found.slow:
        spread = hypot(spread, found.slow.unsure)
    return spread


def calibrated(constants: Any) -> bool:
    """Whether linear layers and attention were refitted to timings of the GPU at hand (`bench calibrate`)."""
    sections = (constants.gemm, constants.decode, constants.prefill)
    return all(any(kind.source.startswith("calibrated on") for kind in section.values()) for section in sections)


def step_deviation(costs: Sequence[OperatorCost], deviations: Mapping[str, float]) -> float:
    """Relative deviation of a whole step: one error a class, classes independent of each other."""
    total = sum(cost.seconds for cost in costs)
    if total <= 0:
        return 0.0
    shares: dict[str, float] = {}
    for cost in costs:
        kind = class_of(cost.name)
        shares[kind] = shares.get(kind, 0.0) + cost.seconds / total
    return sum((share * deviations.get(kind, _UNKNOWN)) ** 2 for kind, share in shares.items()) ** 0.5


def outside(model: ModelSpec, gpu: GPUSpec, config: EngineConfig, mode: WeightMode, measured: bool) -> list[str]:
    """What of a configuration was not validated, each with its nearest neighbour that was.

    Args:
        mode: the weight mode as the device runs it. measured: a table or constants of the user's own price kernels.
    """
    found = []
    near = load_gpu(nearest_measured(gpu))
    if near.arch != gpu.arch and not measured:
        found.append(f"kernels of {gpu.name} (priced like {near.name}'s by data sheet; expect 10-30 % an operator)")
    if not mode.plain and (mode.weight_only or mode.compute in ("int8", "fp4")):
        found.append(f"{mode.name} matrix products (priced like {'16-bit' if mode.weight_only else 'FP8'} ones)")
    widest = max(model.head_dim, model.full.head_dim if model.full else 0)
    if model.mla is None and widest > WIDEST_HEAD:
        found.append(f"heads {widest} wide (measured: 64 and {WIDEST_HEAD})")
    if model.state is not None:
        found.append(f"recurrent layers ({KINDS[model.state.kind]}: by a few published timings, or its algorithm)")
    if model.indexer is not None:
        found.append(
            "sparse attention (its indexer by the structure of the algorithm, its kernels as those of latent attention)"
        )
    parallel = config.parallel
    if parallel.tensor > 1 and gpu.through_host(parallel.tensor):
        found.append("all-reduce over PCIe (measured: NVLink; host memory in between makes it several times slower)")
    if parallel.pipeline > 1:
        found.append("pipeline stages (measured: tensor parallelism alone)")
    if parallel.expert > max(parallel.tensor, 1):
        found.append("experts spread over replicas (measured: one rank's experts; links by data sheet)")
    if parallel.tensor > 8:
        found.append("more than 8 GPUs a group (measured: 2, 4, 8)")
    elif parallel.tensor > gpu.gpus_per_node:
        found.append("all-reduce between nodes (by data sheet, within a factor of two)")
    if config.max_model_len > LONGEST_CONTEXT:  # a model's own limit says little about the requests it gets
        found.append(f"contexts of {config.max_model_len:,} tokens (measured up to {LONGEST_CONTEXT:,})")
    return found


def sentence(found: Sequence[str]) -> tuple[str, ...]:
    """One note for the user, or none."""
    return (f"outside what was validated: {'; '.join(found)}",) if found else ()
