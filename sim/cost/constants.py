"""Constants of the operator forms: measured efficiencies, one small TOML file per (GPU, engine) in `sim/data/cost`.

Shares (`compute`, `bandwidth`, …) are of the data-sheet peak; times are in the unit of their name. Every section says
where it is from, and that sentence travels with every price made from it; `error` is the median of
|log(predicted / measured)| on timings that were held out of its fit (0: not known).

A GPU without a file of its own uses the shares and times of the nearest architecture with its own data-sheet peaks, scaled
by what is known of it (`sim.cost.carried`). Across generations expect 10-30 % per operator.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from sim.cost.carried import in_time, reached, scaled, slowed
from sim.cost.collectives import limited
from sim.hardware.gpu import GPUSpec, load_gpu
from workloads.errors import InputError, Place, unknown_name

ENGINES = ("vllm", "sglang", "tensorrt-llm")


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """Dense linear layers. `norm` joins compute and memory time; `extra_k` lengthens the inner dimension (prologue);
    `wave` is the share of the arithmetic that is done in whole waves of tiles, each of which costs as much as one that is
    `edge` rows and columns larger. Of more than `large_rows` tokens (0: never) all tiles are of the largest size, and filled up.
    `unit`: share of the bandwidth that one column of tiles reaches (0: no limit). `split_us`: of adding up pieces of the inner
    dimension that are computed apart (0: none are). `unpack_ns`: nanoseconds in which a multiprocessor turns a thousand narrow
    weights into 16-bit ones, whatever their width; 0 where nothing is unpacked. `faster`: times what a multiprocessor does of
    full tiles in a second, by the one it was fitted on: what `edge` adds to a tile is no arithmetic, so that it takes as long on
    both."""

    compute: float
    bandwidth: float
    launch_us: float
    memory_us: float
    norm: float
    extra_k: float
    source: str
    wave: float = 0.0
    edge: float = 0.0
    large_rows: float = 0.0
    unit: float = 0.0
    split_us: float = 0.0
    unpack_ns: float = 0.0
    faster: float = 1.0
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class DecodeConstants:
    """Decode attention: `extra_us`, `knee_us` shape the ramp of short reads; `head_us`, `query_us` are per sequence and KV or
    query head, `row_us` per sequence; `head_dim_us` is per KV head too, by its width (of 128). Keys and values take as long as
    ones that are `extra_bytes` longer. `wide_us`, `narrow_us`: what a launch takes more for heads of 128 than of 64, or less.
    `unit` is the share of the bandwidth that one thread block reaches (0: no limit), `splits` over how many blocks a KV head's
    reads are spread at least."""

    bandwidth: float
    launch_us: float
    extra_us: float
    knee_us: float
    head_us: float
    norm: float
    source: str
    query_us: float = 0.0
    row_us: float = 0.0
    extra_bytes: float = 0.0
    wide_us: float = 0.0
    narrow_us: float = 0.0
    head_dim_us: float = 0.0
    unit: float = 0.0
    splits: float = 1.0
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefillConstants:
    """Prefill attention: `extra_tokens` is the overhead of a query tile; `path`, which share of what the longest tile takes more
    than a mean one adds to the launch; `extra_dim` widens the heads by what exponentials cost. `tile`: its queries. `packed`:
    whether (1) queries of a group of heads fill tiles together. `cache_ns`: nanoseconds for every token and KV head, at most
    `cache_most_ns` a token, of writing keys and values into the cache, where the engine's kernel does that."""

    compute: float
    bandwidth: float
    launch_us: float
    norm: float
    extra_tokens: float
    source: str
    path: float = 0.0
    extra_dim: float = 0.0
    tile: float = 128.0
    packed: float = 0.0
    cache_ns: float = 0.0
    cache_most_ns: float = 0.0
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class AmongConstants:
    """Decoding rows in the launch of a prompt's chunks: nanoseconds that a key takes a multiprocessor's thread block when all are
    busy (`key_ns`) and when it is alone (`path_ns`), for heads 128 wide, and what a block without work takes (`block_us`)."""

    key_ns: float
    path_ns: float
    block_us: float
    source: str
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class LatentConstants:
    """Decode attention over a latent cache (MLA, absorbed)."""

    compute: float
    bandwidth: float
    launch_us: float
    norm: float
    source: str
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class AllReduceConstants:
    """Two algorithms of the engine's own kernels: everyone sends everything (`one_shot`), and reduce-scatter + all-gather
    (`two_shot`). Messages of more than `ring_mb` (1e6 bytes; 0: none) are left to the library's (`ring`), those of `one_shot_kb`
    (1024 bytes; 0: no limit) or more are never sent in one shot. `rank_us`, `ring_rank_us`: what every GPU beyond two adds to a
    launch of the engine's kernels, and of the library's, which sends in pieces: the more of them, the more of `ring_chunk_us`.
    `switch`: 1 where a switch adds up (NVLink SHARP) what more than two GPUs send in two shots. `ring_switch`: share of the link
    where it does so for the library (0: never), with a launch of `ring_switch_us`, and `ring_switch_rank_us` for each GPU beyond
    two."""

    one_shot_us: float
    one_shot: float
    two_shot_us: float
    two_shot: float
    source: str
    ring_mb: float = 0.0
    ring_us: float = 0.0
    ring: float = 0.0
    one_shot_kb: float = 0.0
    rank_us: float = 0.0
    ring_rank_us: float = 0.0
    ring_chunk_us: float = 0.0
    switch: float = 0.0
    ring_switch: float = 0.0
    ring_switch_us: float = 0.0
    ring_switch_rank_us: float = 0.0
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class MoEConstants:
    """A whole expert layer: routing, both grouped GEMMs and the sum. `expert_us` is paid by every expert touched, which
    computes `pad` rows too many; rows of other GPUs' tokens cost a share `passing` of streaming one's own. `operations`: of
    the framework, where no CUDA graph holds them (choosing, quantising, the fused kernels, summing)."""

    compute: float
    bandwidth: float
    launch_us: float
    norm: float
    expert_us: float
    activation: float
    source: str
    pad: float = 0.0
    passing: float = 0.0
    operations: float = 4.0
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class QuantizeConstants:
    """Quantising activations before a matmul; bytes are per value, for static and for computed scales. With computed scales
    a row takes at least `dynamic_row_us`, however narrow it is (one thread block a row). `group_us`, `group_bytes`: with
    scales of groups inside a row (FP8 in blocks, FP4), where that needs fewer passes than a scale of the whole tensor; 0: the
    same."""

    bandwidth: float
    static_us: float
    static_bytes: float
    dynamic_us: float
    dynamic_bytes: float
    source: str
    dynamic_row_us: float = 0.0
    group_us: float = 0.0
    group_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class ElementwiseConstants:
    """Norms, activations, embedding, sampling."""

    launch_us: float
    bandwidth: float
    source: str


