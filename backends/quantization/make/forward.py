"""A model's layers on whole sequences, one layer's weights in memory at a time, with an eye on what enters linear layers.

Plain attention without a cache, in float32, through which gradients can flow; the engine's own pass has pages and no gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from backends.model.architecture import Architecture
from backends.ops.reference import route
from backends.weights.names import expert_names

Watch = Callable[[str, Tensor], None]
"""Called with an input's name (a key of `readers`, and `mlp` for what experts have to choose from) and what enters there,
[tokens, width]; of an expert only with the tokens that visit it."""

_ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def readers(architecture: Architecture) -> dict[str, tuple[str, ...]]:
    """Input of linear layers → the layers that read it, by their names in a transformer layer; routers left out.

    Those of expert e are `mlp.e` and `down.e`.
    """
    found = {"attention": _ATTENTION, "out": ("self_attn.o_proj",)}
    if not architecture.spec.experts:
        return found | {"mlp": ("mlp.gate_proj", "mlp.up_proj"), "down": ("mlp.down_proj",)}
    block, gate, up, down = expert_names(architecture.spec.family)
    for number in range(architecture.spec.experts):
        one = f"{block}.experts.{number}"
        found |= {f"mlp.{number}": (f"{one}.{gate}", f"{one}.{up}"), f"down.{number}": (f"{one}.{down}",)}
    return found


def projections(architecture: Architecture) -> tuple[str, ...]:
    """All of these layers."""
    return tuple(name for names in readers(architecture).values() for name in names)


def run_layer(
    architecture: Architecture, index: int, weights: Mapping[str, Tensor], hidden: Tensor, rotary: tuple[Tensor, Tensor],
    watch: Watch | None = None,
) -> Tensor:  # fmt: skip
    """A transformer layer on `hidden` [sequences, tokens, width], causal.

    Args:
        weights: the layer's tensors by name in the checkpoint, without its prefix.
        rotary: cosine and sine [tokens, head dim / 2].
    """
    spec, eps = architecture.spec, architecture.eps

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def see(name: str, x: Tensor) -> Tensor:
        if watch is not None:
            watch(name, x.reshape(-1, x.shape[-1]))
        return x

    x = see("attention", _norm(hidden, weights["input_layernorm.weight"], eps))
    q, k, v = (linear(name, x).unflatten(-1, (-1, spec.head_dim)).transpose(1, 2) for name in _ATTENTION)
    if "self_attn.q_norm.weight" in weights:
        q, k = (_norm(y, weights[f"self_attn.{n}_norm.weight"], eps) for n, y in (("q", q), ("k", k)))
    mask = _mask(hidden.shape[1], architecture.windows[index])
    mixed = F.scaled_dot_product_attention(_rotate(q, *rotary), _rotate(k, *rotary), v, attn_mask=mask, enable_gqa=True)
    hidden = hidden + linear("self_attn.o_proj", see("out", mixed.transpose(1, 2).flatten(2)))
    x = see("mlp", _norm(hidden, weights["post_attention_layernorm.weight"], eps))
    if spec.experts:
        return hidden + _mixture(architecture, weights, x.flatten(0, 1), see).view_as(x)
    inner = F.silu(linear("mlp.gate_proj", x)) * linear("mlp.up_proj", x)
    return hidden + linear("mlp.down_proj", see("down", inner))


def _mixture(architecture: Architecture, weights: Mapping[str, Tensor], x: Tensor, see: Callable) -> Tensor:
    """See `backends.ops.base.Operators.experts`; `x` [tokens, width]."""
    spec = architecture.spec
    block, gate, up, down = expert_names(spec.family)
    scores = F.linear(x, weights[f"{block}.gate.weight"])
    shares, chosen = route(scores, spec.experts_per_token, architecture.renormalise)
    total = torch.zeros_like(x)
    for expert in chosen.unique().tolist():
        tokens, rank = torch.where(chosen == expert)
        one = f"{block}.experts.{expert}"
        mine = see(f"mlp.{expert}", x[tokens])
        inner = F.silu(F.linear(mine, weights[f"{one}.{gate}.weight"])) * F.linear(mine, weights[f"{one}.{up}.weight"])
        out = F.linear(see(f"down.{expert}", inner), weights[f"{one}.{down}.weight"])
        total = total.index_add(0, tokens, out * shares[tokens, rank, None])
    return total


def rotary(architecture: Architecture, tokens: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine [tokens, head dim / 2] of the first positions."""
    frequencies, factor = architecture.rope.frequencies(architecture.spec.head_dim)
    angles = torch.arange(tokens, dtype=torch.float32)[:, None] * frequencies
    return angles.cos() * factor, angles.sin() * factor


def token_losses(architecture: Architecture, hidden: Tensor, norm: Tensor, head: Tensor, ids: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, of `hidden` [sequences, tokens, width] after the last layer."""
    logits = F.linear(_norm(hidden[:, :-1], norm, architecture.eps), head)
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Halves, not pairs, as in `backends.ops`; x [sequences, heads, tokens, dim]."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _mask(tokens: int, window: int) -> Tensor:
    mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    return mask if not window else mask & ~torch.ones(tokens, tokens, dtype=torch.bool).tril(-window)
