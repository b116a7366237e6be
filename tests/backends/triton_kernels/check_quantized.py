"""Products with packed weights against the expanded weight in plain torch: every form, every size of group, ragged shapes."""

from __future__ import annotations

from dataclasses import replace

import interpreter  # noqa: F401 (first)
import pytest
import torch
from compare import normal

from backends.ops.base import Dense
from backends.ops.reference import ReferenceOperators
from backends.quantization.activations import quantise_activation
from backends.quantization.base import Activation, QuantizedLinear, QuantizedWeight, Sparse
from backends.quantization.dequantise import dequantise
from backends.triton.launch import Launcher, Target
from backends.triton.operators import TritonOperators
from backends.triton.quantized import linear, whole
from backends.triton.quantized.inputs import emulated_fp4, quantised_inputs
from backends.triton.quantized.whole import expand_rows
from backends.triton.tiles import whole_from
from backends.weights.dummy_packed import random_weight
from sim.quantization import load_weight_mode
from workloads.errors import InputError

PLAIN = ReferenceOperators()
OURS = TritonOperators(launch=Launcher(Target(processors=2, interpreted=True)))
SPLITTING = TritonOperators(launch=Launcher(Target(processors=64, interpreted=True)))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WEIGHT_ONLY = ("int8-w8a16", "gptq-int3", "gptq-int4", "awq-int4", "squeezellm-3bit", "squeezellm-4bit", "mxfp4")
_MEAN = {torch.float32: 1e-6, torch.float16: 6e-4, torch.bfloat16: 4e-3}
"""Mean error over mean value: what rounding of the result makes. vLLM's tests allow 0.04 of 4-bit products."""


def weight_of(mode: str, outputs: int, inputs: int, **changes) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(outputs * 1000 + inputs)
    return replace(random_weight(load_weight_mode(mode), outputs, inputs, generator), **changes)


def groups_of(mode: str, outputs: int, inputs: int, group: int, zeros: bool = False) -> QuantizedWeight:
    """As `weight_of`, but with groups of this size; and zeros of their own."""
    found = weight_of(mode, outputs, inputs)
    count = -(-inputs // group)
    scales = normal(outputs, count, seed=3).abs().clamp(0.2, 2).to(found.scales.dtype) / 64
    own = (normal(outputs, count, seed=4) * 3 + 8).clamp(0, 16).to(torch.int16) if zeros else None
    return replace(found, scales=scales, group=group, zeros=own)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    assert got.shape == want.shape and bool(got.isfinite().all())
    return float((got.double() - want.double()).abs().mean() / want.double().abs().mean())


def check(
    layer: QuantizedLinear | QuantizedWeight, tokens: int, dtype: torch.dtype, ops=OURS, bound: float = 0.0
) -> torch.Tensor:
    """Ours is the product of inputs of `dtype` with the weight in float32."""
    layer = QuantizedLinear((layer,)) if isinstance(layer, QuantizedWeight) else layer
    x = normal(tokens, layer.inputs, seed=tokens, dtype=dtype)
    got = ops.linear(x, layer)
    assert got.dtype == dtype
    error = relative(got, PLAIN.linear(x.float(), layer))
    assert error < (bound or _MEAN[dtype]), error
    return got


@pytest.mark.parametrize("mode", WEIGHT_ONLY)
@pytest.mark.parametrize(("tokens", "outputs", "inputs", "dtype"), [
    (1, 70, 200, DTYPES[2]), (5, 33, 136, DTYPES[0]), (70, 64, 96, DTYPES[1]),
])  # fmt: skip
def test_every_weight_only_form_and_ragged_shapes(mode, tokens, outputs, inputs, dtype) -> None:
    check(weight_of(mode, outputs, inputs), tokens, dtype)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("group", [16, 32, 64, 128, 192, 256, 48, 1024])
def test_every_size_of_group(group, zeros) -> None:
    """Several in a tile, several tiles in one, neither, and one for all of a row."""
    for mode in ("gptq-int4", "gptq-int3") if group in (32, 128) else ("gptq-int4",):
        check(groups_of(mode, 20, 330, min(group, 330), zeros), 3, torch.float32)
    if group in (32, 128):
        check(groups_of("int8-w8a16", 20, 330, group, zeros), 3, torch.bfloat16)


@pytest.mark.parametrize("mode", ["gptq-int4", "squeezellm-4bit", "int8-w8a16", "int8-w8a8"])
def test_columns_that_are_split_are_added_up(mode) -> None:
    weight, bias = weight_of(mode, 40, 900), normal(40)
    layer = QuantizedLinear((weight,), bias)
    whole, split = (check(layer, 3, torch.float32, ops, 1e-5) for ops in (OURS, SPLITTING))
    assert relative(split, whole) < 1e-6
    again = SPLITTING.linear(normal(3, 900, seed=3), layer)
    assert torch.equal(again, split), "the order of the sum is fixed"


def test_order_of_columns_second_level_and_blocks() -> None:
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1)).to(torch.int32)
    check(replace(groups_of("gptq-int4", 24, 200, 32, True), order=order), 4, torch.float32)
    outer = normal(24, seed=5).abs() + 0.5
    for divides in (False, True):
        check(replace(groups_of("gptq-int4", 24, 200, 32), outer=outer, outer_divides=divides), 4, torch.float32)
        row = groups_of("int8-w8a16", 24, 200, 200)
        check(replace(row, outer=outer, outer_divides=divides), 4, torch.float32)
    block = weight_of("fp8-block", 200, 300)
    check(replace(block, activation=None), 4, torch.bfloat16)
    check(replace(weight_of("nvfp4", 24, 200), activation=None), 4, torch.bfloat16)


