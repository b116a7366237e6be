"""Reading a Hugging Face `config.json` into a `ModelSpec`.

What all families share is read here; what differs, one small function a family reads (`sim.models.hf_families`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.models.hf_families import FAMILIES, FFN, FOUR_TIMES, HEADS, HIDDEN, HYBRIDS, LAYERS, POSITIONS, resembles_llama
from sim.models.hf_hybrids import HYBRID_FAMILIES
from sim.models.hf_keys import Config
from sim.models.hf_newer import NEWER_FAMILIES
from sim.models.quantized import native_mode
from sim.models.spec import UNKNOWN_FAMILY, ModelSpec
from sim.quantization.checkpoint import find_section
from workloads.errors import Place, unknown_name
from workloads.json_file import read_object

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}


def read_config(path: Path) -> ModelSpec:
    """The model that a `config.json` describes.

    Raises:
        InputError: unreadable, not JSON, an architecture we do not know, or a missing or wrong key.
    """
    values = read_object(path)
    config = Config(_language_part(values, str(path)), str(path))
    family = config.text("model_type")
    if not family:
        raise config.error(
            "model_type", "is missing", hint=f"known: {', '.join(sorted(FAMILIES | NEWER_FAMILIES | HYBRID_FAMILIES))}"
        )
    notes = ""
    families = FAMILIES | NEWER_FAMILIES | HYBRID_FAMILIES
    if family in families:
        read = families[family]
    elif family in HYBRIDS:
        what = HYBRIDS[family]
        message = "has no attention" if what == "nothing" else f"has {what}"
        raise config.error("model_type", f"{family!r} {message}, which is not modelled")
    elif resembles_llama(config):
        read = FAMILIES["llama"]
        notes = f"{UNKNOWN_FAMILY} {family!r} is not known: taken to be shaped like Llama, as its keys are"
    else:
        raise unknown_name("architecture", family, families, place=Place(file=config.file, key="model_type"))
    spec = ModelSpec(family=family, **({"notes": notes} | _shared(config, path) | read(config)))
    _check(spec, config)
    return spec


def _language_part(values: dict[str, Any], file: str) -> dict[str, Any]:
    """Of a model that also sees or hears: the part that writes. What is set outside it holds for both."""
    part = values.get("text_config")
    if part is None:
        return values
    if not isinstance(part, dict):
        raise Config(values, file).error("text_config", "expected an object")
    outer = {key: value for key, value in values.items() if key not in ("text_config", "vision_config", "audio_config")}
    return (
        outer | part | ({"quantization_config": quantized} if (quantized := values.get("quantization_config")) else {})
    )


def _shared(config: Config, path: Path) -> dict[str, Any]:
    heads = config.integer(*HEADS)
    hidden = config.integer(*HIDDEN)
    dtype = config.text("torch_dtype", config.text("dtype", "bfloat16"))
    if dtype not in _DTYPES:
        raise config.error("torch_dtype", f"unknown dtype {dtype!r}", hint=f"known: {', '.join(_DTYPES)}")
    name = config.text("_name_or_path") or path.parent.name or path.stem
    if name in (".", "/"):
        name = path.resolve().parent.name
    return {
        "name": path.resolve().parent.name if Path(name).is_absolute() else name.rsplit("/", 1)[-1],
        "hf_id": config.text("_name_or_path"),
        "layers": config.integer(*LAYERS, default=_listed_layers(config)),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": config.integer("num_key_value_heads", default=heads),
        "head_dim": config.integer("head_dim", default=max(hidden // heads, 1)),
        "ffn": config.integer(*FFN, default=4 * hidden if config.values.get("model_type") in FOUR_TIMES else None),
        "vocab": config.integer("vocab_size"),
        "max_position": config.integer(*POSITIONS, default=2048),
        "dtype": _DTYPES[dtype],
        "tied": config.flag("tie_word_embeddings", False),
        "native_quantization": native_mode(find_section(config.values, path)),
    }


def _listed_layers(config: Config) -> int | None:
    """How many layers are listed, for a config that only lists them."""
    listed = config.values.get("layers_block_type") or config.values.get("hybrid_override_pattern")
    return len(listed) if isinstance(listed, (list, str)) else None


def _check(spec: ModelSpec, config: Config) -> None:
    if spec.heads % spec.kv_heads:
        raise config.error(
            "num_key_value_heads", f"{spec.heads} attention heads do not divide into {spec.kv_heads} KV heads"
        )
    if spec.experts and spec.experts_per_token > spec.experts:
        raise config.error(
            "num_experts_per_tok", f"a token cannot visit {spec.experts_per_token} of {spec.experts} experts"
        )
    if not spec.attending_layers:
        raise config.error("layer_types", "models without attention are not modelled")
    if spec.dense_first_layers > spec.layers:
        raise config.error("first_k_dense_replace", f"more dense layers than the model's {spec.layers}")
