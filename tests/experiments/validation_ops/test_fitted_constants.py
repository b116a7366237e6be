"""The fits that bundled constants are made by, on timings whose constants are known."""

from dataclasses import replace

import pytest

from experiments.validation_ops.collectives import fit_all_reduces, fit_library
from experiments.validation_ops.constants import BY_WIDTH, kept_of, start_of
from sim.cost.collectives import limited
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


def all_reduces(constants: AllReduceConstants, ways: int = 4, least: int = 256) -> list[Timing]:
    """What these constants say of messages from some size up to 1 GB."""
    bare = [timing("all_reduce", "h100-sxm", 1.0, ways, float(least * 2**power)) for power in range(23)]
    rows = [each for each in bare if each.shape["bytes"] <= 1 << 30]
    return [replace(each, us=predict(each, constants, H100)) for each in rows]


TRUTH = AllReduceConstants(
    4.0, 0.6, 9.0, 0.5, "made up", rank_us=0.15, ring_us=4.0, ring=0.8, ring_rank_us=1.0, ring_chunk_us=5.0,
    ring_switch=0.65, ring_switch_us=12.0, ring_switch_rank_us=8.0, ring_mb=1.0,
)  # fmt: skip


def told(ways: int) -> AllReduceConstants:
    return limited(TRUTH, "vllm", H100, ways)


def test_numbers_of_gpus_tell_about_each_other():
    """The rows of two and eight GPUs alone price those of four, and what all say of one kernel is found."""
    rows = [row for ways in (2, 8) for row in all_reduces(told(ways), ways)]
    found = fit_all_reduces(rows, H100, "vllm", TRUTH)
    assert set(found) == {2, 8}
    assert found[8].rank_us == pytest.approx(0.15, rel=0.1) and found[8].two_shot == pytest.approx(0.5, rel=0.03)
    unseen = limited(found[8], "vllm", H100, 4)
    rows = all_reduces(told(4), 4)
    assert [predict(row, unseen, H100) for row in rows] == pytest.approx([row.us for row in rows], rel=0.05)


def test_the_library_is_fitted_to_its_own_timings():
    """Its ring and what a switch adds up are told apart by sizes and numbers of GPUs."""
    alone = replace(TRUTH, ring_mb=0.1)
    rows = [row for ways in (2, 4, 8) for row in all_reduces(alone, ways, 1 << 20)]
    found = fit_library(rows, H100, switch=True)
    assert [predict(row, found, H100) for row in rows] == pytest.approx([row.us for row in rows], rel=0.02)
    assert found.ring == pytest.approx(0.8, rel=0.03) and found.ring_switch == pytest.approx(0.65, rel=0.03)


def test_what_a_limit_would_need_is_not_fitted_without_one():
    plain = AllReduceConstants(4.0, 0.6, 12.0, 0.8, "made up")
    assert constants_names(plain) == ("one_shot_us", "one_shot", "two_shot_us", "two_shot")
    limited = replace(plain, ring_mb=8.0, ring_us=40.0, ring=0.7)
    assert constants_names(limited)[4:] == ("ring_us", "ring")


def test_one_width_of_heads_says_nothing_about_others():
    """A100's tables have heads of 128 alone: terms of the width stay as they are there, and are not switched on."""
    ours, theirs = load_constants(A100, "vllm"), load_constants(H100, "vllm")
    assert set(BY_WIDTH) <= set(kept_of("decode", ours)) and "head_dim_us" not in kept_of("decode", theirs)
    begin = start_of("decode", ours, ("decode", "bf16"))
    assert (begin.extra_bytes, begin.wide_us, begin.head_dim_us) == (0.0, 0.0, 0.0)


def test_products_of_cutlass_take_large_tiles_wherever_they_are_fitted():
    ours = load_constants(H100, "vllm")
    assert start_of("gemm", ours, ("gemm", "fp8")).large_rows == ours.gemm["fp8"].large_rows == 128
    assert start_of("gemm", ours, ("gemm", "bf16")).large_rows == 0
    assert "large_rows" not in constants_names(ours.gemm["fp8"])


def test_the_loss_grows_with_the_square_and_then_in_proportion():
    assert loss_of([0.0]) == 0.0
    assert loss_of([0.005]) == pytest.approx(0.01, rel=0.01)  # a tenth of the scale, squared
    assert loss_of([1.0]) == pytest.approx(2 * 20, rel=0.1)
