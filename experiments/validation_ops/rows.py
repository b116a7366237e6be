"""Measured kernel times from files and folders: which rows count, in which groups, and how they are halved."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sim.cost.forms import kind_of, supports
from sim.cost.plausible import impossible
from sim.cost.timings import Timing, read_timings
from sim.hardware.gpu import GPUSpec, load_gpu
from workloads.errors import InputError, Place

SUFFIXES = (".csv", ".csv.gz", ".parquet")
SMALLEST_MATRIX = 512
SHORTEST_PROMPT = 16


class Group(NamedTuple):
    """Rows that one set of constants describes, from one source."""

    op: str
    engine: str
    gpu: str
    kind: str
    source: str


@dataclass
class Rows:
    """What was read.

    Attributes:
        groups: rows that count. skipped: reason → rows that do not; decided from shapes and labels alone.
        impossible: rows faster than the device allows, as sentences.
    """

    groups: dict[Group, list[Timing]] = field(default_factory=dict)
    skipped: Counter = field(default_factory=Counter)
    impossible: list[str] = field(default_factory=list)


def load(paths: Iterable[str | Path]) -> Rows:
    """All timings of the files and folders that describe one kernel each and say which GPU they were taken on.

    Raises:
        InputError: a path that is not there, no file with timings, or a file with a wrong value.
    """
    rows, groups = Rows(), defaultdict(list)
    for path in _files(paths):
        try:
            timings = read_timings(path)
        except InputError as error:
            if "cannot tell which operator" in error.message or "has no" in error.message:
                rows.skipped[f"{path.name}: not a table of kernel times"] += 1
                continue
            raise
        for timing in timings:
            reason = _leave_out(timing)
            if not reason and (why := impossible(timing, load_gpu(timing.gpu))):
                rows.impossible.append(f"{timing.place}: {why}")
                reason = "faster than the device allows"
            if reason:
                rows.skipped[reason] += 1
                continue
            _, kind = kind_of(timing)
            engine = timing.engine or "vllm"
            groups[Group(timing.op, engine, timing.gpu, kind, path.parent.name)].append(timing)
    if not groups:
        raise InputError("no kernel times in these files", hint="CSV or Parquet with shapes and microseconds a row")
    rows.groups = dict(sorted(groups.items()))
    return rows


def _files(paths: Iterable[str | Path]) -> list[Path]:
    found: list[Path] = []
    for each in map(Path, paths):
        if each.is_dir():
            found += sorted(p for p in each.rglob("*") if p.name.endswith(SUFFIXES))
        elif each.is_file():
            found.append(each)
        else:
            raise InputError("is not there", place=Place(file=str(each)))
    return found


def _leave_out(timing: Timing) -> str:
    """Why a row does not count, from its labels and shape; "" where it does."""
    if not timing.gpu:
        return "no GPU named"
    gpu: GPUSpec = load_gpu(timing.gpu)
    if timing.op == "all_reduce":
        if timing.launch == "eager":
            return "all-reduce launched eagerly (time of the launch, not of the kernel)"
        if timing.launch == "across nodes":
            return "all-reduce across nodes"
        if not timing.engine:
            return "all-reduce of no engine (NCCL alone)"
        if timing.shape["ways"] not in (2, 4, 8):
            return "all-reduce of other than 2, 4 or 8 GPUs"
    if timing.op == "gemm" and min(timing.shape["n"], timing.shape["k"]) < SMALLEST_MATRIX:
        return f"matrix narrower than {SMALLEST_MATRIX}"
    if timing.op == "attn_prefill" and timing.shape["seq"] < SHORTEST_PROMPT:
        return f"prompt shorter than {SHORTEST_PROMPT} tokens"
    if timing.op != "all_reduce" and not supports(timing, gpu):
        return f"no {timing.dtype} tensor cores on {gpu.name}"
    return ""


def second_half(timing: Timing, seed: int = 0) -> bool:
    """Whether a row is in the half that nothing is fitted to. By content, so that it never depends on order or file."""
    parts = (timing.op, timing.engine, timing.gpu, timing.dtype, timing.kv_dtype, timing.launch, timing.distribution)
    text = "|".join((str(seed), *parts, *(f"{value:g}" for value in timing.size)))
    # A checksum would not do: CRCs are linear, so that whole columns of a grid fall into the same half.
    return bool(hashlib.sha256(text.encode()).digest()[0] & 1)


def halves(timings: Sequence[Timing], seed: int = 0) -> tuple[list[Timing], list[Timing]]:
    """(to fit to, held out)."""
    first = [t for t in timings if not second_half(t, seed)]
    return first, [t for t in timings if second_half(t, seed)]
