"""What newer families say in their `config.json`; as `sim.models.hf_families`, which is full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.models.hf_families import FAMILIES, latent_attention, sliding_layers
from sim.models.hf_keys import Config
from sim.models.spec import FullDims


def _biases(config: Config, key: str = "attention_bias", default: bool = False) -> dict[str, Any]:
    bias = config.flag(key, default)
    return {"qkv_bias": bias, "o_bias": bias}


def _apertus(config: Config) -> dict[str, Any]:
    return _biases(config) | {"gated": False, "qk_norm": True}


def _olmo3(config: Config) -> dict[str, Any]:
    fields = _biases(config) | {"qk_norm": True}
    if config.values.get("sliding_window") is not None:
        layers = config.integer("num_hidden_layers")
        listed = config.values.get("layer_types") is not None
        fields |= {
            "window": config.integer("sliding_window"),
            "window_layers": sliding_layers(config) if listed else layers - layers // 4,
        }
    return fields


def _hunyuan(config: Config) -> dict[str, Any]:
    return _biases(config) | {"qk_norm": config.flag("use_qk_norm", True)}


def _hunyuan_moe(config: Config) -> dict[str, Any]:
    chosen, width = config.values.get("moe_topk", 1), config.values.get("moe_intermediate_size")
    for key, value in (("moe_topk", chosen), ("moe_intermediate_size", width)):
        if isinstance(value, list) and (not value or len(set(map(str, value))) > 1):
            raise config.error(key, "layers of different shapes are not modelled")
    plain = {key: value[0] if isinstance(value, list) else value for key, value in config.values.items()
             if key in ("moe_topk", "moe_intermediate_size", "intermediate_size")}  # fmt: skip
    inner = Config(plain, config.file)
    return _hunyuan(config) | {
        "experts": config.integer("num_experts", default=1),
        "experts_per_token": inner.integer("moe_topk", default=1),
        "expert_ffn": inner.integer("moe_intermediate_size", "intermediate_size"),
        "shared_experts": 1,
        "shared_ffn": config.integer("intermediate_size"),
    }


def _ernie(config: Config) -> dict[str, Any]:
    bias = config.flag("use_bias", False)
    return _biases(config, "use_bias") | {
        "mlp_bias": bias, "tied": config.flag("tie_word_embeddings", True),
        "head_dim": config.integer(
            "head_dim", default=config.integer("hidden_size") // config.integer("num_attention_heads")
        ),
    }  # fmt: skip


def _ernie_dense(config: Config) -> dict[str, Any]:
    return _ernie(config) | {"head_dim": config.integer("head_dim", default=128)}


def _ernie_moe(config: Config) -> dict[str, Any]:
    layers = config.integer("num_hidden_layers")
    end = config.values.get("moe_layer_end_index")
    if config.integer("moe_layer_interval", default=1) != 1 or end not in (None, -1, layers - 1):
        raise config.error("moe_layer_interval", "dense layers between MoE layers are not supported")
    return _ernie(config) | {
        "experts": config.integer("moe_num_experts", default=64),
        "experts_per_token": config.integer("moe_k", default=6),
        "expert_ffn": config.integer("moe_intermediate_size", default=1536),
        "shared_experts": config.integer("moe_num_shared_experts", default=2, least=0),
        "dense_first_layers": config.integer("moe_layer_start_index", default=1, least=0),
        "router_bias": True,
    }


def _sparse(config: Config, experts: str, chosen: int, shared: str) -> dict[str, Any]:
    """Experts in the words of DeepSeek's descendants, with a bias of the router."""
    kinds = config.values.get("mlp_layer_types")
    dense = config.integer("first_k_dense_replace", default=1, least=0) if kinds is None else list(kinds).count("dense")
    return {
        "experts": config.integer(experts),
        "experts_per_token": config.integer("num_experts_per_tok", default=chosen),
        "expert_ffn": config.integer("moe_intermediate_size"),
        "shared_experts": config.integer(shared, default=1, least=0),
        "dense_first_layers": min(dense, config.integer("num_hidden_layers")),
        "router_bias": True,
    }


def _dots(config: Config) -> dict[str, Any]:
    fields = _biases(config) | {"qk_norm": True} | _sparse(config, "n_routed_experts", 6, "n_shared_experts")
    kinds = config.values.get("layer_types")
    if isinstance(kinds, list) and "sliding_attention" in kinds and config.values.get("sliding_window") is not None:
        fields |= {"window": config.integer("sliding_window"), "window_layers": sliding_layers(config)}
    return fields


def _latent_moe(config: Config) -> dict[str, Any]:
    if config.flag("attention_bias", False):
        raise config.error("attention_bias", "biases of latent attention are not modelled")
    mla = latent_attention(config)
    experts = _sparse(config, "n_routed_experts", 4, "n_shared_experts")
    return {"mla": mla, "head_dim": mla.nope + mla.rope} | experts


