"""How kernels are launched, and for what device they are shaped.

Every host function of a kernel takes a `Launcher` and calls it. The ordinary one runs the kernel; the ahead-of-time compiler
passes one that notes what would have been run, so that what is compiled and checked there is what runs on a GPU, and no second
list of variants has to be kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from triton.runtime.jit import JITFunction


@dataclass(frozen=True, slots=True)
class Target:
    """What tile sizes depend on.

    Attributes:
        arch: `sm_80`, `sm_90`, `sm_100`, `gfx942`, …
        processors: streaming multiprocessors or compute units; rows of logits are split until there is work for all.
        interpreted: whether kernels run in Triton's interpreter, whose `tl.dot` needs bf16 widened.
    """

    arch: str = "sm_90"
    processors: int = 132
    interpreted: bool = False

    @property
    def compute(self) -> int:
        """Compute capability × 10 of NVIDIA's GPUs; 0: AMD's."""
        return int(self.arch.removeprefix("sm_")) if self.arch.startswith("sm_") else 0

    @property
    def e4m3(self) -> bool:
        """Whether the compiler knows fp8 e4m3 there: not before compute capability 8.9, whatever the kernel does with it."""
        return self.compute == 0 or self.compute >= 89


def find_target(device: torch.device, interpreted: bool) -> Target:
    """The target that a device is. In the interpreter, where there is none, tiles are those of sm_90."""
    if interpreted or device.type != "cuda":
        return Target(processors=2, interpreted=interpreted)
    found = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return Target(found.gcnArchName.split(":")[0], found.multi_processor_count)
    return Target(f"sm_{found.major}{found.minor}", found.multi_processor_count)


class Launcher:
    """Runs kernels on the device of their arguments."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def __call__(
        self, kernel: Any, grid: tuple[int, ...], args: tuple, constants: Mapping[str, Any], *, warps: int = 4, stages: int = 2
    ) -> None:  # fmt: skip
        """Launch `kernel` over `grid` with `args`, then its compile-time `constants`; nothing where the grid is empty."""
        if 0 in grid:
            return
        if args[0].is_cuda and args[0].device.index != torch.cuda.current_device():
            with torch.cuda.device(args[0].device):
                kernel[grid](*args, **constants, num_warps=warps, num_stages=stages)
        else:
            kernel[grid](*args, **constants, num_warps=warps, num_stages=stages)


def is_interpreted(kernel: Any) -> bool:
    """Whether Triton was imported with its interpreter on: it decides when a kernel is defined, not when it is called."""
    return not isinstance(kernel, JITFunction)


def scale_strides(scales: tuple[torch.Tensor, torch.Tensor] | None) -> tuple[int, int]:
    """Strides of pages and slots of the scales [pages, page size, KV heads] of int8 keys and values, which have the same."""
    if scales is None:
        return 0, 0
    keys, values = scales
    assert keys.stride() == values.stride() and keys.stride(2) == 1, (
        "scales of keys and values lie alike, heads together"
    )
    return keys.stride()[:2]


def rows_last(x: torch.Tensor) -> torch.Tensor:
    """`x` itself if its last axis is contiguous, which is all that kernels ask for, else a copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
