"""The operators in plain torch: for any device, and what every kernel is tested against."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from backends.ops.attention import paged_attention
from backends.ops.base import Dense, KVScales, PackedBatch, SamplingBatch
from backends.ops.choose import choose
from backends.ops.int8_pages import quantised_heads
from backends.quantization.base import QuantizedBank, QuantizedLinear
from backends.quantization.dequantise import quantized_linear
from backends.quantization.experts import quantized_experts

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
"""Formats of pages with one scale for all of their keys, and one for all of their values."""


class ReferenceOperators:
    """Implements `backends.ops.base.Operators`; see there for shapes."""

    recordable = False

    def embed(self, table: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, table)

    def gather(self, x: Tensor, rows: Tensor) -> Tensor:
        return x.index_select(0, rows)

    def linear(self, x: Tensor, layer: Dense | QuantizedLinear) -> Tensor:
        if isinstance(layer, QuantizedLinear):
            return quantized_linear(x, layer)
        return F.linear(x, layer.weight, layer.bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return weight * normed.to(x.dtype)  # rounded before the weight, as the models were trained

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def rotary(self, positions: Tensor, frequencies: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        angles = positions.to(torch.float32)[:, None] * frequencies[None, :]
        return angles.cos() * scale, angles.sin() * scale

    def rope_and_cache(
        self, q: Tensor, k: Tensor, v: Tensor, rotary: tuple[Tensor, Tensor], k_pages: Tensor, v_pages: Tensor, slots: Tensor,
        *, kv_scales: KVScales = (1.0, 1.0),
    ) -> Tensor:  # fmt: skip
        k = _rotate(k, *rotary)
        kept = slots >= 0
        if not bool(kept.all()):
            k, v, slots = k[kept], v[kept], slots[kept]
        for pages, new, scale in zip((k_pages, v_pages), (k, v), kv_scales, strict=True):
            size = pages.shape[1]
            if pages.dtype == torch.int8:
                stored, scale[slots // size, slots % size] = quantised_heads(new)
            else:
                stored = quantised(new, scale, pages.dtype) if pages.dtype in FP8 else new.to(pages.dtype)
            _bits(pages)[slots // size, slots % size] = _bits(stored)
        return _rotate(q, *rotary)

    def attention(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PackedBatch, *, scale: float, window: int = 0,
        softcap: float = 0.0, kv_scales: KVScales = (1.0, 1.0),
    ) -> Tensor:  # fmt: skip
        if k_pages.dtype == torch.int8:
            return paged_attention(q, k_pages, v_pages, batch, scale, window, softcap, kv_scales)
        if k_pages.dtype not in FP8:
            return paged_attention(q, k_pages, v_pages, batch, scale, window, softcap)
        k_scale, v_scale = kv_scales
        out = paged_attention(q.float(), k_pages, v_pages, batch, scale * k_scale, window, softcap)
        return (out * v_scale).to(q.dtype)

    def silu_mul(self, x: Tensor) -> Tensor:
        gate, up = x.float().chunk(2, dim=-1)
        return (F.silu(gate) * up).to(x.dtype)

    def experts(
        self, x: Tensor, router: Dense, gate_up: Tensor | QuantizedBank, down: Tensor | QuantizedBank, top_k: int,
        renormalise: bool,
    ) -> Tensor:  # fmt: skip
        if isinstance(down, QuantizedBank):
            return quantized_experts(self, x, router, gate_up, down, top_k, renormalise)
        weights, chosen = route(self.linear(x, router), top_k, renormalise)
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in chosen.unique().tolist():
            tokens, rank = torch.where(chosen == expert)
            hidden = self.silu_mul(F.linear(x[tokens], gate_up[expert]))
            total.index_add_(0, tokens, F.linear(hidden, down[expert]).float() * weights[tokens, rank, None])
        return total.to(x.dtype)

    def logits(self, x: Tensor, head: Dense) -> Tensor:
        return F.linear(x, head.weight, head.bias).float()

    def sample(self, logits: Tensor, how: SamplingBatch) -> Tensor:
        return choose(logits, how)


def route(scores: Tensor, top_k: int, renormalise: bool) -> tuple[Tensor, Tensor]:
    """Probabilities in float32 and numbers of the experts that each token of `scores` [T, experts] visits, both [T, top_k]."""
    weights, chosen = torch.topk(torch.softmax(scores.float(), dim=-1), top_k, dim=-1)
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, chosen


def quantised(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """`x / scale` in fp8; what is too large becomes the largest value of the format, never infinity."""
    most = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-most, most).to(dtype)


def _bits(x: Tensor) -> Tensor:
    """fp8 as bytes: torch has no indexing of fp8 tensors on every device."""
    return x.view(torch.uint8) if x.dtype in FP8 else x


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [T, heads, dim]: dimension i together with i + dim / 2."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
