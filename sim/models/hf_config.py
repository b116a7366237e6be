"""Reading a Hugging Face `config.json` into a `ModelSpec`.

One small function a family fills what differs; everything else follows the keys that all families share. Defaults are
those of the `transformers` configuration classes, for keys that a config may leave out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sim.models.quantized import native_mode
from sim.models.spec import MLADims, ModelSpec
from sim.quantization.checkpoint import find_section
from workloads.errors import InputError, Place, unknown_name

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}


class Config:
    """A parsed `config.json` that checks what is asked of it and names file and key where it is wrong."""

    def __init__(self, values: dict[str, Any], file: str) -> None:
        self.values = values
        self.file = file

    def error(self, key: str, message: str, hint: str | None = None) -> InputError:
        """An `InputError` placed at `key` of this file."""
        return InputError(message, place=Place(file=self.file, key=key), hint=hint)

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The first of `keys` that is there, as a whole number of at least `least`."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise self.error(key, f"expected a whole number, found {value!r}")
            if value < least:
                raise self.error(key, f"must be at least {least}, found {value}")
            return value
        if default is None:
            raise self.error(keys[0], "is missing", hint="this key is needed for the shape of the model")
        return default

    def flag(self, key: str, default: bool) -> bool:
        """A yes or no."""
        value = self.values.get(key, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, found {value!r}")
        return value

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        value = self.values.get(key) or default
        if not isinstance(value, str):
            raise self.error(key, f"expected a string, found {value!r}")
        return value


def read_config(path: Path) -> ModelSpec:
    """The model that a `config.json` describes.

    Raises:
        InputError: unreadable, not JSON, an architecture we do not know, or a missing or wrong key.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", place=Place(file=str(path))) from None
    except UnicodeDecodeError:
        raise InputError("is not a text file", place=Place(file=str(path))) from None
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", place=Place(file=str(path), line=error.lineno)) from None
    if not isinstance(values, dict):
        raise InputError("expected a JSON object", place=Place(file=str(path)))
    config = Config(values, str(path))
    family = config.text("model_type")
    if not family:
        raise config.error("model_type", "is missing", hint=f"known: {', '.join(sorted(FAMILIES))}")
    if family not in FAMILIES:
        raise unknown_name("architecture", family, FAMILIES, place=Place(file=config.file, key="model_type"))
    fields = _shared(config, path) | FAMILIES[family](config)
    spec = ModelSpec(family=family, **fields)
    _check(spec, config)
    return spec


def _shared(config: Config, path: Path) -> dict[str, Any]:
    heads = config.integer("num_attention_heads")
    hidden = config.integer("hidden_size")
    dtype = config.text("torch_dtype", config.text("dtype", "bfloat16"))
    if dtype not in _DTYPES:
        raise config.error("torch_dtype", f"unknown dtype {dtype!r}", hint=f"known: {', '.join(_DTYPES)}")
    name = config.text("_name_or_path") or path.parent.name or path.stem
    if name in (".", "/"):
        name = path.resolve().parent.name
    return {
        "name": path.resolve().parent.name if Path(name).is_absolute() else name.rsplit("/", 1)[-1],
        "hf_id": config.text("_name_or_path"),
        "layers": config.integer("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": config.integer("num_key_value_heads", default=heads),
        "head_dim": config.integer("head_dim", default=max(hidden // heads, 1)),
        "ffn": config.integer("intermediate_size", "ffn_dim"),
        "vocab": config.integer("vocab_size"),
        "max_position": config.integer("max_position_embeddings", default=2048),
        "dtype": _DTYPES[dtype],
        "tied": config.flag("tie_word_embeddings", False),
        "native_quantization": native_mode(find_section(config.values, path)),
    }


def _check(spec: ModelSpec, config: Config) -> None:
    if spec.heads % spec.kv_heads:
        raise config.error(
            "num_key_value_heads", f"{spec.heads} attention heads do not divide into {spec.kv_heads} KV heads"
        )
    if spec.experts and spec.experts_per_token > spec.experts:
        raise config.error(
            "num_experts_per_tok", f"a token cannot visit {spec.experts_per_token} of {spec.experts} experts"
        )
    if spec.dense_first_layers > spec.layers:
        raise config.error("first_k_dense_replace", f"more dense layers than the model's {spec.layers}")


def _windowed(config: Config) -> int:
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
    if config.integer("decoder_sparse_step", default=1) != 1 or config.values.get("mlp_only_layers"):
        key = "mlp_only_layers" if config.values.get("mlp_only_layers") else "decoder_sparse_step"
        raise config.error(key, "dense layers between MoE layers are not supported")
    return _qwen3(config) | {
        "experts": config.integer("num_experts", "num_local_experts"),
        "experts_per_token": config.integer("num_experts_per_tok"),
        "expert_ffn": config.integer("moe_intermediate_size"),
    }


def _gemma2(config: Config) -> dict[str, Any]:
    return {
        "head_dim": config.integer("head_dim", default=256),
        "tied": config.flag("tie_word_embeddings", True),
        "window": config.integer("sliding_window", default=4096),
        "window_layers": _windowed(config),
        "norms": 4,
    }


def _deepseek(config: Config) -> dict[str, Any]:
    mla = MLADims(
        q_lora=config.integer("q_lora_rank", default=0),
        kv_lora=config.integer("kv_lora_rank"),
        rope=config.integer("qk_rope_head_dim"),
        nope=config.integer("qk_nope_head_dim"),
        v=config.integer("v_head_dim"),
    )
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
        "window_layers": _windowed(config),
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


FAMILIES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma2": _gemma2,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
    "opt": _opt,
}