def _exaone_moe(config: Config) -> dict[str, Any]:
    layers = config.integer("num_hidden_layers")
    fields = {"qk_norm": True} | _sparse(config, "num_experts", 8, "num_shared_experts")
    if config.values.get("layer_types") is not None:
        window = sliding_layers(config)
    else:
        pattern = config.values.get("sliding_window_pattern", 4)
        every = (
            len(pattern)
            if isinstance(pattern, str) and pattern
            else config.integer("sliding_window_pattern", default=4)
        )
        window = layers - layers // every
    return fields | {"window": config.integer("sliding_window", default=4096), "window_layers": window}


def _minicpm3(config: Config) -> dict[str, Any]:
    values = dict(config.values)
    if values.get("v_head_dim") is None:
        values["v_head_dim"] = config.integer("hidden_size") // config.integer("num_attention_heads")
    mla = latent_attention(Config(values, config.file))
    return {
        "mla": mla, "head_dim": mla.nope + mla.rope, "tied": config.flag("tie_word_embeddings", True),
        "mlp_bias": config.flag("mlp_bias", False),
    }  # fmt: skip


def _granite_shared(config: Config) -> dict[str, Any]:
    shared = config.integer("shared_intermediate_size", default=0, least=0)
    return FAMILIES["granitemoe"](config) | {"shared_experts": 1 if shared else 0, "shared_ffn": shared}


def _internlm3(config: Config) -> dict[str, Any]:
    bias = config.flag("bias", False)
    return {
        "qkv_bias": config.flag("qkv_bias", False) or config.flag("attention_bias", False), "o_bias": bias,
        "mlp_bias": bias or config.flag("mlp_bias", False),
    }  # fmt: skip


def _bailing(config: Config) -> dict[str, Any]:
    bias = config.flag("use_qkv_bias", False)
    return {
        "qkv_bias": bias, "o_bias": config.flag("use_bias", False), "qk_norm": config.flag("use_qk_norm", False),
        "head_dim": config.integer("head_dim", default=128),
    } | _sparse(config, "num_experts", 8, "num_shared_experts")  # fmt: skip


def _gemma4(config: Config) -> dict[str, Any]:
    """The larger ones: windowed layers and the others have heads of their own. Small ones share keys and embed each layer."""
    for key in ("num_kv_shared_layers", "hidden_size_per_layer_input"):
        if config.values.get(key, 1 if key.startswith("hidden") else 0):
            raise config.error(key, "layers that share keys, and embeddings of layers, are not modelled")
    layers = config.integer("num_hidden_layers")
    listed = config.values.get("layer_types") is not None
    equal = config.flag("attention_k_eq_v", False)
    heads = config.integer("num_key_value_heads", default=4)
    other = config.values.get("per_layer_config") or {}  # as transformers 5 writes it: layer → what is its own
    if not isinstance(other, dict) or not all(isinstance(each, dict) for each in other.values()):
        raise config.error("per_layer_config", "expected an object of layers")
    own = Config(next(iter(other.values()), {}), config.file)
    far = config.integer("num_global_key_value_heads", default=heads) if equal else heads
    width = own.integer("head_dim", default=config.integer("global_head_dim", default=512))
    far = own.integer("num_key_value_heads", default=far)
    bias = config.flag("attention_bias", False)
    fields: dict[str, Any] = {
        "head_dim": config.integer("head_dim", default=256), "kv_heads": heads,
        "full": FullDims(far, width, equal),
        "tied": config.flag("tie_word_embeddings", True), "norms": 4, "qk_norm": True, "qkv_bias": bias, "o_bias": bias,
        "window": config.integer("sliding_window", default=512),
        "window_layers": sliding_layers(config) if listed else layers - max(layers // 6, 1),
    }  # fmt: skip
    if config.flag("enable_moe_block", False):  # experts beside the MLP, which every token visits
        fields |= {
            "experts": config.integer("num_experts"), "experts_per_token": config.integer("top_k_experts"),
            "expert_ffn": config.integer("moe_intermediate_size"), "shared_experts": 1,
            "shared_ffn": config.integer("intermediate_size"), "norms": 7,
        }  # fmt: skip
    return fields


NEWER_FAMILIES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "apertus": _apertus,
    "bailing_moe": _bailing,
    "bailing_moe_v2": _bailing,
    "dots1": _dots,
    "ernie4_5": _ernie_dense,
    "ernie4_5_moe": _ernie_moe,
    "exaone": FAMILIES["llama"],
    "exaone_moe": _exaone_moe,
    "gemma4_text": _gemma4,
    "glm4_moe_lite": _latent_moe,
    "granitemoeshared": _granite_shared,
    "hunyuan_v1_dense": _hunyuan,
    "hunyuan_v1_moe": _hunyuan_moe,
    "internlm3": _internlm3,
    "minicpm3": _minicpm3,
    "olmo3": _olmo3,
}
