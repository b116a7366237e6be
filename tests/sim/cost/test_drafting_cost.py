"""What speculative decoding costs and what memory it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.config import EngineConfig, ParallelConfig, SpeculationConfig
from sim.cost import StepShape, build_cost
from sim.cost.graphs import verify_sizes
from sim.cost.ranks import RankGroup
from sim.hardware import load_gpu
from sim.memory import memory_budget
from sim.models import load_model
from sim.models.drafter import drafter_of
from sim.presets import preset_config
from workloads.errors import InputError

H100, LLAMA = load_gpu("h100"), load_model("Llama-3.1-8B")
METHODS = ("ngram", "eagle", "eagle3", "mtp", "medusa", "draft-model")


def config(method: str = "ngram", tokens: int = 3, preset: str = "vllm", **changes) -> EngineConfig:
    small = "meta-llama/Llama-3.2-1B" if method == "draft-model" else ""
    made = preset_config(preset, device_memory=85e9, max_model_len=8192)
    return replace(made, speculation=SpeculationConfig(method, tokens, 0.7, small), **changes)


def verify(rows: int, drafts: int, context: int = 1000, chunks: tuple = ()) -> StepShape:
    """`rows` sequences of so much context verify so many drafts each, and prompts end."""
    verified = rows * drafts
    return StepShape(
        rows, rows * context + verified, chunks, rows + verified + len(chunks), drafts=verified, passes=drafts
    )  # fmt: skip


def plain(rows: int, context: int = 1000) -> StepShape:
    return StepShape(rows, rows * context, (), rows)


# Steps


@pytest.mark.parametrize("preset", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize(
    ("model", "method"),
    [
        (model, method)
        for model in ("Llama-3.1-8B", "gpt-oss-20b", "DeepSeek-R1")
        for method in METHODS
        if method != "draft-model" or model == "Llama-3.1-8B"  # the only one with a smaller model of its vocabulary
    ],
)
def test_a_step_is_the_sum_of_its_operators(preset: str, model: str, method: str) -> None:
    cost = build_cost(load_model(model), load_gpu("h200"), config(method, preset=preset))
    for shape in (verify(1, 3), verify(7, 3), verify(200, 3), verify(5, 3, chunks=((2000, 0), (10, 500)))):
        parts = cost.explain(shape)
        assert sum(part.seconds for part in parts) == pytest.approx(cost.step_seconds(shape), rel=1e-9)
        drafted = [part for part in parts if part.name.startswith("draft_")]
        assert bool(drafted) == (method != "ngram")


def test_verifying_is_nearly_free_at_low_batch_and_costs_its_tokens_at_high() -> None:
    """A step that reads weights takes little longer with four times the tokens; one bound by arithmetic far longer."""
    cost = build_cost(LLAMA, H100, config())
    few, many = (cost.step_seconds(verify(rows, 3, 100)) / cost.step_seconds(plain(rows, 100)) for rows in (1, 512))
    assert 1.0 < few < 1.15
    assert 2.0 < many < 4.0


def test_no_drafts_and_no_passes_cost_what_a_step_without_speculation_costs() -> None:
    with_it, without = (
        build_cost(LLAMA, H100, config()),
        build_cost(LLAMA, H100, replace(config(), speculation=SpeculationConfig())),
    )
    assert with_it.step_seconds(plain(9)) == without.step_seconds(plain(9))


def test_a_cache_is_read_once_for_all_queries() -> None:
    cost = build_cost(LLAMA, H100, config())
    attention = {
        name: next(part for part in cost.explain(shape) if part.name == "attention_decode")
        for name, shape in (("one", plain(32, 4000)), ("four", verify(32, 3, 4000)))
    }
    assert attention["four"].seconds == pytest.approx(attention["one"].seconds, rel=0.1)
    assert attention["four"].bytes == pytest.approx(attention["one"].bytes, rel=0.01)
    assert attention["four"].flops == pytest.approx(4 * attention["one"].flops, rel=0.01)


def test_latent_attention_is_bound_by_arithmetic_with_several_queries() -> None:
    """128 heads over one latent: with two queries a sequence it takes longer than with one (H100 is near its ridge with one)."""
    cost = build_cost(load_model("DeepSeek-R1"), load_gpu("h200"), config("mtp", 1))
    one, two = (
        next(part.seconds for part in cost.explain(shape) if part.name == "attention_decode")
        for shape in (plain(64, 8000), verify(64, 1, 8000))
    )
    assert 1.2 * one < two < 2.0 * one


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "draft-model"])
def test_each_draft_is_a_pass_more(method: str) -> None:
    seconds = []
    for drafts in (2, 3, 4):
        cost = build_cost(LLAMA, H100, config(method, drafts))
        seconds.append(sum(p.seconds for p in cost.explain(verify(4, drafts)) if p.name.startswith("draft_")))
    assert seconds[2] - seconds[1] == pytest.approx(seconds[1] - seconds[0], rel=0.05)
    assert seconds[1] > seconds[0]


def test_a_draft_model_costs_its_own_decode_steps() -> None:
    """Three passes of Llama-3.2-1B: the first verifies along, the others are plain decode steps of that model."""
    small = build_cost(load_model("Llama-3.2-1B"), H100, replace(config(), speculation=SpeculationConfig()))
    host = small.host.visible(1.0, 1)
    shape = verify(1, 3)
    drafted = sum(
        p.seconds for p in build_cost(LLAMA, H100, config("draft-model")).explain(shape) if p.name[:6] == "draft_"
    )
    assert drafted == pytest.approx(3 * (small.step_seconds(plain(1)) - host), rel=0.1)


def test_the_drafter_reads_prompts_too() -> None:
    for method, reads in (("eagle", True), ("ngram", False)):
        cost = build_cost(LLAMA, H100, config(method))
        parts = cost.explain(StepShape(0, 0, ((4000, 0),), 1, passes=3))
        assert any(part.name == "draft_attention_prefill" for part in parts) == reads
    assert cost.step_seconds(StepShape(0, 0, ((4000, 0),), 1, passes=3)) == cost.step_seconds(
        StepShape(0, 0, ((4000, 0),), 1)
    )


def test_ranks_verify_their_share() -> None:
    """Eight ranks with 64 sequences: each as one with 8, but for the experts."""
    made = config("mtp", 2, quantization="fp8-block", parallel=ParallelConfig(tensor=1, data=8, expert=8))
    rank = build_cost(load_model("DeepSeek-R1"), load_gpu("h200"), made)
    group = RankGroup(rank, 8, 8192)
    shape = verify(64, 2)
    assert group.step_seconds(shape) == pytest.approx(rank.step_seconds(verify(8, 2)), rel=0.02)
    assert sum(part.seconds for part in group.explain(shape)) == pytest.approx(group.step_seconds(shape), rel=1e-6)


# CUDA graphs


def test_vllm_rounds_captured_sizes_to_whole_sequences() -> None:
    sizes = verify_sizes("vllm", H100, config("ngram", 2))
    assert sizes[:4] == [3, 6, 9, 18] and sizes[-1] <= 512
    assert all(size % 3 == 0 for size in sizes)


def test_others_capture_sequences_with_all_their_drafts() -> None:
    assert verify_sizes("sglang", H100, config("ngram", 3, "sglang"))[:4] == [4, 8, 16, 32]
    assert verify_sizes("vllm", H100, config("ngram", 3, cuda_graphs=False)) == []


# Memory


@pytest.mark.parametrize(
    ("model", "method", "billions"),
    [
        # parameters as the EAGLE repository lists its heads, without the embedding that they share
        ("Llama-3-8B", "eagle", 0.25), ("Llama-2-70B", "eagle", 0.99), ("Llama-2-7B", "eagle", 0.24),
        # yuhuili/EAGLE3-LLaMA3.1-Instruct-8B: 0.85 GB in 16 bit
        ("Llama-3.1-8B", "eagle3", 0.425),
        # DeepSeek-V3's README_WEIGHTS: 11.5 billion of its own in the layer for the second next token
        ("DeepSeek-V3", "mtp", 11.5),
    ],
)  # fmt: skip
def test_drafters_are_as_large_as_published(model: str, method: str, billions: float) -> None:
    made = config(method, quantization="bf16")
    size = drafter_of(load_model(model), made).weight_bytes(made)
    assert size / 2e9 == pytest.approx(billions, rel=0.03)


def test_a_drafter_takes_memory_from_the_pool() -> None:
    budgets = {method: memory_budget(LLAMA, H100, config(method)) for method in METHODS}
    none = memory_budget(LLAMA, H100, replace(config(), speculation=SpeculationConfig()))
    assert budgets["ngram"] == none
    for method in ("eagle", "eagle3", "mtp", "draft-model"):
        found = budgets[method]
        assert found.kv_bytes == none.kv_bytes - found.draft_bytes and found.draft_bytes > 0
        assert found.kv_tokens < none.kv_tokens
    assert budgets["eagle"].bytes_per_token == none.bytes_per_token * 33 // 32, "one layer beside 32"
    small = load_model("Llama-3.2-1B")
    assert budgets["draft-model"].draft_bytes == small.weight_bytes("bf16")
    assert budgets["draft-model"].bytes_per_token == none.bytes_per_token + small.kv_bytes_per_token("bf16")
    assert budgets["medusa"].bytes_per_token == none.bytes_per_token


def test_sglang_leaves_more_for_a_drafter() -> None:
    """6 GiB for a model of its own, 2 GiB for heads (server_args.py)."""
    fraction = {
        method: memory_budget(LLAMA, H100, config(method, preset="sglang")).utilization
        for method in ("ngram", "eagle", "draft-model")
    }
    total = H100.memory_bytes / (1 << 30)
    assert (fraction["ngram"] - fraction["eagle"]) * total == pytest.approx(2, abs=0.1)
    assert (fraction["ngram"] - fraction["draft-model"]) * total == pytest.approx(6, abs=0.1)


def test_a_draft_model_has_the_same_vocabulary() -> None:
    made = replace(config(), speculation=SpeculationConfig("draft-model", 3, 0.7, "Qwen/Qwen2.5-0.5B"))
    with pytest.raises(InputError, match=r"speculation.draft_model.*151,936 tokens.*128,256") as caught:
        drafter_of(LLAMA, made)
    assert "tokenizer" in caught.value.hint
