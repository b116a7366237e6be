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
    found = (_attention(model, tp) if model.attending_layers else []) + _recurrent(model, tp) + _mlp(model, tp, ep)
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
    h, layers, heads = model.hidden, model.attending_layers, model.heads // tp
    mla = model.mla
    if mla is None:
        kv = model.local_kv_heads(tp)
        queries = 2 * heads if model.attn_gate else heads
        if model.full is not None:
            return _two_kinds(model, tp)
        return [
            Linear("qkv_proj", "attention", (queries + 2 * kv) * model.head_dim, h, layers),
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
        *_indexer(model),
        Linear("kv_a_proj", "attention", mla.cached, h, layers),
        Linear("kv_b_proj", "attention", heads * (mla.nope + mla.v), mla.kv_lora, layers),
        Linear("o_proj", "attention", h, heads * mla.v, layers),
    ]


def _two_kinds(model: ModelSpec, tp: int) -> list[Linear]:
    """Attention whose windowed layers have other heads than the rest."""
    h, heads, full = model.hidden, model.heads // tp, model.full
    near, far = model.near_layers, model.attending_layers - model.near_layers
    own, theirs = model.local_kv_heads(tp), max(-(-full.kv_heads // tp), 1)
    return [
        Linear("qkv_proj", "attention", (heads + 2 * own) * model.head_dim, h, near),
        Linear("o_proj", "attention", h, heads * model.head_dim, near),
        Linear("full_qkv_proj", "attention", (heads + (1 if full.shared else 2) * theirs) * full.head_dim, h, far),
        Linear("full_o_proj", "attention", h, heads * full.head_dim, far),
    ]


def _indexer(model: ModelSpec) -> list[Linear]:
    """Projections of the indexer, which every GPU has in full; the heads' weights stay in the model's dtype."""
    index = model.indexer
    if index is None:
        return []
    layers = index.layers
    return [
        Linear("index_q_proj", "attention", index.heads * index.dim, model.mla.q_lora, layers),
        Linear("index_k_proj", "attention", index.dim, model.hidden, layers),
        Linear("index_weights_proj", "router", index.heads, model.hidden, layers),
    ]


def _recurrent(model: ModelSpec, tp: int) -> list[Linear]:
    """Projections of recurrent layers. What makes decays and time steps is small and stays in the model's dtype."""
    state, h = model.state, model.hidden
    if state is None:
        return []
    heads, groups = state.local(tp)
    inner, keys, layers = heads * state.value_dim, groups * state.key_dim, state.layers
    out = Linear("state_out_proj", "attention", h, inner, layers)
    if state.kind == "gated-delta":
        return [
            Linear("state_in_proj", "attention", 2 * keys + 2 * inner, h, layers),
            Linear("state_decay_proj", "router", 2 * heads, h, layers),
            out,
        ]
    if state.kind == "kda":
        return [
            Linear("state_in_proj", "attention", 2 * keys + inner, h, layers),
            Linear("state_decay_proj", "router", 2 * state.rank + heads, h, layers),
            Linear("state_rank_proj", "router", 2 * inner, state.rank, layers),
            out,
        ]
    if state.kind == "mamba2":
        return [Linear("state_in_proj", "attention", 2 * inner + 2 * keys + heads, h, layers), out]
    if state.kind == "mamba1":
        return [
            Linear("state_in_proj", "attention", 2 * inner, h, layers),
            Linear("state_decay_proj", "router", state.rank + 2 * state.key_dim, inner, layers),
            Linear("state_rank_proj", "router", inner, state.rank, layers),
            out,
        ]
    return [  # lightning
        Linear("state_in_proj", "attention", 2 * keys + inner, h, layers),
        Linear("state_gate_proj", "attention", inner, h, layers),
        out,
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
        ffn, seen = _split(model.expert_ffn, expert_tensor_ways(tp, ep)), model.expert_input
        found += [
            Linear("router", "router", model.experts, h, layers),
            Linear(f"expert_{up}", "expert", wide * ffn, seen, layers, local),
            Linear("expert_down_proj", "expert", seen, ffn, layers, local),
        ]
        if seen != h:
            found += [
                Linear("narrow_proj", "shared", seen, h, layers),
                Linear("widen_proj", "shared", h, seen, layers),
            ]
        if model.shared_experts:
            shared = _split(model.shared_width, tp)
            found += [
                Linear(f"shared_{up}", "shared", wide * shared, h, layers),
                Linear("shared_down_proj", "shared", h, shared, layers),
            ]
    return found