def _of_degree(table: dict[str, float], tp: int) -> float:
    """The figure of the largest listed degree that is not above `tp`."""
    degrees = sorted(map(int, table))
    return table[str(max([d for d in degrees if d <= tp], default=degrees[0]))]


@dataclass(frozen=True, slots=True)
class HostConstants:
    """Time of the CPU.

    Attributes:
        exposed_ms: of a step that nothing hides, by tensor-parallel degree. exposed_row_us: the same of each sequence.
        schedule_ms, row_us: planning and bookkeeping of a step, and of each of its sequences; hidden behind the device
            where the engine overlaps the two. serial_row_us: besides, of each sequence, where it does not: there tokens
            come back, and are taken in, between two steps.
        kernel_launch_us: one operation of the framework outside a CUDA graph, with what Python takes.
        wait_us: by which the ranks of a group miss each other at an all-reduce, by tensor-parallel degree. Kernel timings,
            taken back to back, have them meet.
        error: median error of whole steps (TPOT) on the loads held out, where a served run of the deployment told it.
    """

    exposed_ms: dict[str, float]
    schedule_ms: float
    row_us: float
    kernel_launch_us: float
    source: str
    exposed_row_us: float = 0.0
    serial_row_us: float = 0.0
    error: float = 0.0
    wait_us: dict[str, float] = field(default_factory=dict)

    def exposed(self, tp: int) -> float:
        """Seconds a step that nothing hides."""
        return _of_degree(self.exposed_ms, tp) * 1e-3

    def wait(self, tp: int) -> float:
        """Seconds that ranks wait for each other at every all-reduce."""
        return _of_degree(self.wait_us, tp) * 1e-6 if self.wait_us else 0.0


