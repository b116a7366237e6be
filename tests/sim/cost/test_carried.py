"""What a device reaches of borrowed shares, and kernels of older engines."""

from dataclasses import replace

import pytest

from sim.config import EngineConfig, ParallelConfig
from sim.cost.base import StepShape
from sim.cost.build import analytic_cost
from sim.cost.carried import carried, in_service
from sim.cost.constants import load_constants
from sim.hardware import load_gpu
from sim.models import load_model

H100, MI300X = load_gpu("h100"), load_gpu("mi300x")


def test_borrowed_shares_are_scaled_and_say_so():
    ours, theirs = load_constants(MI300X, "vllm").gemm["bf16"], load_constants(H100, "vllm").gemm["bf16"]
    found = carried(MI300X)
    assert ours.compute == pytest.approx(theirs.compute * found.compute)
    assert ours.bandwidth == pytest.approx(theirs.bandwidth * found.bandwidth)
    assert found.source in ours.source
    assert carried(H100) is None


def test_experts_and_products_in_blocks_are_slow_on_cdna3_and_wide():
    """Qwen3-Coder-480B in FP8 blocks, TP 8, one and 16 sequences of some 800 tokens on MI300X without AITER: 17.1 and 29.4 ms
    (SGLang 0.5.7, sgl-project/sgl-cookbook), which nothing was fitted to."""
    model = load_model("Qwen/Qwen3-Coder-480B-A35B-Instruct")
    config = EngineConfig(
        preset="sglang@0.5",
        host="sglang",
        depth=2,
        quantization="fp8-block",
        parallel=ParallelConfig(tensor=8, expert=2),
    )
    cost = analytic_cost(model, MI300X, config)
    for rows, measured in ((1, 17.06e-3), (16, 26.4e-3)):
        assert cost.step_seconds(StepShape(rows, rows * 800, (), rows)) == pytest.approx(measured, rel=0.15)
    newer = analytic_cost(model, load_gpu("mi355x"), config)
    assert cost.uncertainty["experts"] > newer.uncertainty["experts"]
    ours, theirs = (load_constants(load_gpu(name), "sglang").moe["bf16"].launch_us for name in ("mi300x", "mi355x"))
    assert ours == pytest.approx(theirs * carried(MI300X).slow.experts_launch)
    hosts = [load_constants(gpu, "sglang").host.kernel_launch_us for gpu in (MI300X, load_gpu("mi355x"))]
    assert hosts[0] == pytest.approx(hosts[1] * carried(MI300X).slow.host_launch)


def test_what_holds_for_the_architecture_holds_for_its_cards():
    shared, own = carried(load_gpu("mi355x")), carried(load_gpu("mi325x"))
    assert (own.compute, own.bandwidth, own.early) == (shared.compute, shared.bandwidth, shared.early)
    assert own.slow == carried(MI300X).slow and shared.slow is None


def test_cdna_reaches_the_same_share_of_its_peak_in_every_precision():
    """About 45 % (Ambati et al.), where H100's kernels of FP8 in vLLM reach less of theirs than those of 16 bit."""
    found, theirs = load_constants(MI300X, "vllm").gemm, load_constants(H100, "vllm").gemm
    assert theirs["fp8"].compute < theirs["bf16"].compute
    assert found["fp8"].compute == pytest.approx(found["bf16"].compute) == pytest.approx(0.43, abs=0.03)


def test_small_products_reach_more_of_a_bandwidth_that_is_low_for_the_multiprocessors():
    """Llama-2-7B's up-projection for one token takes 321 us on A40 (Vidur's profiles); ECC is off on A6000."""
    a40, a6000 = load_gpu("a40"), load_gpu("rtx-a6000")
    share = load_constants(load_gpu("a100"), "vllm").gemm["bf16"].bandwidth
    found = load_constants(a40, "vllm").gemm["bf16"]
    seconds = 2 * 4096 * 22016 / (found.bandwidth * a40.bandwidth) + found.launch_us * 1e-6
    assert seconds == pytest.approx(321e-6, rel=0.04)
    assert share < found.bandwidth < load_constants(a6000, "vllm").gemm["bf16"].bandwidth < 0.9


def test_what_a_device_loses_in_service_is_lost_once_and_not_by_kernels_alone():
    h200, model, config = load_gpu("h200"), load_model("llama-3-8b"), EngineConfig(preset="vllm")
    alone = load_constants(h200, "vllm")
    assert alone.gemm["bf16"].bandwidth == load_constants(H100, "vllm").gemm["bf16"].bandwidth
    served = in_service(alone, h200)
    assert served.gemm["bf16"].compute == pytest.approx(0.95 * alone.gemm["bf16"].compute)
    assert served.elementwise.bandwidth == pytest.approx(0.95 * alone.elementwise.bandwidth)
    assert served.host == alone.host and in_service(served, h200) == served
    shape = StepShape(0, 0, ((8192, 0),), 1)
    steps = [analytic_cost(model, h200, config, each).step_seconds(shape) for each in (None, alone, served)]
    assert steps[0] == steps[1] == steps[2]
    own = replace(alone.gemm["bf16"], source="calibrated on 24 timings")
    assert in_service(replace(alone, gemm={"bf16": own}), h200).gemm["bf16"] == own


