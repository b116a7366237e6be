"""Reading `config.json` for running: rotary embeddings, windows, stop tokens, and what cannot be run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("safetensors")

from backends.model.architecture import read_architecture  # noqa: E402
from backends.model.rope import Rope  # noqa: E402
from backends.weights.tiny import make_tiny  # noqa: E402
from workloads.errors import InputError  # noqa: E402

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.fixture
def write(tmp_path):
    def write(kind: str = "tiny-llama", drop: tuple[str, ...] = (), **changes) -> Path:
        file = make_tiny(kind, tmp_path) / "config.json"
        values = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({key: value for key, value in values.items() if key not in drop}))
        return tmp_path

    return write


def test_old_and_new_spellings_of_rotary_embeddings_agree(write) -> None:
    old = read_architecture(write(rope_theta=5e5, rope_scaling={"type": "llama3", **LLAMA3})).rope
    new = read_architecture(
        write(drop=("rope_theta", "rope_scaling"), rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3})
    ).rope
    assert old == new == Rope(5e5, "llama3", LLAMA3)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("default", {}), ("linear", {"factor": 4.0}), ("llama3", LLAMA3),
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 4096}),
        ("yarn", {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.7,
                  "beta_fast": 16, "truncate": False}),
    ],
)  # fmt: skip
def test_frequencies_are_those_of_transformers_to_the_bit(kind, numbers) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        head_dim=128, hidden_size=512, num_attention_heads=4, max_position_embeddings=32768,
        rope_parameters={"rope_type": kind, "rope_theta": 500000.0, **numbers},
    )  # fmt: skip
    theirs = LlamaRotaryEmbedding(config)
    ours, factor = Rope(500000.0, kind, numbers).frequencies(128)
    assert torch.equal(ours, theirs.inv_freq) and math.isclose(factor, theirs.attention_scaling)


def test_windows_by_layer(write) -> None:
    assert read_architecture(write("tiny-mistral")).windows == (48, 48)
    assert read_architecture(write("tiny-mistral", sliding_window=None)).windows == (0, 0)
    qwen = {"sliding_window": 32, "max_window_layers": 1}
    assert read_architecture(write("tiny-qwen2", **qwen)).windows == (0, 0)
    assert read_architecture(write("tiny-qwen2", use_sliding_window=True, **qwen)).windows == (0, 32)
    kinds = ["sliding_attention", "full_attention"]
    assert read_architecture(write("tiny-qwen2", use_sliding_window=True, layer_types=kinds, **qwen)).windows == (32, 0)


def test_stop_tokens(write) -> None:
    folder = write(eos_token_id=[7, 9], bos_token_id=None, pad_token_id=0)
    found = read_architecture(folder)
    assert found.stop_ids == (7, 9) and found.special_ids == (0, 7, 9)
    (folder / "generation_config.json").write_text('{"eos_token_id": 3}')
    assert read_architecture(folder).stop_ids == (3,)
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(InputError, match="generation_config"):
        read_architecture(folder)


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"model_type": "gemma2"}, "model_type", "only simulated"),
        ({"model_type": "lama"}, "model_type", "only simulated"),
        ({"model_type": "lama", "num_experts": 8}, "model_type", "unknown architecture"),
        ({"hidden_act": "gelu"}, "hidden_act", "gelu"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope_scaling", "longrope"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "rope_scaling", "low_freq_factor"),
        ({"rope_scaling": {"type": "linear", "factor": "two"}}, "rope_scaling", "factor"),
        ({"rope_scaling": "linear"}, "rope_scaling", "object"),
        ({"rope_theta": -1}, "rope_theta", "above 0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor", "part of a head"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps", "small number"),
        ({"eos_token_id": "</s>"}, "eos_token_id", "token id"),
        ({"head_dim": 15}, "head_dim", "even"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quantization_config.quant_method", "not a method we know"),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_key(write, changes, key, words) -> None:
    with pytest.raises(InputError) as caught:
        read_architecture(write(**changes))
    assert caught.value.place.key == key and words in str(caught.value)


def test_a_folder_without_a_config(tmp_path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"no config\.json|no such"):
            read_architecture(path)
