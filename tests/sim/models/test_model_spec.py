"""Parameter counts, KV bytes and splits, against published figures and closed forms."""

import csv
from pathlib import Path

import pytest

from sim.models import list_models, load_model
from sim.quantization.kv import kv_mode_for
from workloads.errors import InputError

# Counted otherwise in their papers, which leave out position rows.
INEXACT = {"OPT-66B", "OPT-175B"}
SHARED = Path(__file__).parents[3].parent / "shared"


@pytest.mark.parametrize("model", [m for m in list_models() if m.published_params], ids=lambda m: m.name)
def test_parameters_reproduce_the_published_count(model):
    if model.name in INEXACT:
        assert model.params_total == pytest.approx(model.published_params, rel=0.001)
    else:
        assert model.params_total == model.published_params


# Billions in the name, or on the page where the name has none, of models without a published count.
ABOUT = {
    "InternLM-20B": 20, "Llama-4-Maverick": 400, "Qwen1.5-MoE-A2.7B": 14.3, "Qwen2-57B-A14B": 57.4, "Gemma-3-4B": 3.9,
    "Gemma-3-12B": 11.8, "Gemma-3-27B": 27, "GLM-4.5": 355, "GLM-4.5-Air": 106, "MiniMax-M2": 230,
    "Command-R-Plus": 104, "OLMo-2-7B": 7.3, "OLMoE-1B-7B": 6.9, "Nemotron-4-340B": 340, "Phi-3.5-MoE": 41.9,
    "DeepSeek-LLM-67B": 67.4, "Ministral-3-8B": 8.4, "Ministral-3-14B": 13.5, "OLMo-2-13B": 13.7, "Falcon-40B": 41.8,
    "Hunyuan-A13B": 80.4, "ERNIE-4.5-21B-A3B": 21.8, "Ministral-3-3B": 3.4, "OLMo-2-32B": 32.2,
    "Qwen3-Next-80B-A3B": 80, "Qwen3.5-27B": 27, "Qwen3.5-35B-A3B": 35, "Qwen3.5-122B-A10B": 122, "Qwen3.5-9B": 9,
    "Qwen3.5-397B-A17B": 397, "DeepSeek-V3.2": 671, "GLM-5": 744, "Kimi-Linear-48B-A3B": 49.1, "Nemotron-Nano-9B-v2": 8.9,
    "Granite-4.0-H-Small": 32, "Granite-4.0-H-Tiny": 7, "Granite-4.0-H-Micro": 3.2, "Falcon-H1-34B": 33.6,
    "Falcon-H1-7B": 7.6, "Jamba-1.5-Mini": 52, "Jamba-1.5-Large": 398, "MiniMax-Text-01": 456,
    "Command-A": 111, "Command-R7B": 8.03, "EXAONE-4.0-32B": 32, "EXAONE-4.0-1.2B": 1.28, "EXAONE-3.5-32B": 32,
    "K-EXAONE-236B-A23B": 236, "Nemotron-Nano-12B-v2": 12.3, "Nemotron-H-8B": 8.1, "Nemotron-H-56B": 56,
    "Nemotron-3-Super-120B-A12B": 120.6, "Nemotron-Mini-4B": 4.19, "Minitron-8B": 8.4, "Llama-Guard-4-12B": 11.1,
    "InternLM3-8B": 8.8, "Hunyuan-7B": 7.5, "ERNIE-4.5-300B-A47B": 300, "ERNIE-4.5-0.3B": 0.36, "Seed-Coder-8B": 8.25,
    "Apertus-8B": 8.05, "Apertus-70B": 70.6, "OLMo-3-7B": 7.3, "OLMo-3-32B": 32.2, "StableLM-2-1.6B": 1.644,
    "StableLM-3B": 2.795, "MiniCPM3-4B": 4.07, "MiniCPM-2B": 2.72, "MiniCPM4-8B": 8.2, "MiMo-7B": 7.6,
    "Ling-mini-2.0": 16.26, "Ling-flash-2.0": 103, "Ling-1T": 1000, "dots.llm1": 142, "Granite-4.0-Micro": 3.4,
    "AFM-4.5B": 4.62, "Bielik-11B": 11.2, "Mistral-Large-3-675B": 673, "Devstral-2-123B": 125, "GLM-4.7-Flash": 29.9,
    "GLM-4-32B-0414": 32.6, "GLM-4-9B-0414": 9.4, "ChatGLM3-6B": 6.24, "Moonlight-16B-A3B": 15.96, "Gemma-3-270M": 0.268,
    "Grok-1": 314, "Gemma-4-31B": 30.7, "Gemma-4-26B-A4B": 25.2, "Grok-2": 270, "Falcon-H1-0.5B": 0.521, "Solar-Open-100B": 102.6,
    # counted by transformers' own modules, which have no vision tower either
    "Qwen3.5-0.8B": 0.7524, "Qwen3.5-2B": 1.8818, "Qwen3.5-4B": 4.2058,
}  # fmt: skip


