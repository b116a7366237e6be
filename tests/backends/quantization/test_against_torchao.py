"""Codes, scales and dequantised weights, bit for bit as torchao has them, where it is installed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("torchao", reason="the extra `oracles` is not installed")

from patterned import raw  # noqa: E402

from backends.quantization.activations import quantise_activation  # noqa: E402
from backends.quantization.base import Activation, QuantizedWeight  # noqa: E402
from backends.quantization.dequantise import dequantise  # noqa: E402
from backends.quantization.formats.compressed import Bytes, PackedInts  # noqa: E402
from backends.quantization.formats.fp4 import MxFp4, NvFp4  # noqa: E402
from backends.quantization.make import grids  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
DTYPES = [torch.float32, torch.bfloat16]


def weights(rows: int = 48, columns: int = 96) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(7))


def quantized(weight: torch.Tensor, config) -> torch.Tensor:
    """A linear layer's weight as torchao's tensor of its own."""
    from torchao.quantization import quantize_

    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    layer.weight.data.copy_(weight)
    quantize_(layer, config)
    return layer.weight


@pytest.mark.parametrize("dtype", DTYPES)
def test_nvfp4(dtype) -> None:
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    weight = weights()
    divisor = grids.nvfp4_divisor(weight.abs().amax())
    codes, scales = grids.nvfp4_codes(weight, divisor)
    packed, factor = NvFp4().save(codes, scales, divisor)["weight_packed"], (1 / divisor).squeeze()
    theirs = NVFP4Tensor(packed, scales, 16, dtype, per_tensor_scale=factor).dequantize(dtype)
    form = NvFp4(modelopt=True, inputs=False)  # whose second-level scale multiplies, as torchao's does
    tensors = {"weight": packed, "weight_scale": scales, "weight_scale_2": factor}
    assert torch.equal(dequantise(form.load(raw(tensors), *weight.shape), dtype), theirs)


def test_nvfp4_codes_are_torchaos_but_where_a_reciprocal_rounds_otherwise() -> None:
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

    weight = weights()
    divisor = grids.nvfp4_divisor(weight.abs().amax())
    scales, packed = nvfp4_quantize(weight, per_tensor_scale=(1 / divisor).squeeze())
    ours, steps = grids.nvfp4_codes(weight, divisor)
    same = (ours[:, 0::2] | (ours[:, 1::2] << 4)) == packed.view(torch.uint8)
    assert torch.equal(steps.view(torch.uint8), scales.view(torch.uint8))
    assert same.float().mean() > 0.999


@pytest.mark.parametrize("dtype", DTYPES)
def test_mxfp4(dtype) -> None:
    from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx

    weight = weights() * torch.logspace(-6, 6, 48)[:, None]
    scales, packed = to_mx(weight, torch.float4_e2m1fn_x2, 32)
    codes, exponents = grids.mxfp4_codes(weight)
    assert torch.equal(exponents, scales.view(torch.uint8))
    assert torch.equal(codes[:, 0::2] | (codes[:, 1::2] << 4), packed.view(torch.uint8))
    tensors = {"weight_packed": packed.view(torch.uint8), "weight_scale": scales.view(torch.uint8)}
    theirs = to_dtype(packed, scales, torch.float4_e2m1fn_x2, 32, dtype)
    assert torch.equal(dequantise(MxFp4().load(raw(tensors), *weight.shape), dtype), theirs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_rows(dtype) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, PerRow

    theirs = quantized(weights().to(dtype), Int8WeightOnlyConfig(granularity=PerRow()))
    tensors = {"weight": theirs.qdata, "weight_scale": theirs.scale.reshape(-1, 1)}
    ours = dequantise(Bytes("int", "int8-w8a16").load(raw(tensors), *theirs.shape), dtype)
    assert torch.equal(ours, theirs.dequantize())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["tensor", "channel"])
def test_fp8(shape, dtype) -> None:
    from torchao.quantization import Float8Tensor, PerRow, PerTensor

    weight = weights().to(dtype)
    theirs = Float8Tensor.from_hp(weight, granularity=PerRow() if shape == "channel" else PerTensor())
    scales = theirs.scale.float()
    codes, ours = grids.fp8_codes(weight, shape)
    if dtype == torch.float32:  # in bfloat16 it rounds the scale too
        assert torch.equal(ours.reshape(-1), scales.reshape(-1))
        assert (codes.view(torch.uint8) == theirs.qdata.view(torch.uint8)).float().mean() > 0.999
    tensors = {
        "weight": theirs.qdata,
        "weight_scale": scales.reshape(-1, 1) if shape == "channel" else scales.reshape(1),
    }
    read = Bytes("fp8", "fp8").load(raw(tensors), *weight.shape)
    assert torch.equal(dequantise(read, dtype), theirs.dequantize())


@pytest.mark.parametrize("group", [32, 96])
@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_integers_in_groups(symmetric, bits, group) -> None:
    """Rounding to a grid and back, against torchao's primitives for affine quantization."""
    from torchao.quantization.quant_primitives import dequantize_affine, quantize_affine

    weight, most = weights(), (1 << bits) - 1
    steps, zeros = grids.int_grid(weight, bits, group, symmetric)
    codes = grids.int_codes(weight, steps, zeros, bits, group)
    theirs = quantize_affine(weight, (1, group), steps, zeros.int(), torch.uint8, 0, most)
    near = (codes.int() - theirs.int()).abs()
    assert near.max() <= 1 and (near == 0).float().mean() > 0.999, "it multiplies by the reciprocal"
    back = dequantize_affine(theirs, (1, group), steps, zeros.int(), torch.uint8, 0, most)
    form = PackedInts(bits, group, False)
    read = form.load(raw(form.save(theirs, steps, zeros)), *weight.shape)
    assert torch.equal(dequantise(read), back)


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_inputs_are_quantized_token_by_token(name) -> None:
    from torchao.quantization import Float8Tensor, PerRow

    x = weights(7, 160) * torch.logspace(-2, 2, 7)[:, None]
    codes, scales = quantise_activation(x, Activation(name))
    if name == "fp8":
        theirs = Float8Tensor.from_hp(x, granularity=PerRow())
        assert torch.equal(scales.reshape(-1), theirs.scale.reshape(-1).float())
        assert (codes.view(torch.uint8) == theirs.qdata.view(torch.uint8)).float().mean() > 0.999
        return
    from torchao.quantization.quant_primitives import dequantize_affine

    back = dequantize_affine(codes, (1, 160), scales, None, torch.int8, -128, 127)
    weight = QuantizedWeight("int", 8, 7, 160, codes, scales=scales, group=160)
    assert torch.equal(dequantise(weight), back)
