"""What each family of models says differently in its `config.json`: one small function a family.

Defaults are those of the `transformers` configuration classes, for keys that a config may leave out. Parameter counts are
held against `transformers`' own modules in the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.models.hf_keys import Config
from sim.models.spec import MLADims

HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
FFN = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "moe_intermediate_size")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
FOUR_TIMES = ("bloom", "falcon", "gpt2", "gptj", "mpt")
"""Families whose MLP is four times as wide as the model where the config does not say."""


def sliding_layers(config: Config) -> int:
    """Layers with a sliding window, from `layer_types` where there is one, else every other layer."""
    kinds = config.values.get("layer_types")
    layers = config.integer("num_hidden_layers")
    if kinds is None:
        return (layers + 1) // 2
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise config.error("layer_types", f"expected a list of {layers} entries, one per layer")
    return sum(kind == "sliding_attention" for kind in kinds)


def _llama(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": config.flag("mlp_bias", False)}


def _mistral(config: Config) -> dict[str, Any]:
    if config.values.get("sliding_window") is None:
        return {}
    return {"window": config.integer("sliding_window"), "window_layers": config.integer("num_hidden_layers")}


def _mixtral(config: Config) -> dict[str, Any]:
    return _mistral(config) | {
        "experts": config.integer("num_local_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_ffn": config.integer("intermediate_size"),
    }


def _qwen2(config: Config) -> dict[str, Any]:
    fields: dict[str, Any] = {"qkv_bias": True}
    if config.flag("use_sliding_window", False):
        layers = config.integer("num_hidden_layers")
        first = config.integer("max_window_layers", default=layers, least=0)
        fields |= {"window": config.integer("sliding_window"), "window_layers": max(layers - first, 0)}
    return fields


def _qwen3(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    head_dim = config.integer("head_dim", default=128)
    return _qwen2(config) | {"qkv_bias": bias, "o_bias": bias, "qk_norm": True, "head_dim": head_dim}


def _qwen3_moe(config: Config) -> dict[str, Any]:
    every_layer_sparse(config)
    head_dim = config.integer(
        "head_dim", default=config.integer("hidden_size") // config.integer("num_attention_heads")
    )
    return _qwen3(config) | {
        "head_dim": head_dim,
        "experts": config.integer("num_experts", "num_local_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_ffn": config.integer("moe_intermediate_size"),
    }


def _gemma2(config: Config) -> dict[str, Any]:
    return {
        "head_dim": config.integer("head_dim", default=256),
        "tied": config.flag("tie_word_embeddings", True),
        "window": config.integer("sliding_window", default=4096),
        "window_layers": sliding_layers(config),
        "norms": 4,
    }


def latent_attention(config: Config) -> MLADims:
    """The dimensions of multi-head latent attention."""
    return MLADims(
        q_lora=config.integer("q_lora_rank", default=0),
        kv_lora=config.integer("kv_lora_rank"),
        rope=config.integer("qk_rope_head_dim"),
        nope=config.integer("qk_nope_head_dim"),
        v=config.integer("v_head_dim"),
    )


def _deepseek(config: Config) -> dict[str, Any]:
    mla = latent_attention(config)
    return {
        "mla": mla,
        "head_dim": mla.nope + mla.rope,
        "experts": config.integer("n_routed_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_ffn": config.integer("moe_intermediate_size"),
        "shared_experts": config.integer("n_shared_experts", default=0, least=0),
        "dense_first_layers": config.integer("first_k_dense_replace", default=0, least=0),
        "router_bias": config.text("topk_method") == "noaux_tc",
    }


def _gpt_oss(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", True)
    return {
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": True,
        "router_bias": True,
        "sinks": True,
        "experts": config.integer("num_local_experts"),
        "experts_per_token": config.integer("num_experts_per_tok", "experts_per_token"),
        "expert_ffn": config.integer("intermediate_size"),
        "window": config.integer("sliding_window", default=128),
        "window_layers": sliding_layers(config),
    }


def _opt(config: Config) -> dict[str, Any]:
    hidden = config.integer("hidden_size")
    if config.integer("word_embed_proj_dim", default=hidden) != hidden:
        raise config.error("word_embed_proj_dim", "projected embeddings (OPT-350M) are not supported")
    return {
        "gated": False,
        "tied": config.flag("tie_word_embeddings", True),
        "qkv_bias": True,
        "o_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "learned_positions": config.integer("max_position_embeddings", default=2048) + 2,
    }


def _gemma(config: Config) -> dict[str, Any]:
    return {
        "head_dim": config.integer("head_dim", default=256),
        "tied": config.flag("tie_word_embeddings", True),
        "qkv_bias": config.flag("attention_bias", False),
        "o_bias": config.flag("attention_bias", False),
    }


def _gemma3(config: Config) -> dict[str, Any]:
    layers = config.integer("num_hidden_layers")
    pattern = config.integer("sliding_window_pattern", default=6)  # one layer in so many sees everything
    listed = config.values.get("layer_types") is not None
    return _gemma(config) | {
        "norms": 4,
        "qk_norm": True,
        "window": config.integer("sliding_window", default=4096),
        "window_layers": sliding_layers(config) if listed else layers - layers // pattern,
    }


def _phi(config: Config) -> dict[str, Any]:
    return {
        "gated": False, "parallel_block": True, "norms": 1, "norm_bias": True, "qkv_bias": True, "o_bias": True,
        "mlp_bias": True, "head_bias": True,
    }  # fmt: skip


def _phimoe(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    return _mixtral(config) | {
        "qkv_bias": bias, "o_bias": bias, "norm_bias": True, "head_bias": config.flag("lm_head_bias", False),
    }  # fmt: skip


def _cohere(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    return {
        "tied": config.flag("tie_word_embeddings", True),
        "parallel_block": True,
        "norms": 1,
        "qkv_bias": bias,
        "o_bias": bias,
    }


def _cohere2(config: Config) -> dict[str, Any]:
    layers = config.integer("num_hidden_layers")
    pattern = config.integer("sliding_window_pattern", "_sliding_window_pattern", default=4)
    listed = config.values.get("layer_types") is not None
    return _cohere(config) | {
        "window": config.integer("sliding_window", default=4096),
        "window_layers": sliding_layers(config) if listed else layers - layers // pattern,
    }


def _falcon(config: Config) -> dict[str, Any]:
    heads = config.integer(*HEADS)
    newer = config.flag("new_decoder_architecture", False)
    if newer:
        kv_heads = config.integer("num_kv_heads", "n_head_kv", default=heads)
    else:
        kv_heads = 1 if config.flag("multi_query", True) else heads
    parallel = newer or config.flag("parallel_attn", True)
    bias = config.flag("bias", False)
    norms = config.integer("num_ln_in_parallel_attn", default=2 if newer else 1) if parallel else 2
    return {
        "kv_heads": kv_heads, "head_dim": config.integer(*HIDDEN) // heads, "gated": False, "parallel_block": parallel,
        "norms": norms, "norm_bias": True, "qkv_bias": bias, "o_bias": bias, "mlp_bias": bias,
        "tied": config.flag("tie_word_embeddings", True),
    }  # fmt: skip


_LAYER_NORM = {"gated": False, "norm_bias": True, "qkv_bias": True, "o_bias": True, "mlp_bias": True}


def _bloom(config: Config) -> dict[str, Any]:
    return _LAYER_NORM | {"tied": config.flag("tie_word_embeddings", True), "embedding_norm": True}


def _gpt2(config: Config) -> dict[str, Any]:
    return _LAYER_NORM | {
        "tied": config.flag("tie_word_embeddings", True),
        "learned_positions": config.integer("n_positions", default=1024),
    }


def _gptj(config: Config) -> dict[str, Any]:
    return {
        "gated": False, "parallel_block": True, "norms": 1, "norm_bias": True, "mlp_bias": True, "head_bias": True,
        "tied": config.flag("tie_word_embeddings", False),
    }  # fmt: skip


def _gpt_neox(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", True)
    parallel = config.flag("use_parallel_residual", True)
    return _LAYER_NORM | {"qkv_bias": bias, "o_bias": bias, "parallel_block": parallel}


def _mpt(config: Config) -> dict[str, Any]:
    attention = config.values.get("attn_config")
    if attention is None:
        attention = {}
    if not isinstance(attention, dict):
        raise config.error("attn_config", "expected an object")
    hidden = config.integer(*HIDDEN)
    return {
        "gated": False,
        "tied": config.flag("tie_word_embeddings", True),
        "kv_heads": Config(attention, config.file).integer("kv_n_heads", default=config.integer(*HEADS)),
        "ffn": config.integer("expansion_ratio", default=4) * hidden,
    }


def _starcoder2(config: Config) -> dict[str, Any]:
    bias = config.flag("use_bias", True)
    return _mistral(config) | {
        "gated": False, "norm_bias": True, "qkv_bias": bias, "o_bias": bias, "mlp_bias": bias,
        "tied": config.flag("tie_word_embeddings", True),
    }  # fmt: skip


def _nemotron(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    return {
        "gated": False,
        "norm_bias": True,
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": config.flag("mlp_bias", False),
    }


def _arcee(config: Config) -> dict[str, Any]:
    return _llama(config) | {"gated": False}


def _stablelm(config: Config) -> dict[str, Any]:
    return {
        "qkv_bias": config.flag("use_qkv_bias", False),
        "norm_bias": True,
        "parallel_block": config.flag("use_parallel_residual", False),
    }


def _qwen2_moe(config: Config) -> dict[str, Any]:
    every_layer_sparse(config)
    width = config.integer("moe_intermediate_size")
    shared = config.integer("shared_expert_intermediate_size", default=0, least=0)
    return _qwen2(config) | {
        "experts": config.integer("num_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_ffn": width,
        "shared_experts": -(-shared // width),
        "shared_ffn": shared,
        "shared_gate": bool(shared),
    }


def _olmoe(config: Config) -> dict[str, Any]:
    return _llama(config) | {
        "qk_norm": True,
        "experts": config.integer("num_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_ffn": config.integer("intermediate_size"),
    }


def _granite(config: Config) -> dict[str, Any]:
    return _llama(config) | {"tied": config.flag("tie_word_embeddings", False)}


def _granite_moe(config: Config) -> dict[str, Any]:
    return _granite(config) | {
        "experts": config.integer("num_local_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_ffn": config.integer("intermediate_size"),
        "shared_experts": 0,
    }


def _llama4(config: Config) -> dict[str, Any]:
    layers = config.integer("num_hidden_layers")
    moe = config.values.get("moe_layers")
    if moe is None:
        sparse = layers // config.integer("interleave_moe_layer_step", default=1)
    elif isinstance(moe, list):
        sparse = len(moe)
    else:
        raise config.error("moe_layers", "expected a list of layers")
    chunk = config.values.get("attention_chunk_size")
    pattern = config.integer("no_rope_layer_interval", default=4)  # one layer in so many sees everything
    local = (
        {}
        if chunk is None
        else {"window": config.integer("attention_chunk_size"), "window_layers": layers - layers // pattern}
    )
    return local | {
        "head_dim": config.integer("head_dim", default=128),
        "ffn": config.integer("intermediate_size_mlp", default=16384),
        "experts": config.integer("num_local_experts", default=16),
        "experts_per_token": config.integer("num_experts_per_tok", default=1),
        "expert_ffn": config.integer("intermediate_size", default=8192),
        "shared_experts": 1,
        "dense_first_layers": layers - sparse,  # not the first ones, which does not matter here
    }


def _glm(config: Config) -> dict[str, Any]:
    return {"qkv_bias": config.flag("attention_bias", True), "head_dim": config.integer("head_dim", default=128)}


def _glm4(config: Config) -> dict[str, Any]:
    return _glm(config) | {"norms": 4}


def _glm4_moe(config: Config) -> dict[str, Any]:
    return {
        "qkv_bias": config.flag("attention_bias", False),
        "qk_norm": config.flag("use_qk_norm", False),
        "experts": config.integer("n_routed_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_ffn": config.integer("moe_intermediate_size"),
        "shared_experts": config.integer("n_shared_experts", default=1, least=0),
        "dense_first_layers": config.integer("first_k_dense_replace", default=1, least=0),
        "router_bias": True,
    }


def _minimax_m2(config: Config) -> dict[str, Any]:
    return {
        "head_dim": config.integer("head_dim", default=128),
        "qk_norm": config.flag("use_qk_norm", True),
        "experts": config.integer("num_local_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_ffn": config.integer("intermediate_size"),
        "router_bias": True,
    }


def _seed_oss(config: Config) -> dict[str, Any]:
    return {
        "qkv_bias": config.flag("attention_bias", True),
        "o_bias": config.flag("attention_out_bias", False),
        "mlp_bias": config.flag("mlp_bias", False),
    }


def _phi3(config: Config) -> dict[str, Any]:
    return _mistral(config)


def _olmo2(config: Config) -> dict[str, Any]:
    return _llama(config) | {"qk_norm": True}


def _exaone4(config: Config) -> dict[str, Any]:
    fields: dict[str, Any] = {"qk_norm": True}
    if config.values.get("sliding_window") is not None and config.values.get("layer_types") is not None:
        fields |= {"window": config.integer("sliding_window"), "window_layers": sliding_layers(config)}
    return fields


def every_layer_sparse(config: Config) -> None:
    """Refuses dense layers between MoE layers."""
    if config.integer("decoder_sparse_step", default=1) != 1 or config.values.get("mlp_only_layers"):
        key = "mlp_only_layers" if config.values.get("mlp_only_layers") else "decoder_sparse_step"
        raise config.error(key, "dense layers between MoE layers are not supported")


FAMILIES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "arcee": _arcee,
    "bloom": _bloom,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "exaone4": _exaone4,
    "falcon": _falcon,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "glm": _glm,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "gptj": _gptj,
    "granite": _granite,
    "granitemoe": _granite_moe,
    "kimi_k2": _deepseek,
    "llama": _llama,
    "llama4_text": _llama4,
    "minimax_m2": _minimax_m2,
    "ministral": _mistral,
    "ministral3": _mistral,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "mpt": _mpt,
    "nemotron": _nemotron,
    "olmo": _llama,
    "olmo2": _olmo2,
    "olmoe": _olmoe,
    "opt": _opt,
    "phi": _phi,
    "phi3": _phi3,
    "phimoe": _phimoe,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen2_vl_text": _qwen2,
    "qwen2_5_vl_text": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_vl_text": _qwen3,
    "qwen3_vl_moe_text": _qwen3_moe,
    "seed_oss": _seed_oss,
    "smollm3": _llama,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}

HYBRIDS = {
    "deci": "layers of different shapes", "deepseek_v4": "compressed attention", "falcon_mamba": "nothing",
    "gemma3n_text": "layers that share keys and values",
    "glm5_next": "linear attention", "lfm2": "short convolutions", "lfm2_moe": "short convolutions",
    "longcat_flash": "two attentions a layer", "mamba": "nothing", "mamba2": "nothing", "mllama_text_model": "cross-attention",
    "mimo_v2_flash": "heads that differ by layer", "nemotron-nas": "layers of different shapes",
    "olmo_hybrid": "linear attention", "recurrent_gemma": "recurrent layers", "rwkv": "recurrent layers",
    "xlstm": "recurrent layers", "zamba": "recurrent layers and shared blocks", "zamba2": "recurrent layers and shared blocks",
}  # fmt: skip
"""Families with layers that are not modelled, and what these are."""


def resembles_llama(config: Config) -> bool:
    """Whether an unknown family has Llama's keys and none that tells of experts, latent attention or recurrent layers."""
    needed = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size")
    strange = ("expert", "moe", "lora_rank", "ssm", "mamba", "linear_", "conv", "state_size", "index_")
    keys = [key for key, value in config.values.items() if value not in (None, False, 0)]
    return all(config.values.get(key) is not None for key in needed) and not any(
        word in key for key in keys for word in strange
    )