@pytest.mark.parametrize("model", [m for m in list_models() if not m.published_params], ids=lambda m: m.name)
def test_parameters_without_a_published_count_are_about_right(model):
    assert model.params_total / 1e9 == pytest.approx(ABOUT[model.name], rel=0.012)


@pytest.mark.parametrize("model", list_models(), ids=lambda m: m.name)
def test_splits_conserve_weights(model):
    """What all GPUs of a group hold together is at least the model, and no more than replication explains."""
    whole = model.weight_bytes("bf16" if model.dtype == "bf16" else "fp16")
    assert whole == pytest.approx(model.params_total * 2, rel=1e-6)
    for tp in (2, 4):
        if model.heads % tp == 0:
            part = model.weight_bytes("bf16" if model.dtype == "bf16" else "fp16", tp=tp)
            assert whole / tp <= part <= whole / tp * 1.25


def test_attention_kinds():
    kinds = {name: load_model(name).attention for name in ("Llama-2-7B", "Llama-3-8B", "DeepSeek-V3")}
    assert kinds == {"Llama-2-7B": "MHA", "Llama-3-8B": "GQA", "DeepSeek-V3": "MLA"}


def test_active_parameters_of_experts():
    mixtral = load_model("Mixtral-8x7B")
    expert = 3 * 4096 * 14336
    assert mixtral.params_total - mixtral.params_active == 32 * 6 * expert
    dense = load_model("Llama-3-8B")
    assert dense.params_active == dense.params_total


def test_kv_bytes_follow_the_formula():
    """2 × layers × KV heads × head dim × bytes."""
    llama = load_model("Llama-3.1-8B")
    assert llama.kv_bytes_per_token("fp16") == 2 * 32 * 8 * 128 * 2 == 128 * 1024
    assert llama.kv_bytes_per_token("fp8") == 64 * 1024
    assert llama.kv_bytes_per_token("int8") == 2 * 32 * 8 * (128 + 2)
    assert load_model("Llama-3.1-70B").kv_bytes_per_token("fp16") == 320 * 1024


def test_kv_heads_are_replicated_beyond_their_number():
    llama = load_model("Llama-3.1-70B")
    assert llama.kv_bytes_per_token("fp16", tp=8) == llama.kv_bytes_per_token("fp16", tp=16)


def test_latent_cache_is_not_split():
    deepseek = load_model("DeepSeek-V3")
    assert deepseek.kv_bytes_per_token("bf16") == 61 * 576 * 2 == deepseek.kv_bytes_per_token("bf16", tp=8)


def test_pipeline_stages_hold_the_layers_rounded_up():
    llama = load_model("Llama-3.1-405B")
    assert llama.kv_bytes_per_token("bf16", tp=8, pp=4) * 126 == llama.kv_bytes_per_token("bf16", tp=8) * 32


def test_seventy_billion_in_sixteen_bit_is_141_gigabytes():
    assert load_model("Llama-3-70B").weight_bytes("bf16") == pytest.approx(141.1e9, rel=0.001)


def test_eight_billion_in_three_precisions():
    """16 / 8 / 4 GB, as far as the layers that stay in 16 bit allow."""
    llama = load_model("Llama-3-8B")
    sizes = [llama.weight_bytes(mode) / 1e9 for mode in ("bf16", "int8", "awq-int4")]
    assert sizes == pytest.approx([16.06, 9.08, 5.73], abs=0.02)


