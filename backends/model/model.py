"""A model that can be run, and its one forward pass.

The pass is written once for all families: they differ in biases, norms of queries and keys, windows, experts and tied
embeddings, which are facts of the weights and the architecture, not of the code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backends.model.architecture import Architecture
from backends.model.parameters import Experts, Layer, Parameters
from backends.ops.base import Operators, PackedBatch
from backends.quantization.experts import quantized_experts


class Model:
    """Weights with the operators that run them. Everything lies on one device."""

    def __init__(self, architecture: Architecture, parameters: Parameters, operators: Operators) -> None:
        self.architecture = architecture
        self.parameters = parameters
        self.operators = operators
        frequencies, self._factor = architecture.rope.frequencies(architecture.spec.head_dim)
        self._frequencies = frequencies.to(self.device)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.parameters.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self.parameters.embedding.dtype

    @property
    def recordable(self) -> bool:
        """Whether decode steps may be recorded: not with experts that are layers of their own, whom tokens visit by number."""
        apart = any(isinstance(layer.mlp, Experts) and layer.mlp.apart for layer in self.parameters.layers)
        return self.operators.recordable and not apart

    @torch.inference_mode()
    def forward(self, batch: PackedBatch, cache: Tensor, scales: Tensor | None = None) -> Tensor:
        """Run a packed batch, writing keys and values of its tokens into the cache.

        Args:
            cache: [layers, 2, pages, page size, KV heads, head dim]; keys, then values.
            scales: [layers, 2, pages, page size, KV heads] float16, of a cache in int8.

        Returns:
            Logits [R, vocabulary] in float32 for the batch's `sample_rows`.
        """
        ops, weights = self.operators, self.parameters
        architecture = self.architecture
        rotary = ops.rotary(batch.positions, self._frequencies, self._factor)
        residual = ops.embed(weights.embedding, batch.ids)
        x = ops.rms_norm(residual, weights.layers[0].input_norm, architecture.eps)
        for index, layer in enumerate(weights.layers):
            if index:
                x, residual = ops.add_rms_norm(x, residual, layer.input_norm, architecture.eps)
            how = {"kv_scales": layer.kv_scales if scales is None else tuple(scales[index])}
            x = self._attend(layer, x, rotary, batch, cache[index], how, architecture.windows[index])
            x, residual = ops.add_rms_norm(x, residual, layer.post_norm, architecture.eps)
            x = self._feed_forward(layer, x)
        x, residual = ops.gather(x, batch.sample_rows), ops.gather(residual, batch.sample_rows)
        x, _ = ops.add_rms_norm(x, residual, weights.norm, architecture.eps)
        return ops.logits(x, weights.head)

    def _attend(
        self, layer: Layer, x: Tensor, rotary: tuple[Tensor, Tensor], batch: PackedBatch, pages: Tensor, how: dict,
        window: int,
    ) -> Tensor:  # fmt: skip
        ops, spec = self.operators, self.architecture.spec
        heads = ops.linear(x, layer.qkv).unflatten(-1, (-1, spec.head_dim))
        q, k, v = heads.split((spec.heads, spec.kv_heads, spec.kv_heads), dim=1)
        if layer.q_norm is not None:
            q = ops.rms_norm(q, layer.q_norm, self.architecture.eps)
            k = ops.rms_norm(k, layer.k_norm, self.architecture.eps)
        q = ops.rope_and_cache(q, k, v, rotary, pages[0], pages[1], batch.slots, **how)
        mixed = ops.attention(q, pages[0], pages[1], batch, scale=spec.head_dim**-0.5, window=window, **how)
        return ops.linear(mixed.flatten(1), layer.out)

    def _feed_forward(self, layer: Layer, x: Tensor) -> Tensor:
        ops, mlp = self.operators, layer.mlp
        if isinstance(mlp, Experts):
            top_k, renormalise = self.architecture.spec.experts_per_token, self.architecture.renormalise
            if mlp.apart:
                return quantized_experts(ops, x, mlp.router, mlp.gate_up, mlp.down, top_k, renormalise)
            return ops.experts(x, mlp.router, mlp.gate_up, mlp.down, top_k, renormalise)
        return ops.linear(ops.silu_mul(ops.linear(x, mlp.gate_up)), mlp.down)
