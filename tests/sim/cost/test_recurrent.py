"""Recurrent layers and the indexer of sparse attention, priced."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from sim.config import EngineConfig, ParallelConfig
from sim.cost import StepShape, build_cost
from sim.cost.constants import ElementwiseConstants
from sim.cost.recurrent import RecurrentLayer
from sim.hardware import load_gpu
from sim.models import StateDims, load_model

NEXT = "Qwen3-Next-80B-A3B"


def steps(model: str, gpu: str = "h200", tensor: int = 1, host: str = "none", **parallel):
    parts = ParallelConfig(tensor=tensor, **parallel)
    return build_cost(load_model(model), load_gpu(gpu), EngineConfig(host=host, parallel=parts))


def operator(cost, name: str, shape: StepShape):
    return next(each for each in cost.explain(shape) if each.name == name)


def decoding(rows: int, context: int) -> StepShape:
    return StepShape(rows, rows * context, sampled=rows)


def test_a_decoding_row_reads_and_writes_its_state_whatever_its_context() -> None:
    cost, state = steps(NEXT), load_model(NEXT).state
    near, far = (operator(cost, "recurrence", decoding(64, context)) for context in (100, 100_000))
    assert near.seconds == pytest.approx(far.seconds)
    one, two = (operator(cost, "recurrence", decoding(rows, 500)).bytes for rows in (64, 128))
    # 32 heads of 128 × 128 and 3 × 8192 inputs of the convolution, in 16 bit, there and back, in 36 layers; then the row itself
    states = 36 * 2 * 2 * (32 * 128 * 128 + 3 * 8192)
    assert (two - one) / 64 == pytest.approx(states, rel=0.05) and (two - one) / 64 > states
    assert state.layers == 36


def test_sglang_keeps_states_in_32_bits() -> None:
    half, whole = (
        operator(steps(NEXT, host=host), "recurrence", decoding(256, 500)).bytes for host in ("vllm", "sglang")
    )
    assert whole / half == pytest.approx(1.9, rel=0.06)


def test_gpus_share_the_heads() -> None:
    one, four = (operator(steps(NEXT, tensor=tensor), "recurrence", decoding(512, 500)).bytes for tensor in (1, 4))
    assert one == pytest.approx(4 * four)


def test_long_prompts_take_a_time_that_more_gpus_do_not_shorten() -> None:
    """Chunks of 64 follow one after another: more GPUs help one long prompt less than many short ones."""
    prompt, prompts = StepShape(chunks=((8192, 0),), sampled=1), StepShape(chunks=((256, 0),) * 32, sampled=32)
    few, many = steps(NEXT, tensor=4), steps(NEXT, tensor=16)
    alone = operator(few, "recurrence", prompt).seconds / operator(many, "recurrence", prompt).seconds
    batch = operator(few, "recurrence", prompts).seconds / operator(many, "recurrence", prompts).seconds
    assert alone < batch


DELTA = StateDims("gated-delta", 1, 16, 16, 128, 128)
TIMED = [  # GPU, state, prompts of so many tokens, milliseconds
    # flashinfer-ai/flashinfer#3866, flash-linear-attention on H100: 2 key heads and 8 value heads
    ("h100", replace(DELTA, heads=8, groups=2), 1, 65_536, 1.954), ("h100", replace(DELTA, heads=8, groups=2), 1, 8192, 0.259),
    ("h100", replace(DELTA, heads=8, groups=2), 2, 4096, 0.184), ("h100", replace(DELTA, heads=8, groups=2), 1, 2048, 0.086),
    # #3902: 27B and 35B on one GPU
    ("h100", replace(DELTA, heads=48), 1, 65_536, 5.074), ("h100", replace(DELTA, heads=48), 1, 8192, 0.653),
    ("h100", replace(DELTA, heads=48), 2, 4096, 0.652), ("h100", replace(DELTA, heads=48), 1, 4096, 0.341),
    ("h100", replace(DELTA, heads=32), 8, 8192, 3.272), ("h100", replace(DELTA, heads=32), 32, 8192, 12.915),
    # #3001, on B200
    ("b200", replace(DELTA, heads=16, groups=4), 1, 8192, 0.424), ("b200", replace(DELTA, heads=8, groups=2), 1, 8192, 0.338),
    # vllm-project/vllm#27299: tokens a second of Mamba-2 with the sizes of granite-4.0-h-small
    ("h100", StateDims("mamba2", 1, 128, 1, 128, 64), 1, 8192, 8192 / 1.262327e7 * 1e3),
    ("h100", StateDims("mamba2", 1, 128, 1, 128, 64), 1, 65_536, 65_536 / 1.106830e7 * 1e3),
]  # fmt: skip


def test_the_rule_takes_what_it_took_where_it_was_timed() -> None:
    constants = ElementwiseConstants(3.0, 0.8, "")
    errors = []
    for name, state, prompts, tokens, ms in TIMED:
        layer = RecurrentLayer(constants, load_gpu(name), state, 1, 4)
        seconds = layer.rule(prompts * tokens, tokens) + layer.launches * 3e-6
        errors.append(abs(math.log(seconds / ms * 1e3)))
    assert max(errors) < 0.2 and statistics.median(errors) < 0.06


def test_only_attention_layers_read_the_context() -> None:
    """A dense model of the same width reads four times the KV: all layers attend instead of a quarter."""
    model = load_model("Qwen3.5-9B")
    cost = steps(model.name)
    grown = operator(cost, "attention_decode", decoding(8, 40_000))
    assert grown.count == 8 and grown.bytes == pytest.approx(8 * 40_000 * 8 * 2 * 4 * 256 * 2, rel=0.01)
    assert operator(cost, "qkv_proj", decoding(8, 10)).flops == 8 * 2 * 8 * (2 * 16 + 2 * 4) * 256 * 4096


def test_layers_of_one_kind_each_are_counted_apart() -> None:
    """Nemotron-H: 23 Mamba layers, 6 of attention, 23 of experts; a sum over GPUs after each, and after the embedding."""
    cost = steps("Nemotron-3-Nano-30B-A3B", tensor=2)
    shape = decoding(16, 500)
    counts = {each.name: each.count for each in cost.explain(shape)}
    assert (counts["recurrence"], counts["attention_decode"], counts["experts"], counts["all_reduce"]) == (
        23,
        6,
        23,
        53,
    )
    assert counts["norm"] + counts.get("norm_in_all_reduce", 0) == 53


def test_the_indexer_scores_all_and_attention_sees_the_best() -> None:
    cost = steps("DeepSeek-V3.2", "h200", 8)
    small, large = decoding(4, 2000), decoding(4, 64_000)
    assert operator(cost, "attention_decode_sparse", large).bytes == pytest.approx(4 * 2048 * 61 * 576 * 2, rel=0.01)
    assert operator(cost, "attention_decode_sparse", small).bytes < 4 * 2048 * 61 * 576 * 2
    index = operator(cost, "indexer", large)
    # 64 heads of 128, 61 layers; every GPU does all of it
    assert index.flops == pytest.approx(4 * 64_000 * 61 * 2 * 64 * 128, rel=0.01)
    assert index.bytes == pytest.approx(4 * 64_000 * 61 * (132 + 12), rel=0.01)
    dense = steps("DeepSeek-V3", "h200", 8)
    assert cost.step_seconds(large) < dense.step_seconds(large), "that is what it is for"


def test_prompts_of_sparse_attention_grow_as_the_indexer_does() -> None:
    cost = steps("DeepSeek-V3.2", "h200", 8)
    first, last = StepShape(chunks=((8192, 0),), sampled=1), StepShape(chunks=((8192, 122_880),), sampled=1)
    index = [operator(cost, "indexer", shape).flops for shape in (first, last)]
    assert index[1] / index[0] == pytest.approx((8192 + 2 * 122_880) / 8192)
    sparse = [operator(cost, "attention_prefill_sparse", shape).flops for shape in (first, last)]
    assert 1 < sparse[1] / sparse[0] < 1.2


def test_what_was_not_measured_is_said() -> None:
    assert any("recurrent layers" in note for note in steps(NEXT).notes)
    assert any("sparse attention" in note for note in steps("GLM-5", "h200", 8).notes)
    cost = steps(NEXT)
    assert cost.uncertainty["recurrence"] >= 0.3
    assert {"recurrence"} <= {each["what"] for each in cost.provenance}


def test_windowed_layers_with_heads_of_their_own_read_their_own() -> None:
    cost = steps("Gemma-4-31B", "h200", 2)
    near, far = (
        operator(cost, name, decoding(4, 20_000)) for name in ("attention_decode_windowed", "attention_decode")
    )
    assert near.bytes == pytest.approx(4 * 1024 * 50 * 2 * 8 * 256 * 2, rel=0.01)
    assert far.bytes == pytest.approx(4 * 20_000 * 10 * 2 * 2 * 512 * 2, rel=0.01)
    prompt = StepShape(chunks=((4096, 0),), sampled=1)
    near, far = (operator(cost, name, prompt) for name in ("attention_prefill_windowed", "attention_prefill"))
    assert (near.count, far.count) == (50, 10)
    assert far.flops == pytest.approx(10 * 2 * 16 * 512 * 4096 * 4096)
    assert operator(cost, "full_qkv_proj", prompt).flops == 10 * 2 * 4096 * (16 + 2) * 512 * 5376
