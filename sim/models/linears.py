"""The linear layers of a model as one GPU sees them, under Megatron-style tensor parallelism and expert parallelism.

Column-parallel: qkv, gate/up, LM head (N is divided). Row-parallel: o, down (K is divided, an all-reduce follows).
Replicated: routers and the low-rank projections of MLA. Experts are split over the expert-parallel group first, their
width over what tensor parallelism is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sim.models.spec import ModelSpec


class Linear(NamedTuple):
    """`copies` matrices [n, k] (output, input features) in each of `layers` layers, on one GPU.

    `kind` is `attention`, `mlp`, `expert` (one copy per local expert), `shared`, `router` or `head`.
    """

    name: str
    kind: str
    n: int
    k: int
    layers: int
    copies: int = 1


def _split(width: int, ways: int) -> int:
    return -(-width // ways)


def linears(model: ModelSpec, tp: int = 1, ep: int = 1) -> tuple[Linear, ...]:
    """All linear layers of `model` on one of `tp` GPUs, experts over `ep` GPUs. The tied LM head is left out."""
    found = _attention(model, tp) + _mlp(model, tp, ep)
    if not model.tied:
        found.append(lm_head(model, tp))
    return tuple(found)


def lm_head(model: ModelSpec, tp: int = 1) -> Linear:
    """The LM head, tied or not: it is computed all the same."""
    return Linear("lm_head", "head", _split(model.vocab, tp), model.hidden, 1)


def expert_tensor_ways(tp: int, ep: int) -> int:
    """Over how many GPUs each expert's width is split: what expert parallelism leaves of tensor parallelism."""
    return max(tp // ep, 1)


def _attention(model: ModelSpec, tp: int) -> list[Linear]:
    h, layers, heads = model.hidden, model.layers, model.heads // tp
    mla = model.mla
    if mla is None:
        kv = model.local_kv_heads(tp)
        return [
            Linear("qkv_proj", "attention", (heads + 2 * kv) * model.head_dim, h, layers),
            Linear("o_proj", "attention", h, heads * model.head_dim, layers),
        ]
    width = heads * (mla.nope + mla.rope)
    if mla.q_lora:
        query = [
            Linear("q_a_proj", "attention", mla.q_lora, h, layers),
            Linear("q_b_proj", "attention", width, mla.q_lora, layers),
        ]
    else:
        query = [Linear("q_proj", "attention", width, h, layers)]
    return [
        *query,
        Linear("kv_a_proj", "attention", mla.cached, h, layers),
        Linear("kv_b_proj", "attention", heads * (mla.nope + mla.v), mla.kv_lora, layers),
        Linear("o_proj", "attention", h, heads * mla.v, layers),
    ]


def _mlp(model: ModelSpec, tp: int, ep: int) -> list[Linear]:
    h = model.hidden
    wide = 2 if model.gated else 1
    up = "gate_up_proj" if model.gated else "up_proj"
    found = []
    if model.dense_layers:
        ffn = _split(model.ffn, tp)
        found += [
            Linear(up, "mlp", wide * ffn, h, model.dense_layers),
            Linear("down_proj", "mlp", h, ffn, model.dense_layers),
        ]
    if model.moe_layers:
        layers, local = model.moe_layers, model.experts // ep
        ffn = _split(model.expert_ffn, expert_tensor_ways(tp, ep))
        found += [
            Linear("router", "router", model.experts, h, layers),
            Linear(f"expert_{up}", "expert", wide * ffn, h, layers, local),
            Linear("expert_down_proj", "expert", h, ffn, layers, local),
        ]
        if model.shared_experts:
            shared = _split(model.shared_experts * model.expert_ffn, tp)
            found += [
                Linear(f"shared_{up}", "shared", wide * shared, h, layers),
                Linear("shared_down_proj", "shared", h, shared, layers),
            ]
    return found
