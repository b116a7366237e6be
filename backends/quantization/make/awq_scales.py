"""AWQ's scales put into a transformer layer: into weights, and into what makes their inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backends.model.architecture import Architecture
from backends.quantization.make.awq import search
from backends.quantization.make.forward import readers
from backends.quantization.make.statistics import Inputs
from backends.weights.names import expert_names


@dataclass(slots=True)
class Factors:
    """What columns of layers were multiplied with, and their rows divided by, by the layers' names."""

    columns: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, Tensor] = field(default_factory=dict)


def scale_layer(architecture: Architecture, weights: dict[str, Tensor], inputs: Inputs, group: int) -> Factors:
    """Scale a layer's `weights` (by name, changed in place) so that rounding them costs less, and nothing else changes.

    Experts that read the same norm have one scale, found with each's own tokens; their router has it too, unrounded. The down
    projection of an expert whom no token visits is left alone.
    """
    table, factors = readers(architecture), Factors()
    for source, watched, users in _sources(architecture):
        seen = [user for user in users if user in inputs.hessian]
        if not seen:
            continue
        together = [torch.cat([weights[f"{name}.weight"] for name in table[user]]) for user in seen]
        hessians = [inputs.hessian[user] * inputs.seen[user] for user in seen]
        scales = search(together, hessians, inputs.magnitude[watched], group=group)
        for name in [name for user in users for name in table[user]]:
            factors.columns[name] = scales
            weights[f"{name}.weight"] = weights[f"{name}.weight"] * scales
        if len(users) > 1 or users[0] != watched:
            router = f"{expert_names(architecture.spec.family)[0]}.gate.weight"
            weights[router] = weights[router] * scales
        weight = weights[f"{source}.weight"]
        weights[f"{source}.weight"] = weight / (scales if weight.ndim == 1 else scales[:, None])
        if weight.ndim > 1:
            factors.rows[source] = scales
        if f"{source}.bias" in weights:
            weights[f"{source}.bias"] = weights[f"{source}.bias"] / scales
    return factors


def _sources(architecture: Architecture) -> Iterator[tuple[str, str, list[str]]]:
    """(what makes an input, the input's name, the readers' names); queries that share a value head have no scales."""
    spec = architecture.spec
    yield "input_layernorm", "attention", ["attention"]
    experts = range(spec.experts)
    yield "post_attention_layernorm", "mlp", [f"mlp.{each}" for each in experts] if spec.experts else ["mlp"]
    if not spec.experts:
        yield "mlp.up_proj", "down", ["down"]
    block, _, up, _ = expert_names(spec.family)
    for each in experts:
        yield f"{block}.experts.{each}.{up}", f"down.{each}", [f"down.{each}"]
    if spec.heads == spec.kv_heads:
        yield "self_attn.v_proj", "out", ["out"]
