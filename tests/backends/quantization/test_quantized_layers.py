"""Quantized layers computed: activations quantized as formats say, stacked projections, and the dequantised product."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", minversion="2.0")

from torch.nn import functional as F  # noqa: E402

from backends.ops.base import Dense  # noqa: E402
from backends.ops.reference import ReferenceOperators  # noqa: E402
from backends.quantization.activations import quantise_activation, round_to_e2m1  # noqa: E402
from backends.quantization.base import Activation, QuantizedLinear, QuantizedWeight, Sparse  # noqa: E402
from backends.quantization.dequantise import dequantise, quantized_linear  # noqa: E402
from backends.quantization.stack import banked, moved, stacked  # noqa: E402
from backends.weights.dummy_packed import RUNNABLE, random_weight  # noqa: E402
from sim.quantization import load_weight_mode  # noqa: E402
from sim.quantization.weights import WEIGHT_MODES  # noqa: E402


def made(mode: str, outputs: int = 40, inputs: int = 128, seed: int = 0) -> QuantizedWeight:
    return random_weight(WEIGHT_MODES[mode], outputs, inputs, torch.Generator().manual_seed(seed))


def x(tokens: int = 6, inputs: int = 128, seed: int = 1) -> torch.Tensor:
    return torch.randn(tokens, inputs, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mode", RUNNABLE)
def test_a_layer_is_its_dequantised_weight_times_its_quantized_inputs(mode) -> None:
    weight = made(mode)
    found = quantized_linear(x(), QuantizedLinear((weight,)))
    inputs = x()
    if weight.activation is not None:
        codes, scales = quantise_activation(inputs, weight.activation)
        inputs = codes.float() * (
            scales.repeat_interleave(weight.activation.group, 1) if scales.shape[1] > 1 else scales
        )
    expected = inputs.double() @ dequantise(weight).double().T
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-4)
    assert 0.2 < float(dequantise(weight).std() * 128**0.5) < 5


@pytest.mark.parametrize("mode", RUNNABLE)
def test_projections_of_one_input_are_stacked_with_all_their_scales(mode) -> None:
    parts = [made(mode, outputs, seed=outputs) for outputs in (128, 64, 32)]
    if mode == "fp8":  # as fused layers have it: one input, one scale
        parts = [replace(part, activation=parts[0].activation) for part in parts]
    whole, bias = stacked(parts, torch.arange(224.0), mode), torch.arange(224.0)
    expected = torch.cat([quantized_linear(x(), QuantizedLinear((part,))) for part in parts], 1) + bias
    assert torch.allclose(quantized_linear(x(), whole), expected, rtol=1e-5, atol=1e-5)
    assert len(whole.parts) == 1 and whole.outputs == 224 and whole.inputs == 128


@pytest.mark.parametrize(("outputs", "parts"), [((256, 128, 64), 1), ((128, 64, 64), 2), ((64, 128, 128), 2)])
def test_blocks_are_stacked_where_one_ends_with_its_projection(outputs, parts) -> None:
    layers = [made("fp8-block", size, 256, seed=size) for size in outputs]
    whole = stacked(layers, None, "fp8-block")
    expected = torch.cat([quantized_linear(x(inputs=256), QuantizedLinear((layer,))) for layer in layers], 1)
    assert torch.allclose(quantized_linear(x(inputs=256), whole), expected, rtol=1e-5, atol=1e-5)
    assert len(whole.parts) == parts


def test_other_input_scales_another_order_or_a_plain_part_stay_apart() -> None:
    fp8 = made("fp8")
    other = replace(fp8, activation=replace(fp8.activation, scale=torch.tensor([0.05])))
    assert len(stacked([fp8, other], None, "fp8").parts) == 2
    gptq = made("gptq-int4")
    order = replace(gptq, order=torch.randperm(128).int())
    dense = Dense(torch.randn(24, 128))
    mixed = stacked([gptq, order, dense, dense, gptq], None, "gptq-int4")
    assert [type(part).__name__ for part in mixed.parts] == ["QuantizedWeight"] * 2 + ["Dense", "QuantizedWeight"]
    expected = torch.cat([F.linear(x(), dequantise(part) if part is not dense else dense.weight) for part in
                          (gptq, order, dense, dense, gptq)], 1)  # fmt: skip
    assert torch.allclose(ReferenceOperators().linear(x(), mixed), expected, rtol=1e-5, atol=1e-5)


def test_zeros_and_outliers_of_some_parts_are_kept_when_stacked() -> None:
    symmetric, zeros = made("gptq-int4"), made("awq-int4")
    both = stacked([symmetric, zeros], None, "")
    assert len(both.parts) == 1
    assert torch.equal(dequantise(both.parts[0]), torch.cat((dequantise(symmetric), dequantise(zeros))))
    table = made("squeezellm-4bit")
    sparse = Sparse(torch.tensor([0] * 8 + [2] * 33).int(), torch.tensor([3, 100]).int(), torch.tensor([1.0, -2.0]))
    with_outliers = replace(table, sparse=sparse)
    merged = stacked([table, with_outliers, table], None, "").parts[0]
    assert torch.equal(dequantise(merged), torch.cat((dequantise(table), dequantise(with_outliers), dequantise(table))))
    assert dequantise(with_outliers)[7, 100] == dequantise(table)[7, 100] - 2


def test_activations_per_token_per_tensor_per_group_and_static() -> None:
    values = torch.tensor([[1.0, -4.0, 2.0, 0.5], [0.0, 0.0, 0.0, 0.0], [448.0, 1.0, -448.0, 3.0]])
    codes, scales = quantise_activation(values, Activation("int8"))
    assert scales[0, 0] == pytest.approx(4 / 127) and codes[0].tolist() == [32, -127, 64, 16]
    assert codes[1].tolist() == [0, 0, 0, 0]
    codes, scales = quantise_activation(values, Activation("fp8"))
    assert scales[2, 0] == 1.0 and codes[2].float().tolist() == [448.0, 1.0, -448.0, 3.0]
    _, scales = quantise_activation(values, Activation("fp8", -1))
    assert scales.shape == (1, 1) and scales[0, 0] == 1.0
    codes, scales = quantise_activation(values[:, :3], Activation("fp8", 2))  # the last group is ragged
    assert scales.shape == (3, 2) and scales[0].tolist() == pytest.approx([4 / 448, 2 / 448])
    codes, _ = quantise_activation(values, Activation("fp8", -1, torch.tensor([0.5])))
    assert codes[2].float().tolist() == [448.0, 2.0, -448.0, 6.0]  # 896 is cut off


def test_no_token_changes_another() -> None:
    """Dynamic scales are of a token: alone or in company it gives the same, bit for bit."""
    for mode in ("int8-w8a8", "fp8-dynamic", "fp8-channel", "fp8-block", "nvfp4"):
        layer = QuantizedLinear((made(mode),))
        alone = [quantise_activation(row[None], layer.parts[0].activation)[0].float() for row in x()]
        together = quantise_activation(x(), layer.parts[0].activation)[0].float()
        assert torch.equal(torch.cat(alone), together), mode


def test_e2m1_rounds_to_the_nearest_and_halfway_to_even() -> None:
    values = torch.tensor([0.0, 0.24, 0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.01, 9.0, -2.5, -0.2])
    wanted = [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0, -2.0, -0.0]
    assert round_to_e2m1(values).tolist() == wanted


def test_bytes_are_those_of_the_mode() -> None:
    for mode in RUNNABLE:
        weight, expected = made(mode, 256, 512), WEIGHT_MODES[mode].matrix_bytes(256, 512)
        assert weight.nbytes == pytest.approx(expected, rel=0.03), (
            mode
        )  # zeros take 16 bits here, second-level scales a row


@pytest.mark.parametrize("mode", RUNNABLE)
def test_experts_matrices_lie_in_one_and_come_out_as_they_were(mode) -> None:
    generator, shape = torch.Generator().manual_seed(3), (128, 256)
    layers = [
        QuantizedLinear((random_weight(load_weight_mode(mode), *shape, generator),), None, mode) for _ in range(3)
    ]
    bank = banked(layers)
    if mode in ("fp8", "nvfp4"):  # each has a scale of inputs that is its own tensor, of the same value
        assert bank is not None
    assert len(bank) == 3 and (bank.outputs, bank.inputs) == shape
    assert bank.nbytes >= sum(layer.parts[0].codes.nbytes for layer in layers)
    for mine, layer in zip(bank, layers, strict=True):
        assert torch.equal(dequantise(mine.parts[0]), dequantise(layer.parts[0])) and mine.mode == mode
        x = torch.randn(4, 256, generator=generator)
        assert torch.equal(quantized_linear(x, mine), quantized_linear(x, layer))


def test_experts_that_differ_are_no_bank() -> None:
    def layer(mode: str, **changes) -> QuantizedLinear:
        weight = random_weight(load_weight_mode(mode), 128, 256, torch.Generator().manual_seed(1))
        return QuantizedLinear((replace(weight, **changes),), None, mode)

    plain = layer("gptq-int4")
    assert banked([plain, plain]) is not None
    order = torch.arange(256, dtype=torch.int32).flip(0)
    for other in (layer("gptq-int4", order=order), layer("gptq-int8"), layer("gptq-int4", outputs=64)):
        assert banked([plain, other]) is None
    static = Activation("fp8", -1, torch.tensor([0.5]))
    assert banked([layer("fp8"), layer("fp8", activation=static)]) is None
    outliers = Sparse(torch.zeros(129, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), torch.zeros(0))
    assert banked([layer("squeezellm-4bit", sparse=outliers)]) is None
    assert banked([QuantizedLinear((Dense(torch.zeros(4, 4)),), None, "x")]) is None


def test_moving_keeps_everything() -> None:
    for mode in RUNNABLE:
        weight = made(mode)
        assert torch.equal(dequantise(moved(weight, "cpu")), dequantise(weight))


@pytest.mark.parametrize("mode", RUNNABLE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_no_tokens_zeros_and_large_inputs_give_numbers_of_the_inputs_type(mode, dtype) -> None:
    layer = QuantizedLinear((made(mode, 24, 64),))
    assert quantized_linear(torch.zeros(0, 64, dtype=dtype), layer).shape == (0, 24)
    for value in (0.0, 3e4, -3e4):
        found = quantized_linear(torch.full((2, 64), value, dtype=dtype), layer)
        assert found.dtype == dtype and not found.isnan().any()
        assert value or not found.any()
