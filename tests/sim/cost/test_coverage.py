"""What is told of configurations outside the measured ones, and how uncertainty follows from operator errors."""

from dataclasses import replace
from math import hypot

import pytest

from sim.config import EngineConfig, ParallelConfig
from sim.cost import StepShape, build_cost
from sim.cost.constants import ENGINES, load_constants
from sim.cost.coverage import class_of, deviation, step_deviation
from sim.hardware import load_gpu
from sim.models import load_model


def cost_of(model="Llama-3-8B", gpu="h100", **config):
    return build_cost(load_model(model), load_gpu(gpu), EngineConfig(**config))


@pytest.mark.parametrize(
    ("gpu", "config", "words"),
    [
        ("h100", {}, None),
        ("h200", {}, None),  # same architecture: carried over by the data sheet
        ("a100", {}, None),
        ("b200", {}, "h100-sxm"),
        ("mi300x", {}, "h100-sxm"),
        ("h100", {"quantization": "awq-int4"}, "awq-int4"),
        ("h100", {"quantization": "int8-w8a8"}, "int8-w8a8"),
        ("h100", {"parallel": ParallelConfig(pipeline=2)}, "pipeline"),
        ("h100", {"max_model_len": 500_000}, "131,072"),
    ],
)
def test_what_was_not_validated_is_told_with_its_neighbour(gpu, config, words):
    notes = [note for note in cost_of(gpu=gpu, **config).notes if note.startswith("outside what was validated")]
    assert len(notes) == (words is not None)
    assert words is None or words in notes[0]


def test_every_operator_has_a_class_with_a_deviation():
    for engine in ENGINES:
        for model, gpu, parallel in (
            ("Llama-3-8B", "h100", ParallelConfig(tensor=2, pipeline=2)),
            ("Qwen3-30B-A3B", "h200", ParallelConfig(tensor=1, data=8, expert=8)),
            ("DeepSeek-V3", "b200", ParallelConfig(tensor=8)),
        ):
            cost = cost_of(model, gpu, host=engine, parallel=parallel)
            operators = cost.explain(StepShape(8, 8000, ((300, 0),), 9, swapped_tokens=5))
            assert {class_of(op.name) for op in operators} <= set(cost.uncertainty)
            assert all(0 < spread < 1 for spread in cost.uncertainty.values())


def test_borrowed_and_stand_in_constants_are_less_certain():
    h100 = load_gpu("h100")
    own = load_constants(h100, "vllm").gemm["bf16"]
    near = load_constants(load_gpu("h200"), "vllm").gemm["bf16"]
    far = load_constants(load_gpu("b200"), "vllm").gemm["bf16"]
    spreads = [deviation(own, h100), deviation(near, load_gpu("h200")), deviation(far, load_gpu("b200"))]
    assert spreads == sorted(spreads) and spreads[0] < spreads[1] < spreads[2] / 2
    assert deviation(own, h100) == pytest.approx(1.4826 * own.error)
    assert deviation(replace(own, source="x; taken over for int8"), h100) > 0.25


def test_a_step_is_as_uncertain_as_its_parts():
    """Errors of one class go together over all layers; those of different classes do not."""
    cost = cost_of(host="none", depth=2)
    shape = StepShape(32, 32 * 4000, sampled=32)
    operators = cost.explain(shape)
    total = cost.step_seconds(shape)
    share = {}
    for op in operators:
        share[class_of(op.name)] = share.get(class_of(op.name), 0.0) + op.seconds / total
    assert cost.step_uncertainty(shape) == pytest.approx(hypot(*(share[k] * cost.uncertainty[k] for k in share)))
    alone = [op for op in operators if class_of(op.name) == "linear"]
    assert step_deviation(alone, cost.uncertainty) == pytest.approx(cost.uncertainty["linear"])
    assert step_deviation([], cost.uncertainty) == 0


def test_fp4_experts_are_priced_like_the_same_devices_fp8_ones():
    cost = cost_of("DeepSeek-V3", "b200", host="sglang", quantization="nvfp4", parallel=ParallelConfig(tensor=8))
    experts = next(op for op in cost.explain(StepShape(8, 8000, sampled=8)) if op.name == "experts")
    assert "SGLang picks" in experts.source and "b200-sxm" in experts.source and "taken over for fp4" in experts.source
