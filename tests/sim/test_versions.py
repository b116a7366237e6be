"""Engines' versions, and how much less is known of the kernels of old ones."""

import pytest

from sim.config import EngineConfig
from sim.cost.base import StepShape
from sim.cost.build import analytic_cost
from sim.hardware import load_gpu
from sim.models import load_model
from sim.presets import preset_config
from sim.versions import behind, version_of


def configured(name: str) -> EngineConfig:
    return preset_config(name, device_memory=80 << 30)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("vllm@0.10.1", (0, 10, 1)),
        ("vllm@0.8", (0, 8)),
        ("vllm@v0.5.4.post1", (0, 5, 4)),
        ("sglang@0.4.4", (0, 4, 4)),
        ("vllm-v0", ()),
        ("static", ()),
    ],
)
def test_the_version_that_was_named_is_kept(name: str, version: tuple[int, ...]) -> None:
    assert version_of(configured(name)) == version


def test_a_bare_name_is_of_its_presets_version() -> None:
    assert configured("sglang").version == "" and version_of(configured("sglang")) == (0, 5)


def test_the_older_an_engine_the_less_is_known_of_its_steps() -> None:
    for older, newer in (("vllm@0.2", "vllm@0.5"), ("vllm@0.5.4", "vllm@0.7"), ("sglang@0.4.1", "sglang@0.4.6")):
        assert behind(configured(older))[0] > behind(configured(newer))[0] > 0
        assert behind(configured(newer))[1] > behind(configured(newer))[0], "experts and latent attention were young"


@pytest.mark.parametrize(
    "name", ["vllm", "vllm@0.8.2", "vllm@0.12", "sglang", "sglang@0.5.6", "tensorrt-llm", "static"]
)
def test_engines_whose_kernels_were_timed_are_not_wider(name: str) -> None:
    assert behind(configured(name)) == (0.0, 0.0)


def test_it_is_in_the_cost_models_uncertainty() -> None:
    model, gpu = load_model("deepseek-ai/DeepSeek-R1"), load_gpu("h200")
    old, new = (analytic_cost(model, gpu, configured(name)) for name in ("sglang@0.4.4", "sglang@0.5"))
    assert old.older > new.older == 0.0
    for kind in ("experts", "attention_decode"):
        assert old.uncertainty[kind] > new.uncertainty[kind]
    assert old.uncertainty["linear"] == new.uncertainty["linear"]


def test_prompts_on_hopper_before_flash_attention_3() -> None:
    """vllm-project/vllm#12093: Llama-3.1-8B, 2,048 tokens in and 128 out, takes 26,992 tokens/s with FlashAttention 2 and 10 %
    more with 3; other cards never had it."""
    model, h100 = load_model("meta-llama/Llama-3.1-8B"), load_gpu("h100")
    prompts = StepShape(0, 0, ((2048, 0),) * 4, 4)
    for old, new in (("vllm@0.6.6", "vllm@0.7"), ("sglang@0.4.4", "sglang@0.4.6")):
        before, after = (analytic_cost(model, h100, configured(name)).step_seconds(prompts) for name in (old, new))
        assert 1.02 < before / after < 1.15
        before, after = (analytic_cost(model, load_gpu("a100"), configured(name)) for name in (old, new))
        assert before.step_seconds(prompts) == after.step_seconds(prompts)


def test_four_bit_experts_were_unpacked_on_blackwell_before_vllm_0_11() -> None:
    """vllm-project/vllm#23008 made FlashInfer's kernels the default there."""
    model, gpu = load_model("openai/gpt-oss-20b"), load_gpu("b200")
    names, prompts = ("vllm@0.10.1", "vllm@0.11"), StepShape(0, 0, ((8192, 0),), 1)
    old, new = (analytic_cost(model, gpu, configured(name)) for name in names)
    unpacked, multiplied = (next(op for op in cost.explain(prompts) if op.name == "experts") for cost in (old, new))
    assert unpacked.seconds > 1.3 * multiplied.seconds
    older, newer = (analytic_cost(model, load_gpu("h200"), configured(name)) for name in names)
    assert older.step_seconds(prompts) == newer.step_seconds(prompts), "Hopper has no such tensor cores"
    assert old.older == older.older > 0.0 == new.older, "measured 1.4 to 2.7 times as long on both"
    assert analytic_cost(load_model("Qwen/Qwen3-8B"), gpu, configured(names[0])).older == 0.0
