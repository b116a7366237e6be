"""One round of all operators on a device against plain torch in float32 there: what a GPU is tested with before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backends.ops.base import Dense, KVScales, Operators, PackedBatch, SamplingBatch
from backends.ops.int8_pages import dequantised_heads, quantised_heads
from backends.ops.reference import FP8, ReferenceOperators

_PLAIN = ReferenceOperators()
_PAGE, _HEADS, _KV_HEADS, _DIM = 16, 8, 2, 128
_MIX = ((1, 300), (1, 1), (1, 1500), (1, 0), (3, 21), (1, 17), (70, 300), (33, 33))
"""(queries, cached tokens): decoding, padding, drafts to verify, and pieces of prompts."""


class Check(NamedTuple):
    """`error`: the largest difference as a share of what rounding in this dtype may do; above 1 the operator is wrong."""

    operator: str
    case: str
    error: float

    @property
    def holds(self) -> bool:
        return self.error <= 1.0


GROUPS = ("pointwise", "attention", "experts", "sampling")


def check_round(
    ops: Operators, device: torch.device, dtype: torch.dtype, pages: torch.dtype, vocabulary: int = 32_000,
    groups: Sequence[str] = GROUPS,
) -> Iterator[Check]:  # fmt: skip
    """Every operator once or twice.

    Args:
        dtype: of activations. pages: of keys and values. vocabulary: token ids to draw from.
        groups: which operators; only those of `attention` depend on `pages`.
    """
    case = str(dtype)[6:] + ("" if pages == dtype else f", {str(pages)[6:]} pages")
    made = _Numbers(device, dtype)
    work: dict[str, Callable[[], Iterator[tuple[str, float]]]] = {
        "pointwise": lambda: _pointwise(ops, made), "attention": lambda: _attention(ops, made, pages),
        "experts": lambda: _experts(ops, made), "sampling": lambda: _sampling(ops, made, vocabulary),
    }  # fmt: skip
    for group in groups:
        yield from (Check(name, case, error) for name, error in work[group]())


class _Numbers:
    """Standard normal tensors, each unlike the one before, the same on every device."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, generator=self._generator).to(self.device, dtype or self.dtype)


def _off(got: Tensor, want: Tensor, dtype: torch.dtype, roundings: float = 2.0) -> float:
    """Largest difference over `roundings` units in the last place, of a value or of the root mean square of its row."""
    unit, want = roundings * torch.finfo(dtype).eps, want.double()
    size = want.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-30).maximum(want.abs())
    error = (got.double() - want).abs() / (unit * size)
    return float(error.max()) if bool(torch.isfinite(got.float()).all()) else float("inf")


def _pointwise(ops: Operators, made: _Numbers) -> Iterator[tuple[str, float]]:
    dtype = made.dtype
    x, y, weight = made(37, 4096), made(37, 4096), made(4096)
    normed, total = ops.add_rms_norm(x, y, weight, 1e-5)
    want = _PLAIN.rms_norm(total.float(), weight.float(), 1e-5)
    yield "add_rms_norm", max(_off(total, x.float() + y.float(), dtype), _off(normed, want, dtype, 4))
    yield "rms_norm", _off(ops.rms_norm(x, weight, 1e-5), _PLAIN.rms_norm(x.float(), weight.float(), 1e-5), dtype, 4)
    yield "silu_mul", _off(ops.silu_mul(x), _PLAIN.silu_mul(x.float()), dtype)
    rows = torch.tensor([36, 0, 5, 5], device=made.device)
    yield "gather", _off(ops.gather(x, rows), x[rows], dtype)
    table = made(300, 512)
    yield "embed", _off(ops.embed(table, rows), table[rows], dtype)


