"""What TensorRT-LLM's two runtimes place beside the weights."""

from dataclasses import replace

import pytest

from sim.config import ParallelConfig
from sim.hardware import GIB, load_gpu
from sim.memory import memory_budget
from sim.models import load_model
from sim.presets import preset_config

H100, H200 = load_gpu("h100"), load_gpu("h200")


def built(*, rows: int, tokens: int, longest: int, depth: int = 1, tensor: int = 1, quantization: str = "auto"):
    """A configuration of TensorRT-LLM; `depth` 1 is its C++ runtime."""
    made = preset_config("tensorrt-llm-chunked", device_memory=H100.memory_bytes)
    scheduler = replace(made.scheduler, max_num_seqs=rows, max_num_batched_tokens=tokens)
    return replace(
        made, depth=depth, scheduler=scheduler, max_model_len=longest, quantization=quantization,
        parallel=ParallelConfig(tensor=tensor),
    )  # fmt: skip


def test_buffers_of_the_c_runtime_are_what_it_printed():
    """2.66 and 5.76 GiB for 2,048 rows of Qwen2.5-0.5B and 32,768 tokens, and next to none for one row (TensorRT-LLM#1188)."""
    model = load_model("Qwen2.5-0.5B")
    many, one = (
        memory_budget(model, H100, built(rows=n, tokens=8192, longest=32768)).activation_bytes for n in (2048, 1)
    )
    assert (many - one) / GIB == pytest.approx(2.66 + 5.76, rel=0.03)


def test_an_engine_built_for_many_rows_has_half_the_cache():
    """Llama-3.1-70B in FP8 on one H100: as measured with 0.14, whose engines were built for 2,048 rows whatever fits."""
    model = load_model("Llama-3.1-70B")
    many, few = (
        memory_budget(model, H100, built(rows=n, tokens=2048, longest=2048, quantization="fp8")) for n in (2048, 64)
    )
    assert many.kv_tokens / few.kv_tokens == pytest.approx(0.5, abs=0.05)


def test_the_pytorch_runtime_keeps_less_for_sampling():
    """What its tests allow Llama-3.1-8B to peak at: 19.4 GiB in 16 bit, 12.0 in 8 bit, and not much less."""
    model = load_model("Llama-3.1-8B")
    for mode, rows, peak in (("auto", 2048, 19.4), ("fp8", 4096, 12.0)):
        made = built(rows=rows, tokens=8192, longest=256, depth=2, quantization=mode)
        budget = memory_budget(model, H100, made)
        used = budget.weight_bytes + budget.activation_bytes + budget.overhead_bytes
        assert used / GIB == pytest.approx(peak, abs=1.3)
    built_ahead = memory_budget(model, H100, built(rows=2048, tokens=8192, longest=256))
    assert (
        built_ahead.kv_bytes < memory_budget(model, H100, built(rows=2048, tokens=8192, longest=256, depth=2)).kv_bytes
    )


def test_repacked_experts_stay_in_part():
    """gpt-oss-120b on one H200: about 83 GB reserved after loading; on Blackwell nothing is repacked so."""
    model = load_model("gpt-oss-120b")
    made = built(rows=64, tokens=8192, longest=9472, depth=2)
    hopper, blackwell = (memory_budget(model, load_gpu(g), made).weight_bytes for g in ("h200", "b200"))
    assert hopper / 1e9 == pytest.approx(83, abs=3)
    assert blackwell == model.weight_bytes("auto")
    halves = memory_budget(model, H200, replace(made, parallel=ParallelConfig(tensor=2))).weight_bytes
    assert halves < 0.6 * hopper


def test_other_engines_are_left_as_they_were():
    model = load_model("Llama-3.1-8B")
    for name in ("vllm@0.33", "sglang", "lightllm"):
        config = replace(preset_config(name, device_memory=H100.memory_bytes), max_model_len=4096)
        assert memory_budget(model, H100, config).overhead_bytes < GIB
