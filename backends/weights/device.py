"""Devices that models can be run on: which there are, and how much memory they have."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

import torch

from workloads.errors import InputError, Place

GIB = 1 << 30


class Memory(NamedTuple):
    """Bytes of a device: in all, and free now."""

    total: int
    free: int


def pick_device(name: str = "auto") -> torch.device:
    """`cpu`, `cuda`, or `auto`: a GPU where torch sees one.

    Raises:
        InputError: a GPU is wanted and there is none.
    """
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise InputError(
            "torch sees no GPU here", place=Place(key="backend.device"), hint="device: cpu, or `bench doctor` for more"
        )
    return torch.device("cuda" if there and name != "cpu" else "cpu")


def device_name(device: torch.device) -> str:
    """The processor's name, as its maker calls it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def memory(device: torch.device) -> Memory:
    """Total and free memory; on the CPU what the kernel says is available, within the limit of a container."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return Memory(total, free)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _available(total)
    limit, used = (_number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    if limit is not None:
        total, free = min(total, limit), min(free, max(limit - (used or 0), 0))
    return Memory(total, free)


def _available(total: int) -> int:
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return total // 2


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text("ascii"))
    except (OSError, ValueError):  # no such file, or `max`
        return None
