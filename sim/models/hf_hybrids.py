"""What families with recurrent layers, and with a learned choice of keys, say in their `config.json`.

As in `sim.models.hf_families`, defaults are those of the `transformers` configuration classes, and parameter counts are held
against `transformers`' own modules in the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sim.models.hf_families import every_layer_sparse, latent_attention
from sim.models.hf_keys import Config
from sim.models.spec import IndexerDims
from sim.models.states import StateDims

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def _kinds(config: Config, key: str, layers: int) -> list[str] | None:
    """The list of layer kinds at `key`, checked; None where there is none."""
    kinds = config.values.get(key)
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise config.error(key, f"expected a list of {layers} entries, one per layer")
    return kinds


def _recurrent(config: Config, otherwise: Callable[[int], bool]) -> int:
    """Layers of kind `linear_attention`, from `layer_types` or `layers_block_type`, else those for which `otherwise` holds."""
    layers = config.integer("num_hidden_layers")
    for key in ("layer_types", "layers_block_type"):
        kinds = _kinds(config, key, layers)
        if kinds is not None:
            return sum(kind in ("linear_attention", "mamba") for kind in kinds)
    return sum(otherwise(layer) for layer in range(layers))


def _state_dtype(config: Config, *keys: str) -> str:
    """The dtype of the recurrent state that a config asks for; "" where it asks for none."""
    for key in keys:
        if said := config.text(key):
            if said not in _DTYPES:
                raise config.error(key, f"unknown dtype {said!r}", hint=f"known: {', '.join(_DTYPES)}")
            return _DTYPES[said]
    return ""


def _without_state(fields: dict[str, Any]) -> dict[str, Any]:
    """The same fields, with no recurrent layers where there are none."""
    state = fields.get("state")
    return fields | {"state": None} if state is not None and not state.layers else fields


def _delta(config: Config) -> dict[str, Any]:
    """What Qwen3-Next and Qwen3.5 share: gated attention in one layer of four, Gated DeltaNet in the others."""
    interval = config.integer("full_attention_interval", default=4)
    state = StateDims(
        kind="gated-delta",
        layers=_recurrent(config, lambda layer: bool((layer + 1) % interval)),
        heads=config.integer("linear_num_value_heads", default=32),
        groups=config.integer("linear_num_key_heads", default=16),
        key_dim=config.integer("linear_key_head_dim", default=128),
        value_dim=config.integer("linear_value_head_dim", default=128),
        conv=config.integer("linear_conv_kernel_dim", default=4),
        dtype=_state_dtype(config, "mamba_ssm_dtype", "mamba_ssm_cache_dtype"),
    )
    bias = config.flag("attention_bias", False)
    return _without_state({
        "state": state, "head_dim": config.integer("head_dim", default=256), "qk_norm": True,
        "attn_gate": config.flag("attn_output_gate", True), "qkv_bias": bias, "o_bias": bias,
    })  # fmt: skip


def _delta_moe(config: Config) -> dict[str, Any]:
    every_layer_sparse(config)
    shared = config.integer("shared_expert_intermediate_size", default=512, least=0)
    return _delta(config) | {
        "experts": config.integer("num_experts", default=512),
        "experts_per_token": config.integer("num_experts_per_tok", default=10),
        "expert_ffn": config.integer("moe_intermediate_size", default=512),
        "shared_experts": 1 if shared else 0,
        "shared_ffn": shared,
        "shared_gate": bool(shared),
    }


def _mamba2(config: Config, layers: int, inner: int, **keys: str) -> StateDims:
    heads = config.integer(keys["heads"], default=128)
    if inner % heads:
        raise config.error(keys["heads"], f"{inner} channels do not divide into {heads} heads")
    return StateDims(
        kind="mamba2", layers=layers, heads=heads, groups=config.integer(keys["groups"], default=1),
        key_dim=config.integer(keys["state"], default=256), value_dim=inner // heads,
        conv=config.integer(keys["conv"], default=4),
        dtype=_state_dtype(config, "mamba_ssm_cache_dtype", "mamba_ssm_dtype"),
    )  # fmt: skip


_GRANITE = {"heads": "mamba_n_heads", "groups": "mamba_n_groups", "state": "mamba_d_state", "conv": "mamba_d_conv"}
_NEMOTRON = {"heads": "mamba_num_heads", "groups": "n_groups", "state": "ssm_state_size", "conv": "conv_kernel"}


def _plain_mamba2(config: Config) -> None:
    for key in ("mamba_proj_bias", "use_bias"):
        if config.flag(key, False):
            raise config.error(key, "biases of these projections are not modelled")
    for key in ("mamba_conv_bias", "use_conv_bias"):
        if not config.flag(key, True):
            raise config.error(key, "a convolution without bias is not modelled")


def _granite_hybrid(config: Config) -> dict[str, Any]:
    _plain_mamba2(config)
    inner = config.integer("mamba_expand", default=2) * config.integer("hidden_size")
    experts = config.integer("num_local_experts", default=8, least=0)
    shared = config.integer("shared_intermediate_size", default=1024)
    fields: dict[str, Any] = {"ffn": shared}
    if experts:
        fields = {
            "experts": experts, "experts_per_token": config.integer("num_experts_per_tok", default=2),
            "expert_ffn": config.integer("intermediate_size"), "shared_experts": 1, "shared_ffn": shared,
        }  # fmt: skip
    bias = config.flag("attention_bias", False)
    return _without_state({
        "state": _mamba2(config, _recurrent(config, lambda layer: True), inner, **_GRANITE),
        "qkv_bias": bias, "o_bias": bias,
    } | fields)  # fmt: skip


def _bamba(config: Config) -> dict[str, Any]:
    _plain_mamba2(config)
    inner = config.integer("mamba_expand", default=2) * config.integer("hidden_size")
    attending = config.values.get("attn_layer_indices") or []
    if not isinstance(attending, list):
        raise config.error("attn_layer_indices", "expected a list of layers")
    bias = config.flag("attention_bias", False)
    state = _mamba2(config, _recurrent(config, lambda layer: layer not in attending), inner, **_GRANITE)
    return {"state": state, "qkv_bias": bias, "o_bias": bias, "mlp_bias": config.flag("mlp_bias", False)}


def _falcon_h1(config: Config) -> dict[str, Any]:
    """Attention and Mamba-2 read the same input in every layer."""
    _plain_mamba2(config)
    layers = config.integer("num_hidden_layers")
    hidden = config.integer("hidden_size")
    inner = config.integer("mamba_d_ssm", default=config.integer("mamba_expand", default=2) * hidden)
    if config.flag("projectors_bias", False):
        raise config.error("projectors_bias", "biases of these projections are not modelled")
    bias = config.flag("attention_bias", False)
    state = replace(_mamba2(config, layers, inner, **_GRANITE), norm=config.flag("mamba_rms_norm", False))
    return {
        "state": state, "attention_layers": layers, "qkv_bias": bias, "o_bias": bias,
        "mlp_bias": config.flag("mlp_bias", False),
    }  # fmt: skip


_NEMOTRON_SIGNS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_NEMOTRON_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}


def _nemotron_kinds(config: Config) -> list[str]:
    pattern = config.values.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        unknown = set(pattern) - set(_NEMOTRON_SIGNS)
        if unknown:
            raise config.error("hybrid_override_pattern", f"unknown sign {min(unknown)!r}", hint="known: M, *, - and E")
        return [_NEMOTRON_SIGNS[sign] for sign in pattern]
    for key in ("layers_block_type", "layer_types"):
        kinds = config.values.get(key)
        if isinstance(kinds, list):
            found = [_NEMOTRON_KINDS.get(kind, kind) for kind in kinds]
            unknown = set(found) - set(_NEMOTRON_SIGNS.values())
            if unknown:
                raise config.error(key, f"unknown kind of layer {min(map(str, unknown))!r}")
            return found
    raise config.error("hybrid_override_pattern", "is missing", hint="it says which layers are Mamba, attention or MLP")


def _nemotron_h(config: Config) -> dict[str, Any]:
    """Layers that are one thing each: Mamba-2, attention, an MLP or experts."""
    _plain_mamba2(config)
    kinds = _nemotron_kinds(config)
    inner = config.integer("mamba_num_heads", default=128) * config.integer("mamba_head_dim", default=64)
    state = _mamba2(config, kinds.count("linear_attention"), inner, **_NEMOTRON)
    fields = {
        "layers": len(kinds), "state": state, "gated": False, "norms": 1,
        "head_dim": config.integer("attention_head_dim", "head_dim", default=128),
        "attention_layers": kinds.count("full_attention"), "mlp_layers": kinds.count("mlp") + kinds.count("moe"),
        "mlp_bias": config.flag("mlp_bias", False),
    }  # fmt: skip
    if sparse := kinds.count("moe"):
        shared = config.integer("moe_shared_expert_intermediate_size", default=7688, least=0)
        fields |= {
            "experts": config.integer("n_routed_experts", default=8),
            "experts_per_token": config.integer("num_experts_per_tok", default=2),
            "expert_ffn": config.integer("moe_intermediate_size", default=7688),
            "expert_hidden": config.integer("moe_latent_size", default=0, least=0),
            "shared_experts": 1 if shared else 0, "shared_ffn": shared, "router_bias": True,
            "dense_first_layers": fields["mlp_layers"] - sparse,
        }  # fmt: skip
    return _without_state(fields)


def _jamba(config: Config) -> dict[str, Any]:
    layers, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    period, offset = (
        config.integer(f"attn_layer_{key}", default=d, least=0) for key, d in (("period", 8), ("offset", 4))
    )
    every, first = (
        config.integer(f"expert_layer_{key}", default=d, least=0) for key, d in (("period", 2), ("offset", 1))
    )
    if not period or not every:
        raise config.error("attn_layer_period" if not period else "expert_layer_period", "must be at least 1")
    experts = config.integer("num_experts", default=16)
    sparse = sum(layer % every == first for layer in range(layers)) if experts > 1 else 0
    rank = config.values.get("mamba_dt_rank", "auto")
    state = StateDims(
        kind="mamba1", layers=sum(layer % period != offset for layer in range(layers)),
        heads=config.integer("mamba_expand", default=2) * hidden, groups=1,
        key_dim=config.integer("mamba_d_state", default=16), value_dim=1, conv=config.integer("mamba_d_conv", default=4),
        rank=-(-hidden // 16) if rank == "auto" else config.integer("mamba_dt_rank"),
    )  # fmt: skip
    fields: dict[str, Any] = {"state": state}
    if sparse:
        fields |= {
            "experts": experts, "experts_per_token": config.integer("num_experts_per_tok", default=2),
            "expert_ffn": config.integer("intermediate_size"), "dense_first_layers": layers - sparse,
        }  # fmt: skip
    return fields


def _minimax(config: Config) -> dict[str, Any]:
    """Lightning attention in most layers (MiniMax-01, M1)."""
    heads = config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", default=config.integer("hidden_size") // heads)
    kinds = config.values.get("attn_type_list")  # of the first checkpoints: 0 = linear
    if isinstance(kinds, list) and config.values.get("layer_types") is None:
        recurrent = kinds.count(0)
    else:
        recurrent = _recurrent(config, lambda layer: bool(layer % 2))
    state = StateDims("lightning", recurrent, heads, heads, head_dim, head_dim, conv=0, dtype="fp32")
    return {
        "state": state, "head_dim": head_dim, "experts": config.integer("num_local_experts", default=8),
        "experts_per_token": config.integer("num_experts_per_tok", default=2),
        "expert_ffn": config.integer("intermediate_size"),
    }  # fmt: skip


def _kimi_linear(config: Config) -> dict[str, Any]:
    nested = config.values.get("linear_attn_config") or {}
    if not isinstance(nested, dict):
        raise config.error("linear_attn_config", "expected an object")
    inner = Config(nested, config.file)
    heads = inner.integer("num_heads", default=config.integer("linear_num_heads", default=32))
    dim = inner.integer("head_dim", default=config.integer("linear_head_dim", default=128))
    conv = inner.integer("short_conv_kernel_size", default=config.integer("linear_conv_kernel_dim", default=4))
    listed = nested.get("kda_layers")
    layers = config.integer("num_hidden_layers")
    if config.values.get("layer_types") is None and isinstance(listed, list):
        recurrent = len(listed)
    else:
        recurrent = _recurrent(config, lambda layer: not (layer and layer % 4 == 0))
    mla = latent_attention(config)
    kinds = _kinds(config, "mlp_layer_types", layers)
    dense = config.integer("first_k_dense_replace", default=1, least=0) if kinds is None else kinds.count("dense")
    return {
        "state": StateDims("kda", recurrent, heads, heads, dim, dim, conv, rank=dim),
        "mla": mla, "head_dim": mla.nope + mla.rope,
        "max_position": config.integer("model_max_length", "max_position_embeddings", default=1 << 20),
        "experts": config.integer("num_experts", "num_local_experts", default=256),
        "experts_per_token": config.integer("num_experts_per_token", "num_experts_per_tok", default=8),
        "expert_ffn": config.integer("moe_intermediate_size", default=1024),
        "shared_experts": config.integer("num_shared_experts", "n_shared_experts", default=1, least=0),
        "dense_first_layers": min(dense, layers), "router_bias": True,
    }  # fmt: skip


def _sparse_mla(config: Config) -> dict[str, Any]:
    """DeepSeek-V3.2 and GLM-5: latent attention over the keys that an indexer chooses."""
    layers = config.integer("num_hidden_layers")
    mla = latent_attention(config)
    if not mla.q_lora:
        raise config.error("q_lora_rank", "is missing", hint="the indexer reads the low-rank queries")
    kinds = _kinds(config, "mlp_layer_types", layers)
    dense = config.integer("first_k_dense_replace", default=3, least=0) if kinds is None else kinds.count("dense")
    bias = config.flag("attention_bias", False)
    if bias:
        raise config.error("attention_bias", "biases of latent attention are not modelled")
    index = IndexerDims(
        heads=config.integer("index_n_heads", default=64), dim=config.integer("index_head_dim", default=128),
        topk=config.integer("index_topk", default=2048), layers=_indexing(config, layers),
    )  # fmt: skip
    return {
        "mla": mla, "indexer": index, "head_dim": mla.nope + mla.rope, "router_bias": True,
        "experts": config.integer("n_routed_experts", default=256),
        "experts_per_token": config.integer("num_experts_per_tok", default=8),
        "expert_ffn": config.integer("moe_intermediate_size", default=2048),
        "shared_experts": config.integer("n_shared_experts", default=1, least=0),
        "dense_first_layers": min(dense, layers),
    }  # fmt: skip


def _indexing(config: Config, layers: int) -> int:
    """Layers with an indexer of their own; the others take the choice of the one before."""
    kinds = _kinds(config, "indexer_types", layers)
    if kinds is not None:
        return kinds.count("full")
    pattern = config.values.get("index_topk_pattern")
    if isinstance(pattern, (str, list)):
        return sum(kind in ("F", "full") for kind in pattern)
    every, offset = config.integer("index_topk_freq", default=1), config.integer("index_skip_topk_offset", default=2)
    return sum(max(layer - offset + 1, 0) % every == 0 for layer in range(layers))


HYBRID_FAMILIES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "bamba": _bamba,
    "deepseek_v32": _sparse_mla,
    "falcon_h1": _falcon_h1,
    "glm_moe_dsa": _sparse_mla,
    "granitemoehybrid": _granite_hybrid,
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "minimax": _minimax,
    "nemotron_h": _nemotron_h,
    "qwen3_5_moe_text": _delta_moe,
    "qwen3_5_text": _delta,
    "qwen3_next": _delta_moe,
}
