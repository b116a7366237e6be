"""Experts as engines run them: widths that kernels take, tokens on their way to other ranks, operations outside graphs."""

import pytest

from sim.config import EngineConfig, ParallelConfig
from sim.cost import build_cost
from sim.cost.experts import Exchange, padded_widths
from sim.hardware import load_gpu
from sim.models import load_model

B200, H100 = load_gpu("b200-sxm"), load_gpu("h100-sxm")


def operators(model: str, gpu, quantization: str, engine: str = "tensorrt-llm", tensor: int = 8):
    config = EngineConfig(
        preset=engine, host=engine, depth=2, quantization=quantization, parallel=ParallelConfig(tensor=tensor)
    )  # fmt: skip
    cost = build_cost(load_model(model), gpu, config)
    return {placed.name: placed for placed in cost.operators.token}, cost.operators.launches


def test_widths_are_rounded_up_to_what_kernels_take():
    """gpt-oss is 2,880 wide and so are its experts: 360 of them on each of eight GPUs."""
    assert padded_widths(360, 2880, B200) == (512, 3072)
    assert padded_widths(360, 2880, H100) == (384, 3072)
    assert padded_widths(2880, 2880, B200) == (3072, 3072)
    assert padded_widths(360, 2880, load_gpu("a100")) == (360, 2880)


def test_padding_is_read_and_computed():
    """1.52 times as much of every expert with 4-bit weights; others are as wide as they are."""
    placed, _ = operators("gpt-oss-120b", B200, "mxfp4")
    whole, model = placed["experts"].operator, load_model("gpt-oss-120b")
    bits = 4 + 8 / 32
    assert whole.work(1e6).bytes > whole.touched(1e6) * 3 * 512 * 3072 * bits / 8
    assert whole._expert == pytest.approx(3 * 512 * 3072 * bits / 8)
    plain, _ = operators("gpt-oss-120b", H100, "bf16")
    assert plain["experts"].operator._expert == 3 * (model.expert_ffn // 8) * model.hidden * 2


def test_an_exchange_has_a_least_time_and_a_share_of_the_link():
    """Eight H100 gather 134 million values of 16 bit in 730 us (NCCL); 67 million among two take 293."""
    eight = Exchange(H100.group_link(8), 8, 2.0 * 7 / 8)
    assert eight.seconds(134217728) * 1e6 == pytest.approx(730, rel=0.03)
    assert Exchange(H100.group_link(2), 2, 1.0).seconds(67108864) * 1e6 == pytest.approx(293, rel=0.1)
    assert eight.seconds(1) * 1e6 == pytest.approx(10.5, rel=0.01)
    assert Exchange(B200.group_link(8), 8, 2.0).seconds(1e8) < 0.6 * Exchange(H100.group_link(8), 8, 2.0).seconds(1e8)


def test_operations_of_latent_attention_and_shared_experts():
    """Two streams and their events; on Blackwell scales of blocks are laid out apart, for six products a layer."""
    model = load_model("DeepSeek-R1")
    (_, hopper), (_, blackwell) = (operators("DeepSeek-R1", gpu, "fp8-block") for gpu in (H100, B200))
    dense = (
        5 * model.layers + 2 * model.dense_layers + 2 * model.moe_layers - model.layers
    )  # one product for both first ones
    assert blackwell - hopper == dense
    _, alone = operators("Qwen3-235B-A22B", B200, "fp8-block")
    assert blackwell / model.layers > 1.8 * alone / load_model("Qwen3-235B-A22B").layers