@dataclass(frozen=True, slots=True)
class FrontEndConstants:
    """Time between the client and the engine's queue, and back. `request_work_ms`, `input_token_us` and `output_work_us` (of
    every token streamed) occupy a server that does one thing after another; the rest only delays. `error`: of TTFT, as
    `HostConstants.error` is of steps."""

    request_ms: float
    input_token_us: float
    output_token_ms: float
    source: str
    error: float = 0.0
    request_work_ms: float = 0.0
    output_work_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Constants:
    """Everything one (GPU, engine) needs. Sections that come in kinds are dicts by kind.

    `host_v0` and `front_end_v0` are those of an engine's older generation (vLLM v0, TensorRT-LLM's C++ runtime), where that
    differs. `among` is there where one kernel takes prompts and decoding rows.
    """

    engine: str
    gpu: str
    gemm: dict[str, GemmConstants]
    decode: dict[str, DecodeConstants]
    prefill: dict[str, PrefillConstants]
    all_reduce: dict[str, AllReduceConstants]
    moe: dict[str, MoEConstants]
    mla: LatentConstants
    quantize: QuantizeConstants
    elementwise: ElementwiseConstants
    host: HostConstants
    front_end: FrontEndConstants
    among: AmongConstants | None = None
    host_v0: HostConstants | None = None
    front_end_v0: FrontEndConstants | None = None


_KINDS = {
    "gemm": GemmConstants, "decode": DecodeConstants, "prefill": PrefillConstants,
    "all_reduce": AllReduceConstants, "moe": MoEConstants,
}  # fmt: skip
_SINGLE = {
    "mla": LatentConstants, "among": AmongConstants, "quantize": QuantizeConstants, "elementwise": ElementwiseConstants,
    "host": HostConstants, "host_v0": HostConstants, "front_end": FrontEndConstants,
    "front_end_v0": FrontEndConstants,
}  # fmt: skip
_OF_ENGINE = ("host", "host_v0", "front_end", "front_end_v0")


def _section(kind: type, values: Any, file: str, key: str) -> Any:
    if not isinstance(values, dict):
        raise InputError("expected a table", place=Place(file=file, key=key))
    known = {f.name: f.type for f in fields(kind)}
    optional = {f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING}
    for name in values:
        if name not in known:
            raise unknown_name("constant", name, known, place=Place(file=file, key=f"{key}.{name}"))
    for name, declared in known.items():
        where = Place(file=file, key=f"{key}.{name}")
        if name not in values:
            if name in optional:
                continue
            raise InputError("is missing", place=where)
        value = values[name]
        if declared == "float":
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                raise InputError(f"expected a number of at least 0, found {value!r}", place=where)
        elif declared == "str" and not isinstance(value, str):
            raise InputError(f"expected a string, found {value!r}", place=where)
        elif declared.startswith("dict") and (not isinstance(value, dict) or not value):
            raise InputError("expected a table of numbers", place=where)
    for share in ("compute", "bandwidth", "one_shot", "two_shot", "ring", "activation"):
        if values.get(share, 0 if share == "ring" and values.get("ring_mb") else 1) == 0:
            raise InputError("must be above 0", place=Place(file=file, key=f"{key}.{share}"))
    if not 1 <= values.get("norm", 1) <= 20:  # 1 adds, 20 is a sharp corner; more would underflow
        raise InputError("must lie between 1 and 20", place=Place(file=file, key=f"{key}.norm"))
    return kind(**{k: float(v) if known[k] == "float" else v for k, v in values.items()})


