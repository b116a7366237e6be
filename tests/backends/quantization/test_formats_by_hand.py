"""Formats without a library on a CPU, worked out by hand on small layers; and what is said of tensors that cannot be."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", minversion="2.0")

from patterned import pattern, raw  # noqa: E402

from backends.quantization.base import Sparse  # noqa: E402
from backends.quantization.dequantise import E2M1, dequantise, quantized_linear  # noqa: E402
from backends.quantization.formats.awq import COLUMNS, Awq  # noqa: E402
from backends.quantization.formats.fp4 import MxFp4, NvFp4  # noqa: E402
from backends.quantization.formats.fp8 import Fp8  # noqa: E402
from backends.quantization.formats.gptq import Gptq  # noqa: E402
from backends.quantization.formats.squeezellm import SqueezeLLM  # noqa: E402
from backends.quantization.stack import stacked  # noqa: E402
from workloads.errors import InputError  # noqa: E402

E4M3 = torch.float8_e4m3fn


def test_squeezellm_looks_values_up_and_adds_outliers() -> None:
    """Two outputs of 32 inputs: output 0 has code k % 16 for input k, output 1 has 15 − k % 16; tables are 0.1 i and −i."""
    codes = [[k % 16 for k in range(32)], [15 - k % 16 for k in range(32)]]
    words = [[sum(code << (4 * j) for j, code in enumerate(row[8 * i : 8 * i + 8])) for row in codes] for i in range(4)]
    signed = [[word - (1 << 32) if word >> 31 else word for word in line] for line in words]
    table = torch.tensor([[0.1 * i for i in range(16)], [-float(i) for i in range(16)]])
    tensors = {
        "qweight": torch.tensor(signed, dtype=torch.int32), "lookup_table": table,
        "rows": torch.tensor([0, 1, 3], dtype=torch.int32), "cols": torch.tensor([5, 0, 31], dtype=torch.int32),
        "vals": torch.tensor([10.0, 2.5, -4.0]), "startrows": torch.zeros(10, dtype=torch.int32),
    }  # fmt: skip
    expected = torch.tensor([[0.1 * code for code in codes[0]], [-float(code) for code in codes[1]]])
    expected[0, 5] += 10.0
    expected[1, 0] += 2.5
    expected[1, 31] += -4.0
    weight = SqueezeLLM(4).load(raw(tensors), 2, 32)
    assert torch.allclose(dequantise(weight), expected, rtol=0, atol=1e-6)
    full = {"full_rows": torch.full((32, 1), 0.5), "full_row_indices": torch.tensor([1], dtype=torch.int32)}
    expected[1] += 0.5
    assert torch.allclose(dequantise(SqueezeLLM(4).load(raw(tensors | full), 2, 32)), expected, rtol=0, atol=1e-6)


def test_squeezellm_three_bits_cross_words() -> None:
    """32 codes of 3 bits fill 96 bits: code 10 takes bits 30 to 32, code 21 bits 63 to 65."""
    codes = [(3 * k + 1) % 8 for k in range(32)]
    whole = sum(code << (3 * k) for k, code in enumerate(codes))
    words = [(whole >> (32 * i)) & 0xFFFFFFFF for i in range(3)]
    signed = [[word - (1 << 32) if word >> 31 else word] for word in words]
    table = torch.arange(8.0)[None] * 2 - 5
    weight = SqueezeLLM(3, "squeezellm-3bit").load(
        raw({"qweight": torch.tensor(signed, dtype=torch.int32), "lookup_table": table}), 1, 32
    )
    assert dequantise(weight).tolist() == [[2.0 * code - 5 for code in codes]]


def test_nvfp4_of_modelopt_multiplies_where_compressed_tensors_divides() -> None:
    """One output of 16 inputs: codes 0 … 15, local scale 2; second-level scale 0.25, or a divisor of 4."""
    packed = torch.tensor([[low | (low + 1) << 4 for low in range(0, 16, 2)]], dtype=torch.uint8)
    local = torch.tensor([[2.0]]).to(E4M3)
    expected = [[0.5 * value for value in E2M1]]
    modelopt = {
        "weight": packed, "weight_scale": local, "weight_scale_2": torch.tensor(0.25), "input_scale": torch.tensor(0.01)
    }  # fmt: skip
    divided = {
        "weight_packed": packed, "weight_scale": local, "weight_global_scale": torch.tensor([4.0]),
        "input_global_scale": torch.tensor([100.0]),
    }  # fmt: skip
    for form, tensors in ((NvFp4(modelopt=True), modelopt), (NvFp4(), divided)):
        weight = form.load(raw(tensors), 1, 16)
        assert dequantise(weight).tolist() == expected
        assert float(weight.activation.scale) == pytest.approx(0.01)


def test_mxfp4_scales_are_powers_of_two() -> None:
    packed = torch.tensor([[(k % 16) | (k % 16) << 4 for k in range(32)]], dtype=torch.uint8)
    tensors = {"weight_packed": packed, "weight_scale": torch.tensor([[127 + 3, 127 - 2]], dtype=torch.uint8)}
    values = dequantise(MxFp4().load(raw(tensors), 1, 64))
    assert values[0, :32:2].tolist() == [8.0 * E2M1[k] for k in range(16)]
    assert values[0, 32::2].tolist() == [0.25 * E2M1[k] for k in range(16)]


def test_fp8_blocks_multiply_by_what_is_called_inverse_and_may_be_ragged() -> None:
    codes = torch.ones(5, 7).to(E4M3)
    inverse = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    form = Fp8("fp8-block", (2, 4), activation=4, scale="weight_scale_inv")
    values = dequantise(form.load(raw({"weight": codes, "weight_scale_inv": inverse}), 5, 7))
    assert values[:, 0].tolist() == [1, 1, 3, 3, 5] and values[:, 6].tolist() == [2, 2, 4, 4, 6]
    assert values[0].tolist() == [1, 1, 1, 1, 2, 2, 2]


def test_fbgemm_cuts_the_largest_activation_off() -> None:
    """Row scales; with a bound of 4, a token whose largest value is 8 has the scale 4 / 448, and 8 becomes 4."""
    tensors = {"weight": torch.eye(2, 4).to(E4M3), "weight_scale": torch.tensor([[2.0], [0.5]])}
    weight = Fp8("fp8-channel", bound=4.0).load(raw(tensors), 2, 4)
    out = quantized_linear(torch.tensor([[8.0, 1.0, 0.0, 0.0]]), stacked([weight], None, ""))
    assert out[0, 0] == pytest.approx(8.0)  # 4 × 2
    assert out[0, 1] == pytest.approx(0.5, rel=0.04)


def test_awq_columns_lie_in_its_order() -> None:
    """Eight outputs of one group: word 0 of input 0 holds columns 0, 2, 4, 6, 1, 3, 5, 7 from its lowest bits on."""
    codes = torch.tensor([[1], [2], [3], [4], [5], [6], [7], [8]], dtype=torch.uint8)
    word = int(Awq(-1).save(codes, torch.ones(8, 1), torch.zeros(8, 1))["qweight"][0, 0]) & 0xFFFFFFFF
    assert [(word >> (4 * nibble)) & 15 for nibble in range(8)] == [1 + column for column in COLUMNS]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"qweight": None}, "layer.qweight is missing"),
        ({"qweight": torch.zeros(8, 16, dtype=torch.int64)}, "is int64, its format has int32"),
        ({"qweight": torch.zeros(4, 16, dtype=torch.int32)}, "has shape [4, 16]"),
        ({"scales": torch.full((2, 16), float("nan"))}, "not finite"),
        ({"scales": torch.zeros(2, 16, dtype=torch.int32)}, "is int32, its format has float16"),
        ({"g_idx": torch.zeros(64, dtype=torch.int32)}, "does not share 64 columns out into groups of 32"),
    ],
)
def test_gptq_tensors_that_cannot_be_are_named(change, words) -> None:
    tensors = Gptq(4, 32).save(pattern(16, 64, 16, 7, 3).to(torch.uint8), torch.ones(16, 2), torch.full((16, 2), 8.0))
    tensors = {name: tensor for name, tensor in (tensors | change).items() if tensor is not None}
    with pytest.raises(InputError) as caught:
        Gptq(4, 32).load(raw(tensors), 16, 64)
    assert words in str(caught.value) and caught.value.place.file == "file.safetensors"


@pytest.mark.parametrize(
    ("sparse", "words"),
    [
        (Sparse(torch.tensor([0, 2, 1]), torch.tensor([0]), torch.ones(1)), "does not count up"),
        (Sparse(torch.tensor([0, 1, 1]), torch.tensor([32]), torch.ones(1)), "points outside of 32 columns"),
        (Sparse(torch.tensor([0, 1, 1]), torch.tensor([-1]), torch.ones(1)), "points outside"),
    ],
)
def test_sparse_parts_that_point_nowhere_are_named(sparse, words) -> None:
    tensors = SqueezeLLM(4).save(torch.zeros(2, 32, dtype=torch.uint8), torch.zeros(2, 16))
    tensors |= {"rows": sparse.starts.int(), "cols": sparse.columns.int(), "vals": sparse.values}
    with pytest.raises(InputError, match=words):
        SqueezeLLM(4).load(raw(tensors), 2, 32)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_is_a_number_above_0(value) -> None:
    tensors = {"weight": torch.ones(2, 2).to(E4M3), "weight_scale": torch.ones(1), "input_scale": torch.tensor([value])}
    with pytest.raises(InputError, match="above 0"):
        Fp8("fp8", static=True).load(raw(tensors), 2, 2)
