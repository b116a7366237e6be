"""A model's weights in the layout that the operators want: projections that read the same input lie in one matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backends.model.architecture import Architecture
from backends.ops.base import Dense
from backends.quantization.base import QuantizedBank, QuantizedLinear

Linear = Dense | QuantizedLinear
"""A linear layer, quantized or not."""


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """A SwiGLU block: `gate_up` stacks gate and up, [2 × width, hidden]."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed SwiGLU experts: `gate_up` [experts, 2 × width, hidden], `down` [experts, hidden, width].

    Where they are quantized they are banks, or, where their layouts differ, each is a linear layer of its own.
    """

    router: Dense
    gate_up: Tensor | QuantizedBank | tuple[Linear, ...]
    down: Tensor | QuantizedBank | tuple[Linear, ...]

    @property
    def apart(self) -> bool:
        """Whether they have to be run one after the other."""
        return isinstance(self.gate_up, tuple) or isinstance(self.down, tuple)


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer layer; `qkv` stacks query, key and value heads, `q_norm` and `k_norm` [head dim] may be missing.

    `kv_scales` divide keys and values in fp8, as a checkpoint says; of no account in other types.
    """

    input_norm: Tensor
    qkv: Linear
    out: Linear
    post_norm: Tensor
    mlp: GatedMLP | Experts
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    kv_scales: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Parameters:
    """All weights. With tied embeddings `head` is the embedding table."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Dense


def allocate(architecture: Architecture, dtype: torch.dtype, device: torch.device | str) -> Parameters:
    """Room for a model's weights, not filled."""
    spec = architecture.spec

    def room(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def dense(outputs: int, inputs: int, bias: bool = False) -> Dense:
        return Dense(room(outputs, inputs), room(outputs) if bias else None)

    def mlp() -> GatedMLP | Experts:
        if spec.experts:
            width = spec.expert_ffn
            gate_up, down = room(spec.experts, 2 * width, spec.hidden), room(spec.experts, spec.hidden, width)
            return Experts(dense(spec.experts, spec.hidden), gate_up, down)
        return GatedMLP(dense(2 * spec.ffn, spec.hidden, spec.mlp_bias), dense(spec.hidden, spec.ffn, spec.mlp_bias))

    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    layers = tuple(
        Layer(
            input_norm=room(spec.hidden),
            qkv=dense(queries + 2 * keys, spec.hidden, spec.qkv_bias),
            out=dense(spec.hidden, queries, spec.o_bias),
            post_norm=room(spec.hidden),
            mlp=mlp(),
            q_norm=room(spec.head_dim) if spec.qk_norm else None,
            k_norm=room(spec.head_dim) if spec.qk_norm else None,
        )
        for _ in range(spec.layers)
    )
    embedding = room(spec.vocab, spec.hidden)
    head = Dense(embedding) if spec.tied else dense(spec.vocab, spec.hidden)
    return Parameters(embedding, layers, room(spec.hidden), head)
