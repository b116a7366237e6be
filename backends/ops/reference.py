"""The operators in plain torch: for any device, and what every kernel is tested against."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from backends.ops.attention import paged_attention
from backends.ops.base import Dense, PackedBatch, SamplingBatch
from backends.ops.choose import choose


class ReferenceOperators:
    """Implements `backends.ops.base.Operators`; see there for shapes."""

    def embed(self, table: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, table)

    def gather(self, x: Tensor, rows: Tensor) -> Tensor:
        return x.index_select(0, rows)

    def linear(self, x: Tensor, layer: Dense) -> Tensor:
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
        self, q: Tensor, k: Tensor, v: Tensor, rotary: tuple[Tensor, Tensor], k_pages: Tensor, v_pages: Tensor, slots: Tensor
    ) -> Tensor:  # fmt: skip
        k = _rotate(k, *rotary)
        kept = slots >= 0
        if not bool(kept.all()):
            k, v, slots = k[kept], v[kept], slots[kept]
        for pages, new in ((k_pages, k), (v_pages, v)):
            size = pages.shape[1]
            pages[slots // size, slots % size] = new.to(pages.dtype)
        return _rotate(q, *rotary)

    def attention(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PackedBatch, *, scale: float, window: int = 0,
        softcap: float = 0.0,
    ) -> Tensor:  # fmt: skip
        return paged_attention(q, k_pages, v_pages, batch, scale, window, softcap)

    def silu_mul(self, x: Tensor) -> Tensor:
        gate, up = x.float().chunk(2, dim=-1)
        return (F.silu(gate) * up).to(x.dtype)

    def experts(self, x: Tensor, router: Dense, gate_up: Tensor, down: Tensor, top_k: int, renormalise: bool) -> Tensor:
        chances = torch.softmax(self.linear(x, router).float(), dim=-1)
        weights, chosen = torch.topk(chances, top_k, dim=-1)
        if renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
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


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [T, heads, dim]: dimension i together with i + dim / 2."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