def _parse(text: str, file: str) -> dict[str, Any]:
    """A constants file as checked sections; any of them may be absent."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"is not TOML: {error}", place=Place(file=file)) from None
    parsed: dict[str, Any] = {"engine": raw.pop("engine", ""), "gpu": raw.pop("gpu", "")}
    for name, body in raw.items():
        if name in _SINGLE:
            parsed[name] = _section(_SINGLE[name], body, file, name)
        elif name in _KINDS:
            if not isinstance(body, dict):
                raise InputError("expected tables", place=Place(file=file, key=name))
            parsed[name] = {k: _section(_KINDS[name], v, file, f"{name}.{k}") for k, v in body.items()}
        else:
            raise unknown_name("section", name, [*_KINDS, *_SINGLE], place=Place(file=file, key=name))
    return parsed


def read_sections(path: str | Path) -> dict[str, Any]:
    """The sections of a file of one's own, as `bench calibrate` writes it.

    Raises:
        InputError: an unreadable or malformed file, naming file and key.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read it: {getattr(error, 'strerror', error)}", place=Place(file=str(path))) from None
    return {name: body for name, body in _parse(text, str(path)).items() if name not in ("gpu", "engine")}


@cache
def _bundled(gpu: str, engine: str) -> dict[str, Any] | None:
    path = files("sim") / "data" / "cost" / f"{gpu}.{engine}.toml"
    return _parse(path.read_text(encoding="utf-8"), path.name) if path.is_file() else None


def own_sections(gpu: str, engine: str) -> dict[str, Any]:
    """The sections of a bundled file, without what it borrows; empty where there is none."""
    found = _bundled(gpu, engine) or {}
    return {name: body for name, body in found.items() if name not in ("gpu", "engine")}


def list_constants() -> list[tuple[str, str]]:
    """The bundled (GPU, engine) pairs."""
    names = (p.name for p in (files("sim") / "data" / "cost").iterdir() if p.name.endswith(".toml"))
    return sorted((n.removesuffix(".toml").split(".", 1)[0], n.removesuffix(".toml").split(".", 1)[1]) for n in names)


def nearest_measured(gpu: GPUSpec) -> str:
    """The GPU whose kernels are most like this one's, among those that were measured on all operators.

    Ampere, and what is older, is like A100, everything newer like H100: on an RTX PRO 6000 (vLLM 0.19, LLMServingSim's
    recordings) H100's shares come within 4 % for decode attention where A100's are 21 % off, and both within 8 % for
    linear layers.
    """
    return "a100-sxm" if gpu.arch in ("volta", "turing", "ampere") else "h100-sxm"


def _sibling(gpu: GPUSpec) -> str:
    """A GPU of the same architecture of which some kernels were measured, or "".

    The workstation's Blackwell has neither B200's tensor cores nor its memory. Its multiprocessors take Ada's instructions
    (mma.sync; 100 KB of shared memory, 48 warps: CUDA's table of compute capabilities 8.9 and 12.0) and read GDDR as Ada's do.
    """
    if gpu.arch == "blackwell" and gpu.has_fast_link:
        return "b200-sxm"
    return "l40s" if gpu.arch in ("ada", "blackwell") else ""


def _layers(gpu: GPUSpec, engine: str) -> list[dict[str, Any]]:
    """Bundled files that apply, nearest first: own GPU, one of its architecture with some kernels, the GPU that was measured
    on all kernels and is most like it, then H100."""
    near = nearest_measured(gpu)
    order = [(gpu.name, engine), (_sibling(gpu), engine), (near, engine), (near, "vllm"),
             ("h100-sxm", engine), ("h100-sxm", "vllm")]  # fmt: skip
    found = [_bundled(*pair) for pair in dict.fromkeys(order)]
    return [layer for layer in found if layer is not None]


def _layers_of(section: str, layers: list[dict[str, Any]], gpu: GPUSpec, engine: str) -> list[dict[str, Any]]:
    """The same files in the order that holds for a section.

    FlashAttention 3 and FlashInfer's kernels for Hopper need its instructions: on multiprocessors like Ada's vLLM and SGLang
    run those that A100 has. On an RTX PRO 6000 (vLLM 0.19, LLMServingSim's recordings) A100's constants are 8 and 6 % off
    where Hopper's are 11 and 10 %, in tiles of 64 queries.
    """
    if section != "prefill" or engine == "tensorrt-llm" or _sibling(gpu) != "l40s":
        return layers
    own = [layer for layer in layers if layer["gpu"] in ("", gpu.name, _sibling(gpu))]
    theirs = _bundled("a100-sxm", engine)
    return [*own, *([theirs] if theirs else []), *(layer for layer in layers if layer not in own)]


