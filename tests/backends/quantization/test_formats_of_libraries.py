"""Packed tensors and dequantised weights, bit for bit as the formats' own libraries have them.

The hashes were taken from AutoAWQ 0.2.9 (`WQLinear_GEMM.from_linear`, `dequantize_gemm`) and AutoGPTQ 0.7.1
(`QuantLinear.pack`, and its product with the identity in float32), given the same numbers; both ran on a CPU.
compressed-tensors is asked directly where it is installed.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", minversion="2.0")

from patterned import digest, pattern, raw  # noqa: E402

from backends.quantization.dequantise import dequantise  # noqa: E402
from backends.quantization.formats.awq import Awq  # noqa: E402
from backends.quantization.formats.compressed import Bytes, PackedInts  # noqa: E402
from backends.quantization.formats.fp4 import MxFp4, NvFp4  # noqa: E402
from backends.quantization.formats.gptq import Gptq  # noqa: E402
from backends.quantization.make import grids  # noqa: E402

N, K, G = 32, 64, 32
AWQ = ("128253bdb4f7069c", "8bdedf89020a3c49", "e29e4a0af317a2b0", "5e96c0a3bdbfa247")
GPTQ = {
    (3, False): ("05b9f474d848ec89", "03cf9cea2281c7dd", "e29e4a0af317a2b0", "fe5ef84623360b7b", "a304142de9852ac9"),
    (3, True): ("05b9f474d848ec89", "03cf9cea2281c7dd", "e29e4a0af317a2b0", "6c59a77e227e9b8f", "3873fa2d2bee9527"),
    (4, False): ("5376485908923a4a", "31e8e497e7cd92ab", "e29e4a0af317a2b0", "fe5ef84623360b7b", "3527020015b538e4"),
    (4, True): ("5376485908923a4a", "31e8e497e7cd92ab", "e29e4a0af317a2b0", "6c59a77e227e9b8f", "b1ec207a89171199"),
    (8, False): ("33543f34e1400ec5", "b84c708a491637ab", "e29e4a0af317a2b0", "fe5ef84623360b7b", "eaf435e74611e456"),
    (8, True): ("33543f34e1400ec5", "b84c708a491637ab", "e29e4a0af317a2b0", "6c59a77e227e9b8f", "71f88cdab8422761"),
}


def scales() -> torch.Tensor:
    return (0.01 + pattern(N, K // G, 13, 3, 7).float() / 100).half()


def test_awq_as_autoawq_packs_and_unpacks_it() -> None:
    codes, zeros = pattern(N, K, 16, 7, 3).to(torch.uint8), pattern(N, K // G, 16, 5, 11).float()
    tensors = Awq(G).save(codes, scales(), zeros)
    assert tuple(digest(tensors[name]) for name in ("qweight", "qzeros", "scales")) == AWQ[:3]
    weight = Awq(G).load(raw(tensors), N, K)
    assert digest(dequantise(weight, torch.float16)) == AWQ[3]


@pytest.mark.parametrize(("bits", "act_order"), GPTQ)
def test_gptq_as_autogptq_packs_and_unpacks_it(bits, act_order) -> None:
    codes = pattern(N, K, 1 << bits, 7, 3).to(torch.uint8)
    zeros = (pattern(N, K // G, (1 << bits) - 1, 5, 11) + 1).float()
    columns = torch.arange(K) * 7 % K if act_order else torch.arange(K)
    tensors = Gptq(bits, G).save(codes, scales(), zeros, columns // G)
    names = ("qweight", "qzeros", "scales", "g_idx")
    assert tuple(digest(tensors[name]) for name in names) == GPTQ[bits, act_order][:4]
    weight = Gptq(bits, G).load(raw(tensors), N, K)
    assert (weight.order is not None) == act_order
    assert digest(dequantise(weight, torch.float16)) == GPTQ[bits, act_order][4]


def test_version_2_stores_zeros_as_they_are_and_a_zero_of_0_survives_version_1() -> None:
    codes, zeros = pattern(N, K, 16, 7, 3).to(torch.uint8), pattern(N, K // G, 16, 5, 11).float()
    assert (zeros == 0).any()
    first, second = (Gptq(4, G, v2).save(codes, scales(), zeros) for v2 in (False, True))
    assert not torch.equal(first["qzeros"], second["qzeros"])
    assert torch.equal(first["qweight"], second["qweight"])
    read = [Gptq(4, G, v2).load(raw(tensors), N, K) for v2, tensors in ((False, first), (True, second))]
    assert torch.equal(*(dequantise(weight) for weight in read))
    assert torch.equal(read[0].zeros, zeros.to(torch.int16))
    wrong = dequantise(Gptq(4, G, v2=True).load(raw(first), N, K))
    assert not torch.equal(wrong, dequantise(read[0]))


def compressor(name: str):
    pytest.importorskip("compressed_tensors", reason="the extra `oracles` is not installed")
    from compressed_tensors.compressors.base import BaseCompressor

    return BaseCompressor.get_value_from_registry(name)


def scheme(**arguments):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))


def weights(rows: int = 48, columns: int = 96) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("group", "bits"), [(32, 4), (None, 4), (32, 3), (32, 8), (None, 8)])
def test_packed_integers_as_compressed_tensors_unpacks_them(group, bits, symmetric, dtype) -> None:
    theirs = compressor("pack-quantized")
    how = scheme(
        num_bits=bits, type="int", strategy="group" if group else "channel", group_size=group, symmetric=symmetric
    )
    weight = weights()
    steps, zeros = grids.int_grid(weight, bits, group or -1, symmetric)
    state = {"weight": weight.to(dtype), "weight_scale": steps.to(dtype)}
    if not symmetric:
        state["weight_zero_point"] = (zeros - (1 << (bits - 1))).to(torch.int8)
    tensors = theirs.compress(state, how)
    ours = PackedInts(bits, group or -1, symmetric).load(raw(tensors), *weight.shape)
    assert torch.equal(dequantise(ours, dtype), theirs.decompress(tensors, how)["weight"])


@pytest.mark.parametrize(
    ("form", "kind", "name"), [("int", "int", "int-quantized"), ("fp8", "float", "float-quantized")]
)
@pytest.mark.parametrize("strategy", ["tensor", "channel"])
def test_bytes_as_compressed_tensors_has_them(form, kind, name, strategy) -> None:
    theirs, weight = compressor(name), weights()
    how = scheme(num_bits=8, type=kind, strategy=strategy, symmetric=True)
    most = weight.abs().amax() if strategy == "tensor" else weight.abs().amax(1, keepdim=True)
    state = {"weight": weight, "weight_scale": most / (127 if form == "int" else 448)}
    tensors = theirs.compress(state, how)
    ours = Bytes(form, "").load(raw(tensors), *weight.shape)
    assert torch.equal(dequantise(ours), theirs.decompress(tensors, how)["weight"])


def test_nvfp4_as_compressed_tensors_packs_and_unpacks_it() -> None:
    theirs, weight = compressor("nvfp4-pack-quantized"), weights()
    how = scheme(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)
    divisor = grids.nvfp4_divisor(weight.abs().max())
    codes, steps = grids.nvfp4_codes(weight, divisor)
    state = {"weight": weight, "weight_scale": steps.float(), "weight_global_scale": divisor}
    tensors, mine = theirs.compress(state, how), NvFp4().save(codes, steps, divisor)
    assert torch.equal(tensors["weight_packed"], mine["weight_packed"])
    assert torch.equal(tensors["weight_scale"].float(), mine["weight_scale"].float())
    ours, whole = NvFp4(inputs=False).load(raw(mine), *weight.shape), theirs.decompress(tensors, how)["weight"]
    assert torch.equal(dequantise(ours, whole.dtype), whole)


def test_mxfp4_as_compressed_tensors_packs_and_unpacks_it() -> None:
    theirs, weight = compressor("mxfp4-pack-quantized"), weights()
    how = scheme(num_bits=4, type="float", strategy="group", group_size=32, symmetric=True, scale_dtype=torch.uint8,
                 zp_dtype=torch.uint8)  # fmt: skip
    codes, exponents = grids.mxfp4_codes(weight)
    tensors = theirs.compress({"weight": weight, "weight_scale": torch.exp2(exponents.float() - 127)}, how)
    assert torch.equal(tensors["weight_scale"], exponents)
    assert torch.equal(tensors["weight_packed"], codes[:, 0::2] | (codes[:, 1::2] << 4))
    ours, whole = MxFp4().load(raw(tensors), *weight.shape), theirs.decompress(tensors, how)["weight"]
    assert torch.equal(dequantise(ours, whole.dtype), whole)