@pytest.mark.parametrize("mode", [*WEIGHT_ONLY, "awq zeros a row", "fp8-block", "nvfp4", "fp8-channel", "outer"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_expanded_once_is_the_reference_bit_for_bit(mode, dtype) -> None:
    """Rows in parts, from one that is not the first on, and as wide as no tile is."""
    if mode == "awq zeros a row":
        weight = groups_of("gptq-int4", 70, 330, 330, True)
    elif mode == "outer":
        weight = replace(groups_of("gptq-int4", 70, 330, 32), outer=normal(70, seed=5).abs() + 0.5, outer_divides=True)
    else:
        weight = replace(weight_of(mode, 70, 330), activation=None)
    want = dequantise(weight, dtype)
    for first, last in ((0, 70), (13, 66)):
        out = torch.empty(last - first, 330, dtype=dtype)
        expand_rows(OURS._launch, weight, first, out)
        assert torch.equal(out, want[first:last])


@pytest.mark.parametrize("mode", ["gptq-int4", "int8-w8a16", "mxfp4"])
def test_many_tokens_expand_a_weight_once(mode, monkeypatch) -> None:
    bias, order = normal(300, seed=2), torch.randperm(200, generator=torch.Generator().manual_seed(1)).to(torch.int32)
    weight = weight_of(mode, 300, 200)
    weight = replace(weight, order=order) if mode == "gptq-int4" else weight
    monkeypatch.setattr(whole, "SCRATCH", 130 * 200 * 4)  # 128 rows at a time, of 300
    layer, tokens = (
        QuantizedLinear((Dense(normal(8, 200)), weight), torch.cat((normal(8), bias))),
        whole_from(OURS._launch.target),
    )
    many = check(layer, tokens, torch.float32)
    x = normal(tokens, 200, seed=tokens)
    few = OURS.linear(x[: tokens - 1], layer)
    assert relative(few, many[: tokens - 1]) < 1e-6
    seen = []
    monkeypatch.setattr(linear, "whole_product", lambda *given: seen.append(len(given[1])))
    monkeypatch.setattr(linear, "expanded_product", lambda *given: seen.append(-len(given[1])))
    for count in (tokens - 1, tokens):
        OURS.linear(x[:count], layer)
    assert seen == [1 - tokens, tokens]


def sparse_part(outputs: int, inputs: int) -> Sparse:
    """Rows without outliers, with one, and with more than a block of them."""
    counts = torch.tensor([0, 1, 70, 5, 0, 3] * outputs)[:outputs].clamp(max=inputs)
    columns = torch.cat([torch.randperm(inputs)[:count].sort().values for count in counts.tolist()])
    starts = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    return Sparse(starts.to(torch.int32), columns.to(torch.int32), normal(len(columns), seed=8).half())


@pytest.mark.parametrize("tokens", [1, 40])
def test_outliers_are_added(tokens) -> None:
    torch.manual_seed(2)
    weight = replace(weight_of("squeezellm-4bit", 7, 150), sparse=sparse_part(7, 150))
    got = check(QuantizedLinear((weight,), normal(7)), tokens, torch.float32)
    bare = OURS.linear(normal(tokens, 150, seed=tokens), QuantizedLinear((replace(weight, sparse=None),), normal(7)))
    assert relative(got, bare) > 0.1
    order = torch.randperm(150).to(torch.int32)
    check(replace(groups_of("gptq-int4", 7, 150, 32), order=order, sparse=weight.sparse), tokens, torch.float32)
    check(replace(weight, activation=Activation("int8")), tokens, torch.float32, bound=1e-5)


INPUTS = {
    "int8": Activation("int8"), "int8 static": Activation("int8", -1, torch.tensor([0.02])),
    "int8 tensor": Activation("int8", -1), "fp8": Activation("fp8"), "fp8 bound": Activation("fp8", 0, None, 2.0),
    "fp8 static": Activation("fp8", -1, torch.tensor([0.01])), "fp8 groups": Activation("fp8", 128),
    "fp8 tensor": Activation("fp8", -1),
}  # fmt: skip


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_are_quantised_as_plain_torch_does(name, dtype) -> None:
    x = normal(5, 300, dtype=dtype) * 2
    x[1], x[2, 0], x[3] = 0.0, 3e4, x[3] * 1e-20
    (codes, scales), (want, theirs) = (
        quantised_inputs(OURS._launch, x, INPUTS[name]),
        quantise_activation(x, INPUTS[name]),
    )
    torch.testing.assert_close(scales, theirs, rtol=2e-7, atol=0)
    assert codes.dtype == want.dtype and torch.equal(codes.float(), want.float())


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("outer", [None, 0.01, 3.0])
def test_inputs_as_4_bit_floats(group, outer) -> None:
    """Values halfway between two of them, groups of zeros, scales below the normal numbers of E4M3 and above its largest."""
    how = Activation("fp4", group, None if outer is None else torch.tensor([outer]))
    x = normal(9, 100) * torch.logspace(-4, 4, 9)[:, None]
    x[2, :32], x[3, :17] = (
        0.0,
        torch.tensor([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -5, 4.9, 0.26, 6, 6, 6, 6]),
    )
    widened, factor = emulated_fp4(OURS._launch, x, how)
    codes, scales = quantise_activation(x, how)
    want = codes * scales.repeat_interleave(group, -1)[:, :100]
    assert (factor is None) == (outer is None)
    got = widened if factor is None else widened * factor[:, None]
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)
    narrow = emulated_fp4(OURS._launch, x.bfloat16(), how)[0]
    again = emulated_fp4(OURS._launch, x.bfloat16().float(), how)[0]
    assert torch.equal(narrow.float(), again), "16 bits hold them"


@pytest.mark.parametrize(("mode", "bound"), [
    ("int8-w8a8", 1e-5), ("fp8", 1e-5), ("fp8-dynamic", 1e-5), ("fp8-channel", 1e-5), ("fp8-block", 1e-5),
])  # fmt: skip
@pytest.mark.parametrize(("tokens", "outputs", "inputs"), [(1, 70, 200), (40, 200, 300)])
def test_codes_times_codes(mode, bound, tokens, outputs, inputs) -> None:
    """The same codes on both sides, so that only the order of sums differs; vLLM's tests allow 0.001 of block-scaled fp8."""
    weight = weight_of(mode, outputs, inputs)
    check(QuantizedLinear((weight,), normal(outputs)), tokens, torch.float32, bound=bound)
    check(weight, tokens, torch.bfloat16, bound=6e-3)


def test_fp8_blocks_are_within_a_thousandth_of_bf16() -> None:
    layer = QuantizedLinear((weight_of("fp8-block", 256, 512),))
    x = normal(64, 512, dtype=torch.bfloat16)
    assert relative(OURS.linear(x, layer), PLAIN.linear(x, layer)) < 1e-3


@pytest.mark.parametrize(("mode", "how"), [
    ("gptq-int4", Activation("int8")), ("gptq-int4", Activation("fp8", 128)), ("nvfp4", None), ("mxfp4", Activation("fp4", 32)),
    ("int8-w8a8", Activation("fp8")), ("fp8-channel", Activation("int8")),
])  # fmt: skip
def test_quantised_inputs_with_weights_of_another_kind(mode, how) -> None:
    weight = weight_of(mode, 40, 200)
    weight = replace(weight, activation=how or weight.activation)
    check(weight, 5, torch.float32, bound=1e-5)
    check(weight, 5, torch.bfloat16, bound=1e-2)


def test_parts_follow_one_another_and_one_may_not_be_quantized() -> None:
    """Query, key and value with scales of their own, inputs of their own, and one in 16 bits."""
    static = [Activation("fp8", -1, torch.tensor([scale])) for scale in (0.01, 0.02)]
    parts = (
        replace(weight_of("fp8", 40, 96), activation=static[0]), replace(weight_of("fp8", 16, 96), activation=static[1]),
        Dense(normal(16, 96)), weight_of("gptq-int4", 24, 96),
    )  # fmt: skip
    for bias in (None, normal(96)):
        got = check(QuantizedLinear(parts, bias), 3, torch.float32, bound=1e-5)
        assert got.shape == (3, 96)


def test_no_tokens_and_rows_that_lie_apart() -> None:
    layer = QuantizedLinear((weight_of("gptq-int4", 24, 96), weight_of("int8-w8a8", 8, 96)))
    assert OURS.linear(torch.zeros(0, 96), layer).shape == (0, 32)
    wide = normal(4, 200)
    assert torch.equal(OURS.linear(wide[:, 50:146], layer), OURS.linear(wide[:, 50:146].contiguous(), layer))


def test_a_token_gets_the_same_in_any_company_of_its_tile() -> None:
    layer = QuantizedLinear((weight_of("awq-int4", 30, 200),))
    x = normal(9, 200)
    together = OURS.linear(x, layer)
    assert torch.equal(OURS.linear(x[3:4], layer)[0], together[3])
    x[4:] = float("nan")
    assert torch.equal(OURS.linear(x, layer)[:4], together[:4])


@pytest.mark.parametrize("mode", ["fp8", "fp8-block"])
def test_fp8_is_refused_where_the_compiler_does_not_know_it(mode) -> None:
    ops = TritonOperators(launch=Launcher(Target("sm_80", 108)))
    with pytest.raises(InputError, match="weights in fp8 cannot be multiplied by Triton on sm_80"):
        ops.linear(normal(1, 64), QuantizedLinear((weight_of(mode, 16, 64),)))


def test_the_reference_is_what_it_says() -> None:
    """So that none of the above compares two of the same mistakes: 4-bit codes by hand."""
    weight = QuantizedWeight(
        "int", 4, 1, 8, torch.tensor([[0x76543210]], dtype=torch.int32), torch.tensor([[0.5, 2.0]]), 1, 4,
        zeros=torch.tensor([[1, 7]], dtype=torch.int16),
    )  # fmt: skip
    assert dequantise(weight)[0].tolist() == [-0.5, 0, 0.5, 1, -6, -4, -2, 0]
    got = OURS.linear(torch.eye(8), QuantizedLinear((weight,)))
    assert got[:, 0].tolist() == [-0.5, 0, 0.5, 1, -6, -4, -2, 0]
