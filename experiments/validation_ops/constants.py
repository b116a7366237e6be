"""Fits the constants that are bundled with Twinserve, and writes their files.

    python -m experiments.validation_ops.constants FOLDER... --out sim/data/cost

Every section is fitted to the half of its rows that `rows.second_half` does not hold out, and carries its error on the
half that it does. Two versions of an engine are pooled, the newer with three times the weight. What cannot be fitted here (host
times, front ends, element-wise kernels) is kept as the file has it.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.validation_ops.collectives import crosswise, fit_all_reduces, fit_library, library_timings, ring_of
from experiments.validation_ops.rows import Group, halves, load
from sim.cost.constants import Constants, load_constants, own_sections
from sim.cost.fit import Errors, constants_names, fit_section, log_errors
from sim.cost.forms import kind_of, section_of
from sim.cost.timings import Timing
from sim.cost.write import write_constants
from sim.hardware.gpu import GPUSpec, load_gpu

MOST_ROWS = 300
NEWER = 3.0  # weight of the newer of two versions of an engine
START = {
    "gemm": {"wave": 0.3, "edge": 10.0, "unit": 0.05},
    "decode": {
        "unit": 0.01, "splits": 32.0, "query_us": 0.1, "row_us": 1.0, "extra_bytes": 10.0, "wide_us": 1.0, "head_dim_us": 0.7,
        "narrow_us": 1.0,
    },
    "prefill": {"path": 0.8, "extra_dim": 20.0, "packed": 0.5, "cache_ns": 0.5, "cache_most_ns": 4.0},
    "moe": {"pad": 16.0, "passing": 0.3}, "mla": {},
}  # fmt: skip
BY_WIDTH = ("extra_dim", "extra_bytes", "wide_us", "narrow_us", "head_dim_us")
"""What only heads of several widths can tell; A100's tables have heads of 128 alone."""
VERSIONS = {
    ("op-latency", "h100-sxm"): {"vllm": "0.24.0", "sglang": "0.5.14", "tensorrt-llm": "1.3.0rc20"},
    ("op-latency", "a100-sxm"): {"vllm": "0.14.0", "sglang": "0.5.10", "tensorrt-llm": "1.0.0"},
}
LARGE_ROWS = {("vllm", "fp8"): 128.0, ("sglang", "fp8"): 128.0}
"""Products of CUTLASS, by engine and kind: above 128 rows in pairs of tiles of 128 (a cluster of 2 x 1), as both engines'
dispatch by shape has it; rows of the tables jump there."""
EIGHT_BIT = {("tensorrt-llm", "prefill", "bf16-kv8")}
"""Attention of 16-bit queries that is multiplied in 8 bit, since the cache is: it reaches 0.8 of the 16-bit peak with heads of
128 where 16-bit caches reach 0.6, as fast as with 8-bit queries."""
LEFT = {
    ("a100-sxm", "tensorrt-llm", "decode"): ("bf16", "mha"),
    ("h100-sxm", "tensorrt-llm", "decode"): ("mha", "mha-fp8"),
    ("h100-sxm", "sglang", "decode"): ("mha", "mha-fp8"),
    ("h100-sxm", "vllm", "decode"): ("mha", "mha-fp8"),
    ("l40s", "sglang", "moe"): ("bf16",),
    ("a100-sxm", "vllm", "moe"): ("bf16",),
    ("b200-sxm", "tensorrt-llm", "moe"): ("fp8-block",),
    ("b200-sxm", "sglang", "moe"): ("fp8-block",),
}
"""Kinds that are left as they are: rows held out are predicted no better by a new fit, or served runs worse (experts of vLLM on
A100 at few tokens, gpustack's), or served runs had others of an engine's kernels than the tables (FP8 in blocks on B200)."""
UNPACK_NS = {"a100-sxm": 14.0, "h100-sxm": 11.0}
UNPACKING = {
    "a100-sxm": "14 ns for a thousand weights on a multiprocessor, one figure for INT4 and INT8 from their single streams "
    "(gpt-fast on A100, nine rows, 70B and smaller)",
    "h100-sxm": "an estimate, 11 ns for a thousand weights on a multiprocessor: A100's 14 ns (single streams of gpt-fast) by the "
    "clock, since both have 64 integer lanes a multiprocessor",
}
TABLES = "NVIDIA aiconfigurator-core 0.12.0 kernel tables"


