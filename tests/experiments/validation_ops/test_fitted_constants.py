"""The fits that bundled constants are made by, on timings whose constants are known."""

from dataclasses import replace

import pytest

from experiments.validation_ops.constants import BY_WIDTH, fit_group, kept_of, start_of
from sim.cost.constants import AllReduceConstants, load_constants
from sim.cost.fit import constants_names, loss_of
from sim.cost.forms import predict
from sim.cost.timings import SHAPES, Timing
from sim.hardware import load_gpu
from workloads.errors import Place

H100, A100 = load_gpu("h100"), load_gpu("a100")


def timing(op: str, gpu: str, us: float, *size: float) -> Timing:
    shape = dict(zip(SHAPES[op], size, strict=True))
    return Timing(op, "bf16", "bf16", shape, us, "vllm", gpu, "graph", "", Place("made up"))


def all_reduces(constants: AllReduceConstants) -> list[Timing]:
    """What these constants say of messages of 256 bytes to 1 GB on four GPUs."""
    bare = [timing("all_reduce", "h100-sxm", 1.0, 4.0, 256.0 * 2**power) for power in range(23)]
    return [replace(each, us=predict(each, constants, H100)) for each in bare]


@pytest.mark.parametrize("limit", [0.0, 12.0])
def test_the_size_from_which_the_library_takes_over_is_found(limit):
    ring = {"ring_mb": limit, "ring_us": 60.0, "ring": 0.7} if limit else {}
    truth = AllReduceConstants(4.0, 0.6, 12.0, 0.8, "made up", **ring)
    rows = all_reduces(truth)
    found, _ = fit_group([rows], H100, load_constants(H100, "vllm"), starts=1)
    assert found.ring_mb == limit
    assert [predict(row, found, H100) for row in rows] == pytest.approx([row.us for row in rows], rel=0.03)


def test_what_a_limit_would_need_is_not_fitted_without_one():
    plain = AllReduceConstants(4.0, 0.6, 12.0, 0.8, "made up")
    assert constants_names(plain) == ("one_shot_us", "one_shot", "two_shot_us", "two_shot")
    limited = replace(plain, ring_mb=8.0, ring_us=40.0, ring=0.7)
    assert constants_names(limited)[4:] == ("ring_us", "ring")


def test_one_width_of_heads_says_nothing_about_others():
    """A100's tables have heads of 128 alone: terms of the width stay as they are there, and are not switched on."""
    ours, theirs = load_constants(A100, "vllm"), load_constants(H100, "vllm")
    assert set(BY_WIDTH) <= set(kept_of("decode", ours)) and not kept_of("decode", theirs)
    begin = start_of("decode", ours, ("decode", "bf16"))
    assert (begin.extra_bytes, begin.wide_us) == (0.0, 0.0)


def test_products_of_cutlass_take_large_tiles_wherever_they_are_fitted():
    ours = load_constants(H100, "vllm")
    assert start_of("gemm", ours, ("gemm", "fp8")).large_rows == ours.gemm["fp8"].large_rows == 128
    assert start_of("gemm", ours, ("gemm", "bf16")).large_rows == 0
    assert "large_rows" not in constants_names(ours.gemm["fp8"])


def test_the_loss_grows_with_the_square_and_then_in_proportion():
    assert loss_of([0.0]) == 0.0
    assert loss_of([0.005]) == pytest.approx(0.01, rel=0.01)  # a tenth of the scale, squared
    assert loss_of([1.0]) == pytest.approx(2 * 20, rel=0.1)
