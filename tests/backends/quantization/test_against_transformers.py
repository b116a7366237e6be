"""Our logits against transformers' own loading of the same quantized checkpoint, for the formats that it runs on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.0")
transformers = pytest.importorskip("transformers")

from patterned import calibration, edit_config, logits, prompt  # noqa: E402

from backends.model.model import Model  # noqa: E402
from backends.quantization.base import QuantizedLinear  # noqa: E402
from backends.quantization.make.checkpoint import quantize_checkpoint  # noqa: E402
from backends.quantization.make.recipes import Recipe  # noqa: E402
from backends.weights.load import load_model  # noqa: E402
from backends.weights.tiny import make_tiny  # noqa: E402

MODES = ("int8-w8a16", "rtn-int4", "fp8", "fp8-dynamic", "fp8-channel")
"""Modes that both compute in float32 from the same numbers. An activation between two values of a format may fall to either side
by the last bit of a sum, which moves a few logits (of about 4): hence median and mean."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return make_tiny("tiny-qwen2", tmp_path_factory.mktemp("plain") / "model", seed=3)


def theirs(folder: Path, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.no_grad():
        return model(torch.tensor([prompt()])).logits[0].float()


def needs_compressed_tensors() -> None:
    pytest.importorskip("compressed_tensors", reason="the extra `oracles` is not installed")


@pytest.mark.parametrize("mode", MODES)
def test_logits_are_those_of_transformers(mode, plain, tmp_path) -> None:
    needs_compressed_tensors()
    quantize_checkpoint(plain, tmp_path / "q", Recipe(mode), calibration())
    expected = theirs(tmp_path / "q")
    difference = (logits(load_model(tmp_path / "q"), prompt()) - expected).abs()
    assert float(difference.median()) < 1e-5 and float(difference.mean()) < 2e-3
    if not mode.startswith("fp8"):
        assert float(difference.max()) < 1e-4
    assert float((logits(load_model(plain), prompt()) - expected).abs().max()) > 1e-3  # the test sees quantization


def test_int8_differs_by_the_rule_of_dynamic_scales_alone(plain, tmp_path) -> None:
    """compressed-tensors divides the largest value by 127.5, vLLM's kernels and ours by 127: codes may be one off."""
    needs_compressed_tensors()
    quantize_checkpoint(plain, tmp_path / "q", Recipe("int8"))
    ours, whole = logits(load_model(tmp_path / "q"), prompt()), logits(load_model(plain), prompt())
    expected = theirs(tmp_path / "q")
    assert float((ours - expected).abs().mean()) < 0.05
    assert float((ours - expected).abs().mean()) < 2 * float((expected - whole).abs().mean())


@pytest.mark.parametrize("mode", ["nvfp4-a16", "mxfp4"])
def test_four_bit_floats_agree_as_far_as_bfloat16_goes(mode, plain, tmp_path) -> None:
    """compressed-tensors expands these to bfloat16 on a CPU."""
    needs_compressed_tensors()
    quantize_checkpoint(plain, tmp_path / "q", Recipe(mode))
    expected = theirs(tmp_path / "q", torch.bfloat16)
    ours = logits(load_model(tmp_path / "q", dtype="bf16"), prompt())
    assert float((ours - expected).abs().max()) < 0.12  # of logits up to 4, in 8 bits of mantissa
    assert float((ours - expected).abs().mean()) < 0.02


def test_blocks_of_fp8_are_those_of_transformers(tmp_path) -> None:
    """Without a GPU transformers expands them to 16 or 32 bits, so that activations are left alone on our side too. Its blocks
    must divide the layers evenly."""
    pytest.importorskip("accelerate", reason="the extra `oracles` is not installed")
    source = make_tiny("tiny-llama", tmp_path / "plain", seed=1)
    _reshape(source, hidden_size=128, intermediate_size=256, num_attention_heads=2, num_key_value_heads=2)
    quantize_checkpoint(source, tmp_path / "q", Recipe("fp8-block"))
    expected = theirs(tmp_path / "q")
    ours = logits(_weight_only(load_model(tmp_path / "q")), prompt())
    assert float((ours - expected).abs().max()) < 1e-4


def _reshape(folder: Path, **shape) -> None:
    """Fresh random weights of another shape."""
    from safetensors.torch import save_file

    from backends.model.architecture import read_architecture
    from backends.model.parameters import allocate
    from backends.weights.dummy import fill_randomly
    from backends.weights.names import places

    edit_config(folder, **shape)
    architecture = read_architecture(folder)
    parameters = allocate(architecture, torch.float32, "cpu")
    fill_randomly(architecture, parameters, 1)
    tensors = {name: tensor.clone() for name, tensor in places(architecture, parameters).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _weight_only(model: Model) -> Model:
    def bare(layer: QuantizedLinear) -> QuantizedLinear:
        return replace(layer, parts=tuple(replace(part, activation=None) for part in layer.parts))

    layers = tuple(
        replace(layer, qkv=bare(layer.qkv), out=bare(layer.out),
                mlp=replace(layer.mlp, gate_up=bare(layer.mlp.gate_up), down=bare(layer.mlp.down)))
        for layer in model.parameters.layers
    )  # fmt: skip
    return Model(model.architecture, replace(model.parameters, layers=layers), model.operators)