KEPT = {
    ("h100-sxm", "vllm", "decode"): ("narrow_us",),
    ("h100-sxm", "sglang", "decode"): ("narrow_us",),
    ("h100-sxm", "tensorrt-llm", "decode"): ("row_us", "extra_bytes", "wide_us"),
}
"""Constants that a fit leaves as they are: rows held out are predicted no better with them."""


def start_of(section: str, constants: Constants, kind: tuple[str, str]) -> Any:
    """Where a fit starts: the constants in force, with the newer terms switched on."""
    found = section_of(constants, *kind)
    kept = kept_of(section, constants)
    extra = {n: value for n, value in START[section].items() if n not in kept and not getattr(found, n)}
    if section == "gemm":
        extra["large_rows"] = LARGE_ROWS.get((constants.engine, kind[1]), 0.0)
        if not extra["large_rows"] and not found.split_us:  # cuBLAS's, which cut the inner dimension; CUTLASS's do not
            extra["split_us"] = 1.5
    if (constants.engine, *kind) in EIGHT_BIT and found.compute <= 1.02:
        extra["compute"] = 1.6
    return replace(found, **extra)


def kept_of(section: str, constants: Constants) -> tuple[str, ...]:
    """Constants of a section that a fit for this GPU and engine leaves as they are."""
    kept = KEPT.get((constants.gpu, constants.engine, section), ())
    return kept + BY_WIDTH if constants.gpu == "a100-sxm" else kept


def fit_group(
    sources: Sequence[Sequence[Timing]],
    gpu: GPUSpec,
    constants: Constants,
    *,
    starts: int = 5,
    shares: Sequence[float] = (),
    beside: Sequence[Timing] = (),
) -> tuple[Any, list[Errors]]:
    """A section fitted to the first halves of several sources, and its errors on each second half.

    Args:
        starts: starting points that are tried. shares: weight of each source; equal by default.
        beside: of all-reduces, timings of other numbers of GPUs.
    """
    section, kind = kind_of(sources[0][0])
    train, weights, held = [], [], []
    for share, timings in zip(shares or [1.0] * len(sources), sources, strict=True):
        first, second = halves(timings)
        random.Random(0).shuffle(first)
        first = first[:MOST_ROWS]
        train += first
        weights += [share / len(first)] * len(first)
        held.append(second)
    if section == "all_reduce":
        return _fit_few([t for timings in sources for t in timings], beside, gpu, constants, int(kind))
    scale = len(train) / sum(weights)
    begin = start_of(section, constants, (section, kind))
    kept = kept_of(section, constants)
    names = [name for name in constants_names(begin) if name not in kept]
    fitted = fit_section(
        train, begin, gpu, names=names, quantize=constants.quantize, weights=[w * scale for w in weights], starts=starts
    )
    return fitted, [Errors.of(log_errors(second, fitted, gpu, constants.quantize)) for second in held]


def _fit_few(
    timings: Sequence[Timing], beside: Sequence[Timing], gpu: GPUSpec, constants: Constants, ways: int
) -> tuple[Any, list[Errors]]:
    """A few dozen rows are all used; the error is that of either half, predicted by a fit to the other.

    Args:
        beside: of other numbers of GPUs, which share most of the constants.
    """
    library = section_of(constants, "all_reduce", str(ways))
    every = [*timings, *beside]
    halved = {n: halves([t for t in every if t.shape["ways"] == n]) for n in {int(t.shape["ways"]) for t in every}}
    logs = crosswise(halved, gpu, constants.engine, library)[ways]
    return fit_all_reduces(every, gpu, constants.engine, library)[ways], [Errors.of(logs)]


def _describe(groups: list[Group], errors: list[Errors], rows: int) -> str:
    where = []
    for group, error in zip(groups, errors * len(groups) if len(errors) < len(groups) else errors, strict=False):
        version = VERSIONS.get((group.source, "a100-sxm" if group.gpu == "a100-sxm" else "h100-sxm"), {}).get(
            group.engine
        )
        version = "0.14.0" if group.source == "aiconfigurator-kernels" else version
        what = "InferSim kernel tables" if group.source == "infersim-kernels" else TABLES
        label = f"{what}, {group.engine} {version}" if "Infer" not in what else what
        where.append(f"{label} on {group.gpu}: held-out {error.median:.1%} median, {error.p95:.0%} 95th percentile")
    how = f"fit on half of {rows} rows"
    if group.op == "all_reduce":
        how = f"fit on {rows} rows and those of other numbers of GPUs, the library's to timings of NCCL alone; errors crosswise"
    return f"{how} ({group.op}); " + "; ".join(where).replace("%", " %")


