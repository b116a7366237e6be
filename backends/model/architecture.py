"""What a model is, as far as running it goes: the simulator's `ModelSpec` and what only arithmetic needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backends.model.rope import Rope, read_rope
from sim.models.hf_config import Config, read_config
from sim.models.spec import ModelSpec
from sim.quantization.checkpoint import Section, find_section
from workloads.errors import InputError, Place
from workloads.json_file import read_object

FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
"""Values of `model_type` that can be run: Llama 2 and 3, SmolLM2, Mistral, Mixtral, Qwen 2, 2.5 and 3, Qwen 3 MoE."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model's shape and constants.

    Attributes:
        spec: the shape, as the simulator knows it.
        rope: rotary embeddings. eps: of the norms.
        windows: sliding window of every layer in tokens, 0: none.
        renormalise: whether the probabilities of a token's experts are made to add up to 1.
        stop_ids: tokens that end an answer. special_ids: tokens that do not stand for text (begin, end, padding).
        quantization: what the checkpoint says of its quantization; None: its weights are plain.
    """

    spec: ModelSpec
    rope: Rope
    eps: float
    windows: tuple[int, ...]
    renormalise: bool = True
    stop_ids: tuple[int, ...] = ()
    special_ids: tuple[int, ...] = ()
    quantization: Section | None = None


def read_architecture(path: Path) -> Architecture:
    """The architecture in a model's folder, or of a `config.json` itself.

    Raises:
        InputError: no such file, a family or a feature that cannot be run, or a missing or wrong key.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        hint = "a model's folder holds config.json and *.safetensors"
        raise InputError(
            "there is no config.json" if path.is_dir() else "no such file or folder", place=Place(str(path)), hint=hint
        )
    spec = read_config(file)
    config = Config(read_object(file), str(file))
    _check(spec, config)
    mixtral = spec.family == "mixtral"
    eps = config.values.get("rms_norm_eps")
    eps = (1e-5 if mixtral else 1e-6) if eps is None else eps
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise config.error("rms_norm_eps", f"expected a small number above 0, found {eps!r}")
    stops = _stop_ids(config, file.parent)
    special = {*stops, *_ids(config, "bos_token_id"), *_ids(config, "pad_token_id")}
    return Architecture(
        spec,
        read_rope(config, 1e6 if mixtral else 10_000.0),
        eps,
        _windows(spec, config),
        renormalise=mixtral or config.flag("norm_topk_prob", False),
        stop_ids=stops,
        special_ids=tuple(sorted(special)),
        quantization=find_section(config.values, file),
    )


def architecture_of(spec: ModelSpec) -> Architecture:
    """The architecture of a bundled model, for running it without its checkpoint: what the table does not say (rotary base,
    epsilon, special tokens) is as most models have it, and takes no other time than the model's own.

    Raises:
        InputError: a family that cannot be run.
    """
    if spec.family not in FAMILIES:
        raise InputError(
            f"models of family {spec.family!r} cannot be run, only simulated", place=Place(key="model"),
            hint=f"these can: {', '.join(FAMILIES)}",
        )  # fmt: skip
    if spec.window and spec.family in ("mistral", "mixtral"):
        windows = (spec.window,) * spec.layers
    else:
        windows = tuple(spec.window if layer < spec.window_layers else 0 for layer in range(spec.layers))
    return Architecture(spec, Rope(theta=500_000.0), 1e-6, windows)


def _check(spec: ModelSpec, config: Config) -> None:
    if spec.family not in FAMILIES:
        hint = f"these can: {', '.join(FAMILIES)}; backend `sim` knows more"
        raise config.error("model_type", f"models of family {spec.family!r} cannot be run, only simulated", hint=hint)
    if (act := config.text("hidden_act", "silu")) != "silu":
        raise config.error("hidden_act", f"activation {act!r} is not supported", hint="these models use silu")
    if spec.head_dim % 2:
        raise config.error("head_dim", f"rotary embeddings need an even head_dim, found {spec.head_dim}")


def _windows(spec: ModelSpec, config: Config) -> tuple[int, ...]:
    if not spec.window:
        return (0,) * spec.layers
    if spec.family in ("mistral", "mixtral"):
        return (spec.window,) * spec.layers
    kinds = config.values.get("layer_types")
    if kinds is None:
        first = spec.layers - spec.window_layers
        return tuple(spec.window if layer >= first else 0 for layer in range(spec.layers))
    if not isinstance(kinds, list) or len(kinds) != spec.layers:
        raise config.error("layer_types", f"expected a list of {spec.layers} entries, one per layer")
    return tuple(spec.window if kind == "sliding_attention" else 0 for kind in kinds)


def _stop_ids(config: Config, folder: Path) -> tuple[int, ...]:
    """`eos_token_id` of `generation_config.json` where there is one, else of the model's own file."""
    file = folder / "generation_config.json"
    if file.is_file():
        values = read_object(file)
        if ids := _ids(Config(values, str(file)), "eos_token_id"):
            return ids
    return _ids(config, "eos_token_id")


def _ids(config: Config, key: str) -> tuple[int, ...]:
    value = config.values.get(key)
    ids = () if value is None else tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(each, int) for each in ids):
        raise config.error(key, f"expected a token id or a list of them, found {value!r}")
    return tuple(each for each in ids if each >= 0)
