"""Which algorithm an engine sends a message by: limits on its size, by architecture and number of GPUs.

Engines choose by size. Where their source says how, that is taken; else the sizes between which kernel tables jump.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sim.hardware.gpu import GPUSpec
from sim.hardware.links import SWITCH

if TYPE_CHECKING:
    from sim.cost.constants import AllReduceConstants


class Limits(NamedTuple):
    """As in `AllReduceConstants`: when one shot ends (KiB; 0: where two shots are faster), when the library begins (MB), and
    whether a switch adds up two shots."""

    one_shot_kb: float
    ring_mb: float
    switch: float = 0.0


_EIGHT, _BELOW_EIGHT = 8.39, 8.38  # 8 MiB and less, and less than 8 MiB
_LIMITS: dict[tuple[str, str], dict[int, Limits]] = {
    # vLLM, custom_all_reduce.py: less than 8 MiB.
    ("vllm", "ampere"): {2: Limits(0, _BELOW_EIGHT), 4: Limits(0, _BELOW_EIGHT), 8: Limits(0, _BELOW_EIGHT)},
    # vLLM, all_reduce_utils.py: symmetric memory up to 64, 32 and 64 MiB, of more than two GPUs summed by the switch
    # (symm_mem.py); two GPUs send in one shot what is less than custom_all_reduce.py's 8 MiB.
    ("vllm", "hopper"): {2: Limits(8192, 67.2), 4: Limits(512, 33.6, 1), 8: Limits(256, 67.2, 1)},
    # The same files: one shot below 2 MiB for two GPUs, symmetric memory up to 8, 32 and 128 MiB.
    ("vllm", "blackwell"): {2: Limits(2048, _EIGHT), 4: Limits(512, 33.6, 1), 8: Limits(256, 134.3, 1)},
    # SGLang, custom_all_reduce.py: 8 MiB; on Hopper its tables go on to 16 MiB.
    ("sglang", "ampere"): {2: Limits(0, _EIGHT), 4: Limits(0, _EIGHT), 8: Limits(0, _EIGHT)},
    ("sglang", "hopper"): {2: Limits(0, 16.8), 4: Limits(0, 16.8), 8: Limits(0, 16.8)},
    ("sglang", "blackwell"): {2: Limits(0, 16.8), 4: Limits(0, 16.8), 8: Limits(0, 16.8)},
    # TensorRT-LLM: where its tables become NCCL's (1.0 on A100, 1.3 on H100).
    ("tensorrt-llm", "ampere"): {2: Limits(0, 1.5), 4: Limits(0, 1.5), 8: Limits(0, 0.75)},
    ("tensorrt-llm", "hopper"): {2: Limits(0, 16.0), 4: Limits(0, 1.5), 8: Limits(0, 0.75)},
    # customAllReduceUtils.h, its table for compute capability 10: less than 16 MB for two, 8 MB for more.
    ("tensorrt-llm", "blackwell"): {2: Limits(0, 16.0), 4: Limits(0, 8.0), 8: Limits(0, 8.0)},
}  # fmt: skip


OWN_TWO_SHOT = 0.7
"""Share of the link that kernels in two shots reach without a switch's multicast: SGLang's on H100, which are vLLM's
custom_all_reduce.cuh, reach 0.64 to 0.72."""


def limits(engine: str, gpu: GPUSpec, ways: int) -> Limits | None:
    """The limits for `ways` GPUs behind a switch; None where nothing is known."""
    if gpu.link != SWITCH:
        return None
    return _LIMITS.get((engine, gpu.arch), {}).get(ways)


def limited(section: AllReduceConstants, engine: str, gpu: GPUSpec, ways: int) -> AllReduceConstants:
    """Constants of `ways` GPUs of another architecture with the limits of this one.

    Symmetric memory needs a switch; without one vLLM has its own kernels below 8 MiB.
    """
    found = limits(engine, gpu, ways)
    if found is None and gpu.link != SWITCH and section.one_shot_kb:
        return replace(section, one_shot_kb=0.0, ring_mb=_BELOW_EIGHT, switch=0.0, two_shot=OWN_TWO_SHOT)
    if found is None or not section.ring_mb:
        return section
    return replace(section, **found._asdict())