def _with_library(constants: Constants, paths: Sequence[str], gpu: GPUSpec) -> Constants:
    """With the library's all-reduce fitted to timings of NCCL alone."""
    timings = library_timings(paths, gpu.name)
    if not timings:
        return constants
    ring = ring_of(fit_library(timings, gpu, switch=gpu.arch not in ("volta", "turing", "ampere")))
    return replace(constants, all_reduce={n: replace(each, **ring) for n, each in constants.all_reduce.items()})


def main(arguments: list[str]) -> None:
    """Fit and write; prints a line for every section."""
    out = Path(arguments[arguments.index("--out") + 1]) if "--out" in arguments else None
    paths = [
        a
        for i, a in enumerate(arguments)
        if not a.startswith("--") and arguments[i - 1] not in ("--out", "--op", "--engine")
    ]
    rows = load(paths)
    wanted = arguments[arguments.index("--op") + 1] if "--op" in arguments else ""
    engine_wanted = arguments[arguments.index("--engine") + 1] if "--engine" in arguments else ""
    together: dict[tuple[str, str, str, str], list[Group]] = defaultdict(list)
    for group, timings in rows.groups.items():
        if (wanted and group.op != wanted) or (engine_wanted and group.engine != engine_wanted):
            continue
        if group.engine in ("vllm", "sglang", "tensorrt-llm") and group.source in (
            "op-latency",
            "aiconfigurator-kernels",
        ):
            # FP8 linear layers of vLLM 0.14 quantised far slower than those of 0.24; only the newer describe it now.
            if (group.source, group.op, group.kind) == ("aiconfigurator-kernels", "gemm", "fp8"):
                continue
            together[(group.gpu, group.engine, kind_of(timings[0])[0], group.kind)].append(group)
    files: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for (gpu_name, engine, section, kind), groups in together.items():
        if kind in LEFT.get((gpu_name, engine, section), ()):
            continue
        gpu = load_gpu(gpu_name)
        constants = load_constants(gpu, engine)
        sources = [rows.groups[g] for g in groups]
        shares = [NEWER if group.source == "op-latency" else 1.0 for group in groups]
        beside: list[Timing] = []
        if section == "all_reduce":
            constants = _with_library(constants, paths, gpu)
            others = [
                g
                for key, gs in together.items()
                if key[:3] == (gpu_name, engine, section)
                for g in gs
                if g not in groups
            ]
            beside = [t for g in others for t in rows.groups[g]]
        fitted, errors = fit_group(sources, gpu, constants, shares=shares, beside=beside)
        worst = max(e.median for e in errors)
        fitted = replace(fitted, source=_describe(groups, errors, sum(map(len, sources))), error=round(worst, 4))
        files[(gpu_name, engine)].setdefault(section, {})[kind] = fitted
        print(
            gpu_name,
            engine,
            section,
            kind,
            " ".join(f"{e.median:.1%}/{e.mean:.1%}/{e.p95:.0%}" for e in errors),
            flush=True,
        )
    if out is None:
        return
    for (gpu_name, engine), sections in files.items():
        kept = own_sections(gpu_name, engine)
        merged = {n: {**kept.get(n, {}), **v} if isinstance(v, dict) else v for n, v in {**kept, **sections}.items()}
        _weight_only(merged, gpu_name)
        write_constants(out / f"{gpu_name}.{engine}.toml", gpu_name, engine, merged)


def _weight_only(sections: dict[str, Any], gpu: str) -> None:
    """INT4 and INT8 weights unpacked to 16 bit have no rows: the bf16 kernels' figures, and the time of unpacking."""
    if "bf16" in sections.get("gemm", {}):
        base = sections["gemm"]["bf16"]
        sections["gemm"]["weight-only"] = replace(
            base, unpack_ns=UNPACK_NS[gpu], error=0.15,
            source=f"the bf16 fit, and unpacking: {UNPACKING[gpu]}",
        )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