def test_native_quantization_decides_auto():
    assert load_model("gpt-oss-20b").weight_bytes() < load_model("gpt-oss-20b").weight_bytes("bf16") / 2.5
    assert load_model("gpt-oss-20b").weight_bytes() == pytest.approx(13.8e9, rel=0.02)  # the checkpoint's size
    assert load_model("DeepSeek-V3").weight_bytes() == pytest.approx(672e9, rel=0.02)


@pytest.mark.parametrize(
    ("model", "tp", "pp", "ep", "dp", "match"),
    [
        ("Llama-3-8B", 3, 1, 1, 1, "32 attention heads"),
        ("Llama-3-8B", 1, 33, 1, 1, "32 layers"),
        ("Llama-3-8B", 2, 1, 2, 1, "no experts"),
        ("Mixtral-8x7B", 1, 1, 3, 4, "8 experts"),
        ("Mixtral-8x7B", 2, 1, 8, 1, "does not fit"),
        ("Llama-3-8B", 0, 1, 1, 1, "at least 1"),
    ],
)
def test_impossible_splits_are_refused(model, tp, pp, ep, dp, match):
    with pytest.raises(InputError, match=match):
        load_model(model).check_parallel(tp, pp, ep, dp)


def test_experts_are_split_first_by_number_then_by_width():
    mixtral = load_model("Mixtral-8x7B")
    by_width = {x.name: x for x in mixtral.linears(tp=4, ep=1)}["expert_gate_up_proj"]
    by_number = {x.name: x for x in mixtral.linears(tp=4, ep=4)}["expert_gate_up_proj"]
    both = {x.name: x for x in mixtral.linears(tp=4, ep=2)}["expert_gate_up_proj"]
    assert (by_width.copies, by_width.n) == (8, 2 * 14336 // 4)
    assert (by_number.copies, by_number.n) == (2, 2 * 14336)
    assert (both.copies, both.n) == (4, 2 * 14336 // 2)


@pytest.mark.shared
def test_agrees_with_the_recorded_table():
    path = SHARED / "measured" / "models.csv"
    if not path.is_file():
        pytest.skip("recorded model table is not here")
    seen = 0
    for row in csv.DictReader(path.open()):
        model = load_model(row["hf_id"])
        assert model.kv_bytes_per_token("fp16") == int(row["kv_bytes_per_token_fp16"]), row["model"]
        # A few rows leave out biases or a separate LM head that the page counts.
        assert model.params_active == pytest.approx(int(row["params_active"]), rel=0.006), row["model"]
        seen += 1
    assert seen > 40


def test_a_token_of_sparse_attention_takes_what_flashmla_says():
    """656 bytes in the 8-bit format of DeepSeek-V3.2's kernels, 1,152 in 16 bit, and 132 of the indexer's key."""
    model = load_model("DeepSeek-V3.2")
    assert model.kv_bytes_per_token("fp8") == 61 * (656 + 132)
    assert model.kv_bytes_per_token("bf16") == 61 * (1152 + 132) == model.kv_bytes_per_token("bf16", tp=8)
    assert load_model("DeepSeek-V3").kv_bytes_per_token("fp8") == 61 * 576


def test_windowed_layers_with_heads_of_their_own():
    """Gemma 4 31B by hand: 50 layers with 16 KV heads of 256 and a window of 1,024, 10 that see everything with 4 of 512."""
    model = load_model("google/gemma-4-31B-it")
    near, whole = model.near_token_bytes(kv_mode_for("bf16", "bf16")), model.kv_bytes_per_token("bf16")
    assert (near, whole - near) == (50 * 2 * 16 * 256 * 2, 10 * 2 * 4 * 512 * 2)
    assert 1024 * near + 32_768 * (whole - near) == 3_523_215_360
    assert model.near_token_bytes(kv_mode_for("bf16", "bf16"), tp=8) == near // 8
    assert model.kv_bytes_per_token("bf16", tp=8) == near // 8 + 10 * 2 * 1 * 512 * 2
    assert load_model("Gemma-4-26B-A4B").params_active / 1e9 == pytest.approx(3.8, rel=0.01)
