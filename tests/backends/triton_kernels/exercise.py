"""One round through all kernels on a device, compared with plain torch there: run on a GPU where there is one, and in the
interpreter so that it is known to work."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from compare import assert_attention_close, normal
from paged import make_batch, make_pages

from backends.model.rope import Rope
from backends.ops.base import Dense, PackedBatch, SamplingBatch
from backends.ops.reference import ReferenceOperators
from backends.triton.operators import TritonOperators

PLAIN = ReferenceOperators()


def exercise(ops: TritonOperators, device: str, dtype: torch.dtype, pages_dtype: torch.dtype, vocabulary: int) -> None:
    """Raises an AssertionError where the kernels and plain torch differ by more than rounding."""
    x, weight = (normal(*shape, dtype=dtype).to(device) for shape in ((5, 320), (320,)))
    for got, want in zip(ops.add_rms_norm(x, x, weight, 1e-5), PLAIN.add_rms_norm(x, x, weight, 1e-5), strict=True):
        torch.testing.assert_close(got, want, rtol=2**-7, atol=2**-7)
    torch.testing.assert_close(ops.silu_mul(x), PLAIN.silu_mul(x), rtol=2**-7, atol=1e-3)
    rows = torch.tensor([3, 0], device=device)
    assert torch.equal(ops.gather(x, rows), x[rows])
    _attention(ops, device, dtype, pages_dtype)
    _experts(ops, device, dtype)
    _sampling(ops, device, vocabulary)


def _attention(ops: TritonOperators, device: str, dtype: torch.dtype, pages_dtype: torch.dtype) -> None:
    batch, count = make_batch([(1, 300), (1, 1), (1, 0), (3, 21), (20, 70)], 16)
    cache = make_pages(batch, count, 16, 2, 128, pages_dtype).to(device)
    batch = PackedBatch(*(move(getattr(batch, field.name), device) for field in fields(batch)))
    qkv = normal(26, 12, 128, dtype=dtype).to(device)
    q, k, v = qkv.split((8, 2, 2), dim=1)
    owner = torch.repeat_interleave(torch.arange(5), torch.as_tensor(batch.queries)).to(device)
    place = batch.positions.clamp(min=0)
    slots = batch.block_tables[owner, place // 16] * 16 + place % 16
    slots[2] = -1
    rotary = PLAIN.rotary(batch.positions, *_on(Rope(10_000.0).frequencies(128), device))
    other, scales = cache.clone(), (0.5, 0.25)
    rotated = ops.rope_and_cache(q, k, v, rotary, *cache, slots, kv_scales=scales)
    torch.testing.assert_close(
        rotated, PLAIN.rope_and_cache(q, k, v, rotary, *other, slots, kv_scales=scales), rtol=2**-7, atol=1e-3
    )
    written = [side.flatten(0, 1)[slots[slots >= 0]].float() for side in (cache[0], other[0], cache[1], other[1])]
    torch.testing.assert_close(written[0], written[1], rtol=0.25, atol=1e-2)
    assert torch.equal(written[2], written[3])
    got = ops.attention(rotated, *cache, batch, scale=0.09, window=200, kv_scales=scales)
    wide = cache if pages_dtype.itemsize == 1 else cache.float()
    want = PLAIN.attention(rotated.float(), *wide, batch, scale=0.09, window=200, kv_scales=scales)
    assert_attention_close(got, want, dtype)


def _experts(ops: TritonOperators, device: str, dtype: torch.dtype) -> None:
    x = normal(30, 64, dtype=dtype).to(device)
    router, gate_up, down = (normal(*shape, seed=1).to(device, dtype) for shape in ((4, 64), (4, 64, 64), (4, 64, 32)))
    got = ops.experts(x, Dense(router), gate_up / 8, down / 5, 2, True)
    want = PLAIN.experts(x, Dense(router), gate_up / 8, down / 5, 2, True)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def _sampling(ops: TritonOperators, device: str, vocabulary: int) -> None:
    rows = 6
    logits = (normal(rows, vocabulary) * 3).to(device)
    reals = torch.tensor(
        [[1.0, 0.0, 0.7, 1.3, 1.0, 2.0], [1.0, 0.9, 0.9, 1.0, 0.5, 1.0], [0.0, 0.0, 0.0, 0.05, 0.0, 0.0]]
    )
    temperature, top_p, min_p = reals.to(device)
    top_k = torch.tensor([0, 0, 40, 0, 5, 50], device=device)
    places = [torch.arange(rows, device=device) * factor for factor in (1 << 33, 1, 3, 77)]
    how = SamplingBatch(temperature, top_k, top_p, min_p, *places, False, True)
    penalty = torch.full((rows,), 1.2, device=device)
    seen = (torch.arange(rows, device=device), logits.argmax(-1))
    for batch in (
        how,
        replace(how, filtered=False),
        replace(how, penalty=penalty, seen_rows=seen[0], seen_ids=seen[1]),
    ):
        assert torch.equal(ops.sample(logits, batch), PLAIN.sample(logits, batch))


def move(value: object, device: str) -> object:
    """A tensor on the device; anything else as it is."""
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _on(pair: tuple[torch.Tensor, float], device: str) -> tuple[torch.Tensor, float]:
    return pair[0].to(device), pair[1]
