"""Rotation and the write into the cache against plain torch, slot by slot."""

from __future__ import annotations

import interpreter  # noqa: F401 (first)
import pytest
import torch
from compare import DTYPES, normal

from backends.model.rope import Rope
from backends.ops.reference import FP8, ReferenceOperators
from backends.triton.operators import TritonOperators

OURS, PLAIN = TritonOperators("cpu"), ReferenceOperators()


def run(ops, heads, kv_heads, dim, page, dtype, pages_dtype, slots, **options):
    qkv = normal(len(slots), heads + 2 * kv_heads, dim, dtype=dtype) * 2
    q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
    positions = torch.arange(len(slots)) * 977
    rotary = ops.rotary(positions, *Rope(10_000.0).frequencies(dim))
    cache = torch.full((2, 5, page, kv_heads, dim), 7.0).to(pages_dtype)
    return ops.rope_and_cache(q, k, v, rotary, *cache, torch.tensor(slots), **options), cache


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "page"), [(1, 1, 64, 1), (9, 3, 64, 16), (7, 1, 80, 16), (6, 2, 96, 1), (4, 4, 128, 2)]
)
def test_rotated_and_written(heads, kv_heads, dim, page, dtype) -> None:
    slots = [3, -1, 0, 4, 2]
    (got, cache), (want, there) = (run(ops, heads, kv_heads, dim, page, dtype, dtype, slots) for ops in (OURS, PLAIN))
    loose = dtype == torch.float32  # a difference of products may lose digits
    torch.testing.assert_close(got, want, rtol=1e-6 if loose else 2**-8, atol=1e-6 if loose else 1e-3)
    torch.testing.assert_close(cache[0], there[0], rtol=1e-6 if loose else 2**-8, atol=1e-6 if loose else 1e-3)
    assert (got.double() - want.double()).abs().mean() < (1e-7 if loose else 2e-5)
    assert torch.equal(cache[1], there[1]), "values must be copied as they are"
    unwritten = [slot for slot in range(5 * page) if slot not in slots]
    assert (cache.flatten(1, 2)[:, unwritten] == 7).all(), "a slot was written that nobody asked for"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fp8", FP8)
def test_fp8_pages(fp8, dtype) -> None:
    """Exactly the reference's bytes, but where a rotated key lies on an edge of rounding."""
    for scales in ((1.0, 1.0), (0.05, 0.002)):
        both = [run(ops, 6, 2, 80, 16, dtype, fp8, [17, 3, -1, 40], kv_scales=scales) for ops in (OURS, PLAIN)]
        (_, cache), (_, there) = both
        assert torch.equal(cache[1].view(torch.uint8), there[1].view(torch.uint8))
        keys, wanted = cache[0].float(), there[0].float()
        assert (keys != wanted).float().mean() < 1e-3
        torch.testing.assert_close(keys, wanted, rtol=0.25 if fp8 == torch.float8_e5m2 else 0.125, atol=1e-2)
        assert keys.isfinite().all() and cache[1].float().isfinite().all()
    assert there[1].float().abs().max() == torch.finfo(fp8).max or fp8 == torch.float8_e5m2, "nothing was cut off"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int8_pages(dtype) -> None:
    """The reference's bytes and scales, but where a rotated key lies on an edge of rounding; heads of zeros, of huge and of tiny
    values among them."""
    slots, heads, kv_heads, dim, page = [17, 3, -1, 40, 5, 6], 6, 2, 80, 16
    positions = torch.arange(len(slots)) * 977
    q, k, v = (normal(len(slots), n, dim, seed=n, dtype=dtype) for n in (heads, kv_heads, kv_heads))
    k[3] *= 3e4 if dtype == torch.float16 else 1e6
    k[4], v[4], v[1, 0], v[5, 1] = 0.0, 0.0, 1e-7, v[5, 1] / 10
    found = []
    for ops in (OURS, PLAIN):
        rotary = ops.rotary(positions, *Rope(10_000.0).frequencies(dim))
        cache = torch.full((2, 5, page, kv_heads, dim), 7, dtype=torch.int8)
        scales = torch.full((2, 5, page, kv_heads), 7.0, dtype=torch.float16)
        ops.rope_and_cache(
            q.clone(), k.clamp(-6e4, 6e4), v, rotary, *cache, torch.tensor(slots), kv_scales=tuple(scales)
        )
        found.append((cache, scales))
    (cache, scales), (there, want) = found
    assert torch.equal(cache[1], there[1]) and torch.equal(scales[1], want[1])
    step = (cache[0].int() - there[0].int()).abs()
    assert step.max() <= 1 and step.float().mean() < 1e-3
    torch.testing.assert_close(scales[0], want[0], rtol=2e-3, atol=0)
    assert scales.isfinite().all() and (scales > 0).all()
    unwritten = [slot for slot in range(5 * page) if slot not in slots]
    assert (cache.flatten(1, 2)[:, unwritten] == 7).all() and (scales.flatten(1, 2)[:, unwritten] == 7).all()


def test_no_tokens() -> None:
    got, cache = run(OURS, 2, 1, 64, 4, torch.float32, torch.float32, [])
    assert got.shape == (0, 2, 64) and (cache == 7).all()


def test_a_slot_far_beyond_two_to_the_thirty_first_element() -> None:
    far, dim = 1 << 31, 64
    memory = torch.empty(far + 2 * dim, dtype=torch.float8_e5m2)
    pages = memory.as_strided((2, 1, 1, dim), (far, dim, dim, 1))
    k, v = normal(1, 1, dim), normal(1, 1, dim, seed=1)
    rotary = torch.ones(1, dim // 2), torch.zeros(1, dim // 2)
    OURS.rope_and_cache(k, k, v, rotary, pages, pages[..., :], torch.tensor([1]))
    assert torch.equal(pages[1, 0, 0].float(), v[0, 0].to(torch.float8_e5m2).float())