def _batch(device: torch.device) -> tuple[PackedBatch, int]:
    """`_MIX` over scattered pages; and how many pages there are."""
    queries, lengths = (np.array(column, np.int64) for column in zip(*_MIX, strict=True))
    needs = -(-lengths // _PAGE)
    order = np.random.default_rng(0).permutation(int(needs.sum()))
    tables = np.zeros((len(_MIX), int(needs.max())), np.int64)
    for index, part in enumerate(np.split(order, np.cumsum(needs)[:-1])):
        tables[index, : len(part)] = part
    starts = np.concatenate(([0], np.cumsum(queries)))
    positions = np.concatenate([np.arange(length - count, length) for count, length in _MIX])
    owner = np.repeat(np.arange(len(_MIX)), queries)
    slots = np.where(positions < 0, -1, tables[owner, positions // _PAGE] * _PAGE + positions % _PAGE)
    ids = np.zeros_like(positions)
    columns = (ids, positions, slots, starts, lengths, tables, starts[1:] - 1)
    return PackedBatch(*(torch.as_tensor(each, device=device) for each in columns), queries, lengths), len(order)


def _cache(made: _Numbers, pages: int, stored: torch.dtype) -> tuple[Tensor, KVScales]:
    """Keys and values [2, pages, page, KV heads, dim], and their scales."""
    cache = made(2, pages, _PAGE, _KV_HEADS, _DIM, dtype=torch.float32)
    if stored == torch.int8:
        cache, scales = quantised_heads(cache)
        return cache, tuple(scales)
    return cache.to(stored), (0.5, 0.25) if stored in FP8 else (1.0, 1.0)


def _attention(ops: Operators, made: _Numbers, stored: torch.dtype) -> Iterator[tuple[str, float]]:
    batch, pages = _batch(made.device)
    cache, scales = _cache(made, pages, stored)
    other, written = cache.clone(), scales
    if stored == torch.int8:
        written = tuple(side.clone() for side in scales)
    q, k, v = made(len(batch.ids), _HEADS + 2 * _KV_HEADS, _DIM).split((_HEADS, _KV_HEADS, _KV_HEADS), dim=1)
    frequencies = 1e4 ** -(torch.arange(0, _DIM, 2, device=made.device) / _DIM)
    rotary = _PLAIN.rotary(batch.positions, frequencies, 1.0)
    slots = batch.slots.clone()
    slots[-1] = -1
    got = ops.rope_and_cache(q, k, v, rotary, *cache, slots, kv_scales=scales)
    want = _PLAIN.rope_and_cache(q.float(), k.float(), v.float(), rotary, *other, slots, kv_scales=written)
    yield "rope", _off(got, want, made.dtype, 4)
    if stored == torch.int8:
        mine, theirs, step = torch.stack(scales), torch.stack(written), torch.stack(written).float()[..., None]
        off = (dequantised_heads(cache, mine) - dequantised_heads(other, theirs)).abs() / step
        allowed = 1.25 + 127 * torch.finfo(made.dtype).eps  # a step, and what values differ by that were rounded before
        yield "cache write", float(off.max()) / allowed
        scales = written
    else:
        yield "cache write", _off(cache.float(), other.float(), stored, 1 if stored in FP8 else 4)
    wide = other if stored.itemsize == 1 else other.float()
    for name, options in (
        ("attention", {}),
        ("attention, window", {"window": 200}),
        ("attention, cap", {"softcap": 5.0}),
    ):
        ours = ops.attention(got, *other, batch, scale=_DIM**-0.5, kv_scales=scales, **options)
        theirs = _PLAIN.attention(got.float(), *wide, batch, scale=_DIM**-0.5, kv_scales=scales, **options)
        yield name, _off(ours, theirs, made.dtype, 4 if made.dtype != torch.float32 else 64)


def _experts(ops: Operators, made: _Numbers) -> Iterator[tuple[str, float]]:
    experts, width, inner = 8, 256, 128
    router, gate_up, down = (
        made(experts, width) / 16,
        made(experts, 2 * inner, width) / 16,
        made(experts, width, inner) / 11,
    )
    for tokens in (1, 90):
        x = made(tokens, width)
        got = ops.experts(x, Dense(router), gate_up, down, 2, True)
        want = _PLAIN.experts(x, Dense(router), gate_up, down, 2, True)  # in this dtype: routing must be the same
        yield f"experts, {tokens} tokens", _off(got, want, made.dtype, 8 if made.dtype != torch.float32 else 64)


def _sampling(ops: Operators, made: _Numbers, vocabulary: int) -> Iterator[tuple[str, float]]:
    """Tokens that differ count as infinitely wrong."""
    rows = 64
    logits = made(rows, vocabulary, dtype=torch.float32) * 3
    count = torch.arange(rows, device=made.device)
    reals = torch.ones(3, rows, device=made.device)
    reals[0], reals[1], reals[2] = 0.5 + count / rows, 1 - count % 3 * 0.2, count % 2 * 0.02
    coordinates = [count * factor for factor in (1 << 33, 1, 3, 77)]
    cases = {
        "greedy": SamplingBatch(reals[0] * 0, count, reals[1], reals[2], *coordinates, True, False),
        "drawn": SamplingBatch(reals[0], count, reals[1], reals[2], *coordinates, False, False),
        "filtered": SamplingBatch(reals[0], count % 50, reals[1], reals[2], *coordinates, False, True),
    }
    seen = {"penalty": reals[0] + 1, "seen_rows": count, "seen_ids": logits.argmax(-1)}
    cases["penalised"] = replace(cases["greedy"], **seen)
    for name, how in cases.items():
        same = torch.equal(ops.sample(logits, how), _PLAIN.sample(logits, how))
        yield f"sampling, {name}", 0.0 if same else float("inf")
