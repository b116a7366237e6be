"""Fitting all-reduces: one set of constants for all numbers of GPUs, from which each moves only as far as its rows say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from sim.cost.collectives import limited
from sim.cost.constants import AllReduceConstants
from sim.cost.fit import LIBRARY, fit_section, log_errors, loss_of
from sim.cost.timings import Timing, read_timings
from sim.hardware.gpu import GPUSpec

BEGIN = AllReduceConstants(
    4.0, 0.65, 8.0, 0.65, "", ring_mb=8.0, ring_us=10.0, ring=0.8, rank_us=0.2, ring_rank_us=1.0, ring_chunk_us=5.0,
)  # fmt: skip
KERNELS = ("one_shot_us", "rank_us", "one_shot", "two_shot_us", "two_shot")
OF_DEGREE = ("one_shot_us", "one_shot", "two_shot_us", "two_shot")
DRAWN = {"one_shot_us": 0.15, "one_shot": 0.4, "two_shot_us": 0.15, "two_shot": 0.4}
"""How far constants of one number of GPUs may be expected to lie from those of all (spread of the log, or of the logit)."""
UNUSED = {"two_shot_us": 0.5, "two_shot": 0.5}
"""How far two shots may lie from where the fit begins: some engines' tables never send so, and others that borrow them do."""
STEEP = {"one_shot": 0.05, "two_shot": 0.3}
"""A second starting point of each number of GPUs: kernels that take the longer, the fuller a packet of a few KB (TensorRT-LLM's
TensorRT-LLM 1.0 on A100), as if they sent over a slow link at first."""
SMALLEST = 700_000  # bytes of a message that an engine leaves to the library


def fit_library(timings: Iterable[Timing], gpu: GPUSpec, switch: bool) -> AllReduceConstants:
    """The library's constants (`ring…`) from timings of NCCL alone.

    Args:
        switch: whether the switch can add up.
    """
    own = replace(BEGIN, ring_mb=0.1)
    if switch:
        own = replace(own, ring_switch=0.65, ring_switch_us=30.0, ring_switch_rank_us=8.0)
    names = ["ring_us", "ring", *(n for n in LIBRARY if switch or "switch" not in n)]
    return fit_section(
        [t for t in timings if t.shape["bytes"] >= SMALLEST], own, gpu, names=names, starts=5, rounds=200
    )


def library_timings(paths: Iterable[str | Path], gpu: str) -> list[Timing]:
    """All-reduces of NCCL alone, in 16 bit, among files and folders of kernel times."""
    files = [f for p in map(Path, paths) for f in (sorted(p.rglob("*nccl*.csv")) if p.is_dir() else [p])]
    return [
        t for f in files if "nccl" in f.name for t in read_timings(f)
        if t.op == "all_reduce" and t.dtype == "bf16" and t.gpu == gpu and t.shape["ways"] in (2, 4, 8)
    ]  # fmt: skip


def fit_all_reduces(
    timings: Sequence[Timing], gpu: GPUSpec, engine: str, library: AllReduceConstants, starts: int = 2
) -> dict[int, AllReduceConstants]:
    """Constants for every number of GPUs among the timings.

    Args:
        library: whose `ring…` are taken.
    """
    begin = replace(BEGIN, **ring_of(library))
    together = fit_section(
        timings, begin, gpu, names=KERNELS, starts=starts, prior=UNUSED,
        told=lambda timing, section: limited(section, engine, gpu, int(timing.shape["ways"])),
    )  # fmt: skip
    found = {}
    for ways in sorted({int(t.shape["ways"]) for t in timings}):
        own = [t for t in timings if t.shape["ways"] == ways]
        found[ways] = _of_degree(own, limited(together, engine, gpu, ways), gpu)
    return found


def ring_of(section: AllReduceConstants) -> dict[str, float]:
    """The constants that describe the library."""
    return {f.name: getattr(section, f.name) for f in fields(section) if f.name.startswith("ring")}


def _of_degree(timings: Sequence[Timing], together: AllReduceConstants, gpu: GPUSpec) -> AllReduceConstants:
    """The constants of all numbers of GPUs moved towards the timings of one, or steep ones if those are worth it."""
    drawn = fit_section(timings, together, gpu, names=OF_DEGREE, prior=DRAWN)
    free = fit_section(timings, replace(together, **STEEP), gpu, names=OF_DEGREE, starts=2)

    def loss(section: AllReduceConstants) -> float:
        return loss_of(log_errors(timings, section, gpu))

    return free if loss(free) + 2 * len(OF_DEGREE) < loss(drawn) else drawn


def crosswise(
    halved: Mapping[int, tuple[list[Timing], list[Timing]]], gpu: GPUSpec, engine: str, library: AllReduceConstants
) -> dict[int, list[float]]:
    """Log errors by number of GPUs on either half of the rows, of a fit to the other half of all."""
    logs: dict[int, list[float]] = {ways: [] for ways in halved}
    for a in (0, 1):
        fitted = fit_all_reduces([t for halves in halved.values() for t in halves[a]], gpu, engine, library)
        for ways, halves in halved.items():
            logs[ways] += log_errors(halves[1 - a], fitted[ways], gpu) if ways in fitted else []
    return logs
