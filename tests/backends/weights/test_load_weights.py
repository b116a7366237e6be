"""Reading checkpoints: shards, dummy weights, memory, and what is said when a folder cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.0")
safetensors_torch = pytest.importorskip("safetensors.torch")

from backends.model.architecture import read_architecture  # noqa: E402
from backends.model.parameters import allocate  # noqa: E402
from backends.weights.load import load_model, load_weights  # noqa: E402
from backends.weights.names import places  # noqa: E402
from backends.weights.tiny import TINY, make_tiny  # noqa: E402
from workloads.errors import InputError  # noqa: E402


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_tiny("tiny-llama", tmp_path / "model", seed=5)


def edit(folder: Path, **changes) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors_torch.load_file(folder / "model.safetensors")


@pytest.mark.parametrize("kind", TINY)
def test_every_weight_has_exactly_one_place_and_the_count_is_the_simulators(kind, tmp_path) -> None:
    architecture = read_architecture(make_tiny(kind, tmp_path))
    parameters = allocate(architecture, torch.float32, "cpu")
    found = places(architecture, parameters)
    assert sum(t.numel() for t in found.values()) == architecture.spec.params_total
    for tensor in found.values():
        tensor.fill_(0)
    for tensor in found.values():  # views of one another would be counted twice
        tensor.add_(1)
    assert all(bool((tensor == 1).all()) for tensor in found.values())


@pytest.mark.parametrize("kind", ["tiny-qwen2", "tiny-qwen3-moe"])
def test_shards_and_one_file_give_the_same_weights(kind, tmp_path) -> None:
    one = load_model(make_tiny(kind, tmp_path / "one", seed=1))
    four = load_model(make_tiny(kind, tmp_path / "four", seed=1, shards=4))
    assert len(list((tmp_path / "four").glob("*.safetensors"))) == 4
    whole, parts = (places(m.architecture, m.parameters) for m in (one, four))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    other = load_model(make_tiny(kind, tmp_path / "other", seed=2))
    assert not torch.equal(one.parameters.embedding, other.parameters.embedding)


def test_progress_ends_at_all_bytes(tmp_path) -> None:
    for load in ("auto", "dummy"):
        seen = []
        folder = make_tiny("tiny-llama", tmp_path, shards=3)
        model = load_model(folder, load=load, progress=lambda done, total, seen=seen: seen.append((done, total)))
        size = model.architecture.spec.params_total * 4
        assert seen[-1] == (size, size)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("kind", TINY)
def test_dummy_weights_need_only_the_config(kind, tmp_path) -> None:
    make_tiny(kind, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    model, again = (load_model(tmp_path / "config.json", load="dummy", seed=4) for _ in range(2))
    first, second = (places(m.architecture, m.parameters) for m in (model, again))
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name])
        assert tensor.std() > 0 and (tensor == 0).float().mean() < 0.01, name
    half = load_model(tmp_path, load="dummy", dtype="bf16")
    assert half.dtype == torch.bfloat16


def test_a_tied_checkpoint_may_carry_its_head_and_old_ones_their_frequencies(tmp_path) -> None:
    folder = make_tiny("tiny-smollm", tmp_path)
    values = tensors(folder)
    values["lm_head.weight"] = values["model.embed_tokens.weight"].clone()
    values["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    safetensors_torch.save_file(values, folder / "model.safetensors")
    model = load_model(folder)
    assert model.parameters.head.weight is model.parameters.embedding


def complaint(folder: Path, **options) -> InputError:
    with pytest.raises(InputError) as caught:
        load_model(folder, **options)
    return caught.value


def test_a_missing_shard_is_named(tmp_path) -> None:
    folder = make_tiny("tiny-llama", tmp_path, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    error = complaint(folder)
    assert "model-00002-of-00003.safetensors" in error.message and error.place.file == str(folder)


def test_a_missing_tensor_is_named(folder) -> None:
    values = tensors(folder)
    del values["model.layers.1.mlp.up_proj.weight"]
    safetensors_torch.save_file(values, folder / "model.safetensors")
    assert "model.layers.1.mlp.up_proj.weight" in complaint(folder).message


def test_a_wrong_shape_is_named(folder) -> None:
    values = tensors(folder)
    values["model.norm.weight"] = torch.ones(63)
    safetensors_torch.save_file(values, folder / "model.safetensors")
    error = complaint(folder)
    assert "model.norm.weight has shape [63]" in error.message and "[64]" in error.message


def test_a_tensor_without_a_place_is_named(folder) -> None:
    values = tensors(folder)
    values["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    safetensors_torch.save_file(values, folder / "model.safetensors")
    assert "q_proj.bias" in complaint(folder).message


def test_packed_integers_are_refused(folder) -> None:
    values = tensors(folder)
    values["model.layers.0.mlp.down_proj.weight"] = torch.zeros(64, 160, dtype=torch.int32)
    safetensors_torch.save_file(values, folder / "model.safetensors")
    assert "quantized" in complaint(folder).message


def test_pickle_is_never_opened(folder) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04 not to be read")
    error = complaint(folder)
    assert "pickle" in error.message and "safetensors" in error.hint


def test_an_empty_folder_a_damaged_file_and_a_bad_index(folder) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:1000])
    assert "damaged" in complaint(folder).message
    file.unlink()
    assert "dummy" in complaint(folder).hint
    for text in ("{", "[]", '{"weight_map": {"a": "../outside.safetensors"}}', '{"weight_map": []}'):
        (folder / "model.safetensors.index.json").write_text(text)
        error = complaint(folder)
        assert "index" in f"{error.place} {error.message}"


def test_names_that_do_not_exist(folder) -> None:
    assert "did you mean dummy" in complaint(folder, load="dumy").hint
    assert "did you mean" in complaint(folder, dtype="bfp16").hint
    with pytest.raises(InputError, match="tiny-llama"):
        make_tiny("tiny-lama", folder)


def test_no_more_than_a_tensor_is_held_beside_the_model(tmp_path) -> None:
    """Checked through what reaches the loader: every tensor is gone before the next one is read."""
    import weakref

    from backends.weights import load as loader

    folder = make_tiny("tiny-llama", tmp_path, shards=2)
    architecture = read_architecture(folder)
    parameters = allocate(architecture, torch.float32, "cpu")
    alive: list[weakref.ref] = []
    fill = loader._fill

    def watched(target, found, name, file):
        assert not any(ref() is not None for ref in alive), "an earlier tensor is still held"
        fill(target, found, name, file)
        alive.append(weakref.ref(found))

    loader._fill = watched
    try:
        load_weights(architecture, parameters, sorted(folder.glob("*.safetensors")))
    finally:
        loader._fill = fill
    assert len(alive) == len(places(architecture, parameters))
