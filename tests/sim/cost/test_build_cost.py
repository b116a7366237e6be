"""Making cost models: names, plug-ins, and what is refused."""

import subprocess
import sys
import types

import pytest

from sim.config import EngineConfig, ParallelConfig
from sim.cost import StepShape, build_cost
from sim.cost.build import check_engine
from sim.hardware import load_gpu
from sim.models import load_model
from workloads.errors import InputError

MODEL, H100 = load_model("Llama-3-8B"), load_gpu("h100")


def test_a_users_constants_change_the_price(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[elementwise]\nlaunch_us = 30.0\nbandwidth = 0.8\nsource = "mine"\n')
    shape = StepShape(1, 100, sampled=1)
    slow, usual = build_cost(MODEL, H100, EngineConfig(), path), build_cost(MODEL, H100, EngineConfig())
    assert slow.step_seconds(shape) - usual.step_seconds(shape) == pytest.approx(27e-6 * (65 + 32 + 1 + 1), rel=1e-3)
    assert any(op.source == "mine" for op in slow.explain(shape))


def test_a_cost_model_of_your_own(monkeypatch):
    class Flat:
        def __init__(self, model, gpu, config):
            self.model = model

        def step_seconds(self, shape):
            return 0.001

    module = types.ModuleType("my_costs")
    module.Flat = Flat
    monkeypatch.setitem(sys.modules, "my_costs", module)
    cost = build_cost(MODEL, H100, EngineConfig(), name="my_costs:Flat")
    assert cost.model is MODEL and cost.step_seconds(StepShape(1, 1)) == 0.001


def test_unknown_cost_model():
    with pytest.raises(InputError, match="analytic"):
        build_cost(MODEL, H100, EngineConfig(), name="analytc")


@pytest.mark.parametrize(
    ("host", "preset", "engine"),
    [
        ("vllm", "vllm@0.33", "vllm"), ("none", "sglang@0.5", "sglang"), ("none", "tensorrt-llm", "tensorrt-llm"),
        ("none", "orca", "vllm"), ("sglang", "mini-sglang", "sglang"),
    ],
)  # fmt: skip
def test_whose_kernels_are_meant(host, preset, engine):
    assert check_engine(EngineConfig(host=host, preset=preset)) == engine


def test_wrong_settings_are_refused():
    with pytest.raises(InputError, match="host-time"):
        build_cost(MODEL, H100, EngineConfig(host="vlm"))
    with pytest.raises(InputError, match="attention heads"):
        build_cost(MODEL, H100, EngineConfig(parallel=ParallelConfig(tensor=5)))


def test_importing_costs_is_light():
    """No numpy, pandas, torch or pyarrow for pricing."""
    code = (
        "import sys, sim.cost.build, sim.memory, sim.models, sim.hardware, sim.quantization;"
        "print([m for m in ('numpy', 'pandas', 'torch', 'pyarrow', 'scipy', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize("quantization", ["fp8", "fp8-dynamic", "int8-w8a8"])
def test_8_bit_experts_take_no_longer_than_16_bit_ones(gpu: str, quantization: str) -> None:
    """vLLM's FP8 experts of the bundled table are untuned: 2.4 times as long as 16-bit ones."""
    for name, tensor in (("Mixtral-8x7B", 2), ("DeepSeek-V3", 8)):
        for tokens in (1, 64, 1024, 8192):
            took = {}
            for mode in ("bf16", quantization):
                engine = EngineConfig(quantization=mode, parallel=ParallelConfig(tensor=tensor))
                cost = build_cost(load_model(name), load_gpu(gpu), engine)
                parts = cost.explain(StepShape(tokens, 100, sampled=tokens))
                took[mode] = sum(part.seconds for part in parts if part.name == "experts")
            assert 0.3 * took["bf16"] < took[quantization] <= took["bf16"] * (1 + 1e-9)


def test_the_source_of_bounded_experts_says_so_and_ones_own_constants_stand(tmp_path) -> None:
    model, engine = load_model("Mixtral-8x7B"), EngineConfig(quantization="fp8", parallel=ParallelConfig(tensor=2))
    shape = StepShape(64, 6400, sampled=64)

    def experts(*more):
        return next(part for part in build_cost(model, H100, engine, *more).explain(shape) if part.name == "experts")

    bounded = experts()
    assert "never slower than the 16-bit kernels" in bounded.source
    path = tmp_path / "mine.toml"
    path.write_text(
        "[moe.fp8]\ncompute = 0.1801\nbandwidth = 0.147\nlaunch_us = 37.04\nnorm = 12.0\nexpert_us = 1.239\n"
        'activation = 0.3993\npad = 370.3\npassing = 0.0661\nsource = "mine"\n'
    )
    own = experts(path)
    assert own.source.startswith("mine") and own.seconds > 2 * bounded.seconds


@pytest.mark.parametrize("gpu", ["rtx-5090", "b200-sxm", "h100-sxm"])
def test_tensor_cores_for_fp4_are_no_use_to_integers(gpu: str) -> None:
    """AWQ experts are unpacked to 16 bit everywhere: one token takes no longer than with 16-bit experts, which are four times as
    large. Priced with vLLM's untuned FP8 kernels they took twice as long (RTX 5090, Qwen3-30B-A3B, vLLM 0.15: 241 tokens/s)."""
    took, model, shape = {}, load_model("Qwen3-30B-A3B"), StepShape(1, 500, sampled=1)
    for mode in ("bf16", "awq-int4"):
        parts = build_cost(model, load_gpu(gpu), EngineConfig(preset="vllm", quantization=mode)).explain(shape)
        took[mode] = next(part for part in parts if part.name == "experts").seconds
    assert took["awq-int4"] <= took["bf16"]