def _moved(section: Any, layer: dict[str, Any], gpu: GPUSpec, engine: str) -> Any:
    """A section with its source, which says so where the figures are another GPU's or engine's."""
    if (layer["gpu"], layer["engine"]) in ((gpu.name, engine), ("", "")):
        return section
    note = f"{section.source}; taken from {layer['engine']} on {layer['gpu']} for {gpu.name}, with its data-sheet peaks"
    section = replace(section, source=note)
    if layer["gpu"] in (gpu.name, _sibling(gpu)):
        return section
    if not isinstance(section, GemmConstants):
        return scaled(section, gpu)
    theirs, compute = load_gpu(layer["gpu"]), reached(gpu, section, layer["gemm"]["bf16"])
    return scaled(in_time(section, gpu.bf16 / gpu.sms * theirs.sms / theirs.bf16 * compute), gpu, compute)


_ARITHMETIC = ("compute", "norm", "extra_k", "wave", "edge", "faster")


def _as_amperes(products: dict[str, GemmConstants], gpu: GPUSpec, engine: str) -> dict[str, GemmConstants]:
    """Products in 16 bit on multiprocessors like Ada's: the arithmetic of A100's kernels, since they have its instructions
    (mma.sync), and what newer kernels make of the memory.

    Layers of Llama-3.1-8B on an RTX PRO 6000 (vLLM 0.19, LLMServingSim's recordings) are 5 and 6 % off so (TP 1 and 2), 9 and
    13 % with Hopper's arithmetic.
    """
    theirs = _bundled("a100-sxm", engine)
    if _sibling(gpu) != "l40s" or theirs is None:
        return products
    found = dict(products)
    for kind, section in theirs["gemm"].items():
        own = found.get(kind)
        if own is not None and "taken from" in own.source:
            moved = _moved(section, theirs, gpu, engine)
            note = f"{own.source}; arithmetic: {moved.source}"
            found[kind] = replace(own, source=note, **{name: getattr(moved, name) for name in _ARITHMETIC})
    return found


def load_constants(gpu: GPUSpec, engine: str, path: str | Path | None = None) -> Constants:
    """The constants for an engine on a GPU, with a file of the user's own laid over the bundled ones.

    Args:
        gpu: the device; without a file of its own it borrows the nearest architecture's.
        engine: `vllm`, `sglang` or `tensorrt-llm`.
        path: a TOML file with some or all sections (what `bench calibrate` writes).

    Raises:
        InputError: unknown engine; an unreadable or malformed file, naming file and key.
    """
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    layers = _layers(gpu, engine)
    if path is not None:
        layers.insert(0, read_sections(path) | {"engine": "", "gpu": ""})
    merged: dict[str, Any] = {}
    # Host and front end are the engine's before they are the GPU's.
    for layer in sorted(layers, key=lambda layer: layer["engine"] not in (engine, "")):
        for name in _OF_ENGINE:
            if name in layer and name not in merged:
                moved = _moved(layer[name], layer, gpu, engine)
                merged[name] = moved if moved is layer[name] else slowed(moved, gpu, name)
    for layer in layers:
        for name in _SINGLE:
            if name in layer and name not in merged:
                merged[name] = _moved(layer[name], layer, gpu, engine)
    for name in _KINDS:
        own = merged.setdefault(name, {})
        for layer in _layers_of(name, layers, gpu, engine):
            # A kind of attention or experts missing in a nearer file is not filled from a farther GPU or another engine:
            # other types' figures of the same kernels describe it better (see `sim.cost.forms.STAND_INS`).
            if own and name in ("decode", "prefill", "moe"):
                continue
            for kind, section in layer.get(name, {}).items():
                moved = _moved(section, layer, gpu, engine)
                if moved is not section:
                    moved = slowed(moved, gpu, name, kind)
                if name == "all_reduce" and moved is not section:
                    moved = limited(moved, engine, gpu, int(kind))
                own.setdefault(kind, moved)
    merged["gemm"] = _as_amperes(merged["gemm"], gpu, engine)
    return Constants(engine=engine, gpu=gpu.name, **merged)
