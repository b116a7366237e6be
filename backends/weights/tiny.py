"""Small random checkpoints in Hugging Face's layout, for tests and first steps; `transformers` reads them too."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from backends.model.architecture import read_architecture
from backends.model.parameters import allocate
from backends.weights.dummy import fill_randomly
from backends.weights.files import INDEX, SINGLE
from backends.weights.names import places
from backends.weights.tiny_tokenizer import write_byte_tokenizer
from workloads.errors import OutputError, unknown_name

_SHARED = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

TINY: dict[str, dict] = {
    "tiny-llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "tiny-mistral": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 48, "num_key_value_heads": 1,
    },
    "tiny-qwen2": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_attention_heads": 6, "hidden_size": 96,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "use_sliding_window": False, "tie_word_embeddings": True,
    },
    "tiny-qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32, "num_attention_heads": 8,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "attention_bias": False,
    },
    "tiny-smollm": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 72, "num_attention_heads": 9,
        "num_key_value_heads": 3, "rope_theta": 100000.0, "tie_word_embeddings": True,
    },
    "tiny-mixtral": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "intermediate_size": 96, "rope_theta": 1000000.0,
        "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None,
    },
    "tiny-qwen3-moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 16, "rms_norm_eps": 1e-6,
        "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
}  # fmt: skip
"""Kind → what its `config.json` sets apart from the shared values."""


def make_tiny(kind: str, folder: Path | str, seed: int = 0, shards: int = 1) -> Path:
    """Write a checkpoint of a kind in `TINY` into `folder`.

    Args:
        shards: number of weight files.

    Returns:
        The folder.

    Raises:
        InputError: no such kind. OutputError: the folder cannot be written.
    """
    if kind not in TINY:
        raise unknown_name("tiny model", kind, TINY)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        config = _SHARED | TINY[kind]
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        write_byte_tokenizer(folder, config["vocab_size"])
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror}") from None
    architecture = read_architecture(folder)
    parameters = allocate(architecture, torch.float32, "cpu")
    fill_randomly(architecture, parameters, seed)
    tensors = {name: tensor.contiguous() for name, tensor in places(architecture, parameters).items()}
    names = sorted(tensors)
    where: dict[str, str] = {}
    for shard in range(shards):
        file = SINGLE if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = {name: tensors[name].clone() for name in names[shard::shards]}
        save_file(mine, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(mine, file)
    if shards > 1:
        size = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    return folder
