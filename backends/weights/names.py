"""Where each tensor of a Hugging Face checkpoint belongs among a model's weights."""

from __future__ import annotations

from torch import Tensor

from backends.model.architecture import Architecture
from backends.model.parameters import Experts, GatedMLP, Layer, Linear, Parameters
from backends.quantization.base import QuantizedLinear

IGNORED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "attn.masked_bias")
"""Endings of tensors that old checkpoints carry and that are computed instead."""


def places(architecture: Architecture, parameters: Parameters) -> dict[str, Tensor]:
    """Name in the checkpoint → the part of `parameters` that it fills, a view. Every weight is in exactly one.

    Tensors of packed layers, which no single one of a checkpoint fills, have a number after the name of the layer's first part.
    """
    found = {"model.embed_tokens.weight": parameters.embedding, "model.norm.weight": parameters.norm}
    if not architecture.spec.tied:
        found["lm_head.weight"] = parameters.head.weight
    for index, layer in enumerate(parameters.layers):
        prefix = f"model.layers.{index}."
        found |= {prefix + name: tensor for name, tensor in _layer(architecture, layer).items()}
    return found


def _layer(architecture: Architecture, layer: Layer) -> dict[str, Tensor]:
    spec = architecture.spec
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    found = {"input_layernorm.weight": layer.input_norm, "post_attention_layernorm.weight": layer.post_norm}
    if layer.q_norm is not None:
        found |= {"self_attn.q_norm.weight": layer.q_norm, "self_attn.k_norm.weight": layer.k_norm}
    found |= _parts(
        layer.qkv, {f"self_attn.{name}_proj": size for name, size in zip("qkv", (queries, keys, keys), strict=True)}
    )
    found |= _parts(layer.out, {"self_attn.o_proj": spec.hidden})
    if isinstance(layer.mlp, GatedMLP):
        found |= _parts(layer.mlp.gate_up, {"mlp.gate_proj": spec.ffn, "mlp.up_proj": spec.ffn})
        return found | _parts(layer.mlp.down, {"mlp.down_proj": spec.hidden})
    return found | _experts(spec.family, spec.expert_ffn, layer.mlp)


def _parts(dense: Linear, sizes: dict[str, int]) -> dict[str, Tensor]:
    """The stacked parts of a linear layer by name."""
    if isinstance(dense, QuantizedLinear):
        return {f"{next(iter(sizes))}.packed.{number}": each for number, each in enumerate(dense.tensors())}
    found, start = {}, 0
    for name, size in sizes.items():
        found[f"{name}.weight"] = dense.weight[start : start + size]
        if dense.bias is not None:
            found[f"{name}.bias"] = dense.bias[start : start + size]
        start += size
    return found


def expert_names(family: str) -> tuple[str, str, str, str]:
    """Where a family's checkpoints have their experts: the block in a layer, and gate, up and down in an expert."""
    if family == "mixtral":
        return "block_sparse_moe", "w1", "w3", "w2"
    return "mlp", "gate_proj", "up_proj", "down_proj"


def _experts(family: str, width: int, experts: Experts) -> dict[str, Tensor]:
    prefix, gate, up, down = expert_names(family)
    found = {f"{prefix}.gate.weight": experts.router.weight}
    for index in range(len(experts.down)):
        name = f"{prefix}.experts.{index}."
        if not isinstance(experts.down, Tensor):
            found |= _parts(experts.gate_up[index], {f"{name}{gate}": width, f"{name}{up}": width})
            found |= _parts(experts.down[index], {f"{name}{down}": 0})
            continue
        found |= {
            f"{name}{gate}.weight": experts.gate_up[index, :width],
            f"{name}{up}.weight": experts.gate_up[index, width:],
            f"{name}{down}.weight": experts.down[index],
        }
    return found
