"""Rotary embeddings and the write into the cache, in one kernel: q, k and v are read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backends.ops.base import KVScales
from backends.ops.reference import FP8
from backends.triton.elementwise import rounded
from backends.triton.launch import Launcher, rows_last, scale_strides


@triton.jit
def head_scale(lower, upper):
    """Scales [H] in float16 of heads [H, D] in two halves: see `backends.ops.int8_pages`."""
    most = tl.maximum(tl.max(tl.abs(lower), axis=1), tl.max(tl.abs(upper), axis=1))
    scale = tl.div_rn(most, tl.full(most.shape, 127.0, tl.float32))
    return tl.minimum(tl.maximum(scale, 6.103515625e-05), 65504.0).to(tl.float16)


@triton.jit
def stored(x, scale, MOST: tl.constexpr, SCALED: tl.constexpr, TARGET: tl.constexpr):
    """float32 [H, D] in the dtype of the pages; with `MOST` (fp8's largest value) scaled and cut off, with `SCALED` divided by
    the scales [H] and rounded."""
    if SCALED:
        x = rounded(tl.div_rn(x, tl.zeros(x.shape, tl.float32) + scale.to(tl.float32)[:, None]))
        x = tl.minimum(tl.maximum(x, -127.0), 127.0)
    elif MOST > 0:
        x = tl.div_rn(x, tl.full(x.shape, 0.0, tl.float32) + scale)
        x = tl.minimum(tl.maximum(x, -MOST), MOST)
    return x.to(TARGET)


@triton.jit
def rope_kernel(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, out_ptr, k_pages_ptr, v_pages_ptr, ks_ptr, vs_ptr, slots_ptr,
    heads, kv_heads, k_scale, v_scale, q_token, q_head, k_token, k_head, v_token, v_head, out_token, out_head,
    k_page, k_slot, k_page_head, v_page, v_slot, v_page_head, s_page, s_slot,
    PAGE: tl.constexpr, HALF: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr, BLOCK_H: tl.constexpr,
    MOST: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """One token: dimension i of a head is rotated together with i + HALF. `SCALED`: pages are int8, with scales."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_H)
    inside = column < HALF
    cos = tl.load(cos_ptr + token * HALF + column, mask=inside, other=0.0)[None, :]
    sin = tl.load(sin_ptr + token * HALF + column, mask=inside, other=0.0)[None, :]
    head = tl.arange(0, BLOCK_Q)
    mask = (head < heads)[:, None] & inside[None, :]
    place = q_ptr + token * q_token + head[:, None] * q_head + column[None, :]
    first = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, mask=mask, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    out = out_ptr + token * out_token + head[:, None] * out_head + column[None, :]
    tl.store(out, (first * cos - second * sin).to(dtype), mask=mask)
    tl.store(out + HALF, (second * cos + first * sin).to(dtype), mask=mask)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot >= 0:
        page, offset = slot // PAGE, slot % PAGE
        kv_head = tl.arange(0, BLOCK_KV)
        written = (kv_head < kv_heads)[:, None] & inside[None, :]
        source = k_ptr + token * k_token + kv_head[:, None] * k_head + column[None, :]
        lower = tl.load(source, mask=written, other=0.0).to(tl.float32)
        upper = tl.load(source + HALF, mask=written, other=0.0).to(tl.float32)
        target = k_pages_ptr.dtype.element_ty
        keys = (
            k_pages_ptr
            + page * k_page
            + offset * k_slot
            + kv_head.to(tl.int64)[:, None] * k_page_head
            + column[None, :]
        )
        rotated = (lower * cos - upper * sin).to(k_ptr.dtype.element_ty).to(tl.float32)
        upper = (upper * cos + lower * sin).to(k_ptr.dtype.element_ty).to(tl.float32)
        scales = page * s_page + offset * s_slot + kv_head
        divisor = head_scale(rotated, upper) if SCALED else k_scale
        tl.store(keys, stored(rotated, divisor, MOST, SCALED, target), mask=written)
        tl.store(keys + HALF, stored(upper, divisor, MOST, SCALED, target), mask=written)
        if SCALED:
            tl.store(ks_ptr + scales, divisor, mask=kv_head < kv_heads)
        source = v_ptr + token * v_token + kv_head[:, None] * v_head + column[None, :]
        values = (
            v_pages_ptr
            + page * v_page
            + offset * v_slot
            + kv_head.to(tl.int64)[:, None] * v_page_head
            + column[None, :]
        )
        lower = tl.load(source, mask=written, other=0.0).to(tl.float32)
        upper = tl.load(source + HALF, mask=written, other=0.0).to(tl.float32)
        divisor = head_scale(lower, upper) if SCALED else v_scale
        tl.store(values, stored(lower, divisor, MOST, SCALED, target), mask=written)
        tl.store(values + HALF, stored(upper, divisor, MOST, SCALED, target), mask=written)
        if SCALED:
            tl.store(vs_ptr + scales, divisor, mask=kv_head < kv_heads)


def rope_and_cache(
    launch: Launcher, q: Tensor, k: Tensor, v: Tensor, rotary: tuple[Tensor, Tensor], k_pages: Tensor, v_pages: Tensor,
    slots: Tensor, kv_scales: KVScales,
) -> Tensor:  # fmt: skip
    """See `backends.ops.base.Operators.rope_and_cache`."""
    tokens, heads, dim = q.shape
    q, k, v = rows_last(q), rows_last(k), rows_last(v)
    cos, sin = (side.contiguous() for side in rotary)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    block_q, block_kv = triton.next_power_of_2(heads), triton.next_power_of_2(k.shape[1])
    block_h = triton.next_power_of_2(dim // 2)
    head_scales = kv_scales if k_pages.dtype == torch.int8 else None
    launch(
        rope_kernel,
        (tokens,),
        (
            q, k, v, cos, sin, out, k_pages, v_pages, *(head_scales or (q, q)), slots, heads, k.shape[1],
            *((1.0, 1.0) if head_scales else map(float, kv_scales)),
            *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *out.stride()[:2],
            *k_pages.stride()[:3], *v_pages.stride()[:3], *scale_strides(head_scales),
        ),
        {
            "PAGE": k_pages.shape[1], "HALF": dim // 2, "BLOCK_Q": block_q, "BLOCK_KV": block_kv, "BLOCK_H": block_h,
            "SCALED": head_scales is not None,
            "MOST": torch.finfo(k_pages.dtype).max if k_pages.dtype in FP8 else 0.0,
        },
        warps=4 if block_q * block_h <= 4096 else 8,
    )  # fmt: skip
    return out
