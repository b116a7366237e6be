"""Which variants of the kernels models launch: the operators are called on shapes alone, and what they launch is noted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backends.ops.base import Dense, PackedBatch, SamplingBatch
from backends.triton.launch import Launcher, Target
from backends.triton.operators import TritonOperators
from backends.triton.packed_variants import packed_experts, packed_products
from workloads.errors import InputError

_POINTERS = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5", torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8",
    torch.uint8: "*u8", torch.bool: "*i1",
}  # fmt: skip
_SHORT = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2", torch.int8: "int8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel as it would be compiled for a launch.

    Attributes:
        name: kernel and what sets it apart. kernel: dotted path of the function.
        signature: argument → Triton's name of its type. constants: arguments known when it is compiled.
        divisible: arguments known to be multiples of 16.
    """

    name: str
    kernel: str
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    divisible: tuple[str, ...]
    warps: int
    stages: int


class Recorder(Launcher):
    """Notes launches instead of making them."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.label = ""
        self.found: dict[str, Variant] = {}

    def __call__(
        self, kernel: Any, grid: tuple[int, ...], args: tuple, constants: Mapping[str, Any], *, warps: int = 4, stages: int = 2
    ) -> None:  # fmt: skip
        """Note the variant that Triton would compile for these arguments."""
        if 0 in grid:
            return
        known, signature, divisible = dict(constants), {}, []
        names = kernel.arg_names
        for name, value in zip(names, args, strict=False):
            if isinstance(value, Tensor):
                signature[name] = _POINTERS[value.dtype]
                divisible.append(name)
            elif isinstance(value, float):
                signature[name] = "fp32"
            elif value == 1:
                known[name] = 1
            else:
                signature[name] = "i32" if abs(value) < 1 << 31 else "i64"
                if value % 16 == 0:
                    divisible.append(name)
        signature |= dict.fromkeys(known, "constexpr")
        ordered = {name: signature[name] for name in names}
        flags = [f"{key.lower()} {value}" for key, value in constants.items() if key in _TELLING and value is not False]
        title = f"{kernel.fn.__name__}: {', '.join([self.label, *flags])}"
        path = f"{kernel.fn.__module__}.{kernel.fn.__name__}"
        self.found[title] = Variant(title, path, ordered, known, tuple(divisible), warps, stages)


_TELLING = ("ADD", "WINDOW", "SOFTCAP", "DIRECT", "GATED", "FIRST", "FILTERED", "DRAWN")


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _batch(rows: list[tuple[int, int]]) -> PackedBatch:
    queries, lengths = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    tokens, count = int(queries.sum()), len(rows)
    sizes = ((tokens,), (tokens,), (tokens,), (count + 1,), (count,), (count, 512), (count,))
    return PackedBatch(*(_empty(*size, dtype=torch.int64) for size in sizes), queries, lengths)


def variants(target: Target) -> list[Variant]:
    """All variants, as shaped for `target`; each name once."""
    record = Recorder(target)
    ops = TritonOperators(launch=record)
    for label, work in _attention(ops):
        record.label = label
        with suppress(InputError):  # fp8 e4m3 on what does not have it
            work()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for width in (896, 4096, 8192) if dtype == torch.bfloat16 else (4096,):
            record.label = f"{_SHORT[dtype]}, width {width}"
            x, weight = _empty(256, width, dtype=dtype), _empty(width, dtype=dtype)
            ops.rms_norm(x, weight, 1e-5)
            ops.add_rms_norm(x, x, weight, 1e-5)
        record.label = f"{_SHORT[dtype]}, heads of 128"
        ops.rms_norm(_empty(256, 48, 128, dtype=dtype)[:, :32], _empty(128, dtype=dtype), 1e-6)
        record.label = f"{_SHORT[dtype]}, width 14336"
        ops.silu_mul(_empty(256, 28672, dtype=dtype))
        ops.gather(_empty(256, 4096, dtype=dtype), _empty(16, dtype=torch.int64))
    for (name, width, inner, experts, top_k), tokens, dtype in _MIXTURES:
        record.label = f"{_SHORT[dtype]}, {name}, {tokens} tokens"
        x, router = _empty(tokens, width, dtype=dtype), Dense(_empty(experts, width, dtype=dtype))
        gate_up, down = (_empty(experts, *shape, dtype=dtype) for shape in ((2 * inner, width), (width, inner)))
        ops.experts(x, router, gate_up, down, top_k, True)
    for label, work in (*packed_products(ops), *packed_experts(ops)):
        record.label = label
        with suppress(InputError):  # fp8 likewise
            work()
    record.label = "64 rows of 151936"
    for options in ((True, False), (False, False), (False, True)):
        ops.sample(_empty(64, 151_936, dtype=torch.float32), _sampling(64, *options))
    return _distinct(record.found.values())


def _distinct(found: Iterable[Variant]) -> list[Variant]:
    """Without those that are compiled as one before them is, whose label does not tell them apart."""
    first: dict[str, Variant] = {}
    for variant in found:
        first.setdefault(repr(replace(variant, name="")), variant)
    return list(first.values())


def _sampling(rows: int, greedy: bool, filtered: bool) -> SamplingBatch:
    reals = [_empty(rows, dtype=torch.float32) for _ in range(4)]
    whole = [_empty(rows, dtype=torch.int64) for _ in range(7)]
    temperature, top_p, min_p, penalty = reals
    return SamplingBatch(temperature, whole[0], top_p, min_p, *whole[1:5], greedy, filtered, penalty, *whole[5:])


_SHAPES = ((32, 8, 128), (14, 2, 64), (32, 32, 96), (9, 3, 64), (32, 32, 80), (28, 4, 128), (16, 4, 256))
"""(heads, KV heads, head dim): Llama 3 8B, Qwen 2.5 0.5B, Phi 3 mini, SmolLM, Phi 2, Qwen 2.5 7B, and heads of 256."""


_MIXTRAL, _QWEN = ("Mixtral 8x7B", 4096, 14336, 8, 2), ("Qwen 3 30B-A3B", 2048, 768, 128, 8)
_MIXTURES = (
    (_MIXTRAL, 16, torch.bfloat16), (_MIXTRAL, 256, torch.bfloat16), (_MIXTRAL, 4096, torch.bfloat16),
    (_QWEN, 16, torch.bfloat16), (_QWEN, 4096, torch.bfloat16), (_QWEN, 16384, torch.float16),
    (_MIXTRAL, 256, torch.float32),
)  # fmt: skip
"""((name, width, expert width, experts, experts a token), tokens, dtype)."""


def _attention(ops: TritonOperators) -> Iterator[tuple[str, Any]]:
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    cases = [(shape, bf16, bf16, 16, {}) for shape in _SHAPES]
    first = _SHAPES[0]
    cases += [(first, fp16, fp16, 16, {}), (first, fp32, fp32, 16, {}), (first, bf16, bf16, 1, {})]
    cases += [(first, bf16, fp8, 16, {}) for fp8 in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)]
    cases += [(first, bf16, bf16, 16, {"window": 4096}), (first, bf16, bf16, 16, {"softcap": 30.0})]
    rows = {
        "decode": [(1, 2048)] * 64,
        "decode short": [(1, 200)] * 64,
        "verify": [(5, 2048)] * 64,
        "prefill": [(512, 2048)],
    }
    for (heads, kv_heads, dim), dtype, pages_dtype, page, options in cases:
        pages = _empty(2, 8192, page, kv_heads, dim, dtype=pages_dtype)
        scaled = {"kv_scales": tuple(_empty(2, 8192, page, kv_heads, dtype=torch.float16))}
        scaled = scaled if pages_dtype == torch.int8 else {}
        stored = "" if pages_dtype == dtype else f", {_SHORT[pages_dtype]} pages"
        label = f"{_SHORT[dtype]}{stored}, {heads}/{kv_heads} heads of {dim}, pages of {page}"
        for kind, mix in rows.items():
            if kind in ("decode short", "verify") and ((heads, kv_heads, dim) != first or options):
                continue
            batch = _batch(mix)
            q = _empty(len(batch.ids), heads, dim, dtype=dtype)
            yield (
                f"{label}{', short' if kind == 'decode short' else ', 5 queries' if kind == 'verify' else ''}",
                lambda q=q, pages=pages, batch=batch, options=options | scaled: ops.attention(
                    q, pages[0], pages[1], batch, scale=0.1, **options
                ),
            )
        if not options:
            yield (
                label,
                lambda dtype=dtype, pages=pages, heads=heads, scaled=scaled: _rope(ops, dtype, pages, heads, scaled),
            )


def _rope(ops: TritonOperators, dtype: torch.dtype, pages: Tensor, heads: int, scaled: dict) -> None:
    kv_heads, dim = pages.shape[3:]
    q, k, v = _empty(256, heads + 2 * kv_heads, dim, dtype=dtype).split((heads, kv_heads, kv_heads), dim=1)
    rotary = _empty(256, dim // 2, dtype=torch.float32), _empty(256, dim // 2, dtype=torch.float32)
    ops.rope_and_cache(q, k, v, rotary, pages[0], pages[1], _empty(256, dtype=torch.int64), **scaled)