def test_a_device_with_its_own_kernels_keeps_them():
    b200 = load_constants(load_gpu("b200"), "vllm")
    assert "of its compute" not in b200.moe["bf16"].source


def test_four_bit_experts_of_a_device_with_kernels_for_them():
    """TensorRT-LLM's on Blackwell start faster than its 8-bit ones, and vLLM runs them too; both read as fast."""
    ours, vllm = (load_constants(load_gpu("b200"), engine).moe for engine in ("tensorrt-llm", "vllm"))
    assert ours["mxfp4"].launch_us == ours["fp4"].launch_us < ours["fp8"].launch_us
    assert "fp4" not in vllm and vllm["mxfp4"].launch_us == pytest.approx(vllm["fp8"].launch_us, rel=0.1)
    assert vllm["mxfp4"].bandwidth == ours["mxfp4"].bandwidth == ours["fp4"].bandwidth
    cost = analytic_cost(
        load_model("gpt-oss-120b"), load_gpu("b200"), EngineConfig(preset="vllm", quantization="mxfp4")
    )
    experts = next(op for op in cost.explain(StepShape(4, 4000, (), 4)) if op.name == "experts")
    assert "taken over for mxfp4" in experts.source


def step(model: str, preset: str, rows: int, gpu=MI300X, context: int = 256) -> float:
    cost = analytic_cost(load_model(model), gpu, EngineConfig(preset=preset, parallel=ParallelConfig(tensor=1)))
    return cost.step_seconds(StepShape(rows, rows * context, (), rows))


def test_untuned_products_take_time_in_proportion_to_the_batch():
    slow = [step("llama-2-7b", "vllm-v0", rows) for rows in (64, 128, 256)]
    fast = [step("llama-2-7b", "vllm@0.8", rows) for rows in (64, 128, 256)]
    assert slow[2] - slow[1] == pytest.approx(2 * (slow[1] - slow[0]), rel=0.2)
    assert slow[2] / slow[0] > 3 > fast[2] / fast[0]


def test_heads_of_a_group_do_not_share_reads_in_old_kernels():
    def growth(preset: str) -> float:
        return step("llama-3.1-8b", preset, 64, context=2048) - step("llama-3.1-8b", preset, 64, context=1024)

    assert growth("vllm-v0") > 3 * growth("vllm@0.8")


def test_nothing_old_is_assumed_of_other_devices():
    config = EngineConfig(preset="vllm-v0")
    v0 = analytic_cost(load_model("llama-2-7b"), H100, config)
    v1 = analytic_cost(load_model("llama-2-7b"), H100, replace(config, preset="vllm@0.8"))
    shape = StepShape(64, 64 * 512, (), 64)
    device = [sum(o.seconds for o in c.explain(shape) if o.name != "host") for c in (v0, v1)]
    assert device[0] == pytest.approx(device[1])


def test_multiprocessors_like_adas_take_the_prefill_kernels_of_a100_in_smaller_tiles():
    """Hopper's need its instructions; tiles of 64 queries fit into 100 KB of shared memory."""
    a100 = load_constants(load_gpu("a100-sxm"), "vllm").prefill["bf16"]
    for name in ("rtx-pro-6000", "rtx-4090", "l40s"):
        found = load_constants(load_gpu(name), "vllm").prefill["bf16"]
        assert (found.tile, found.compute) == (64, a100.compute)
        assert "in tiles of 64 queries" in found.source and "a100-sxm" in found.source
    assert load_constants(load_gpu("a40"), "vllm").prefill["bf16"].tile == 64
    for name in ("a100-sxm", "h100-sxm", "b200-sxm", "a30"):
        assert load_constants(load_gpu(name), "vllm").prefill["bf16"].tile == 128
    hopper = load_constants(load_gpu("h100-sxm"), "tensorrt-llm").prefill["fp8"]
    assert load_constants(load_gpu("l40s"), "tensorrt-llm").prefill["fp8"].compute == hopper.compute


def test_products_on_multiprocessors_like_adas_have_amperes_arithmetic_and_newer_memory():
    hopper, ampere = load_constants(H100, "vllm").gemm, load_constants(load_gpu("a100-sxm"), "vllm").gemm
    for name in ("rtx-pro-6000", "l40s"):
        found = load_constants(load_gpu(name), "vllm").gemm
        for kind in ("bf16", "weight-only"):
            assert (found[kind].compute, found[kind].edge) == (ampere[kind].compute, ampere[kind].edge)
            assert found[kind].bandwidth == hopper[kind].bandwidth
            assert "arithmetic: " in found[kind].source
        assert found["fp8"].compute == hopper["fp8"].compute
    assert load_constants(load_gpu("b200-sxm"), "vllm").gemm["bf16"].edge == hopper["bf16"].edge
