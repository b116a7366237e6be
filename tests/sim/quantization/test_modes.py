"""Bytes with scales, what stays unquantised, hardware needs, and plug-ins."""

import sys
import types
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.hardware import load_gpu
from sim.models import Linear, load_model
from sim.quantization import (
    KVMode,
    WeightMode,
    kv_mode_for,
    list_kv_modes,
    list_weight_modes,
    load_kv_mode,
    load_weight_mode,
    weight_mode_for,
)
from workloads.errors import InputError


@pytest.mark.parametrize(
    ("mode", "bits"),
    [
        ("bf16", 16), ("gptq-int4", 4 + 20 / 128), ("awq-int4", 4 + 20 / 128), ("nvfp4", 4.5), ("mxfp4", 4.25),
        ("int8-w8a16", 8 + 16 / 4096), ("fp8", 8), ("fp8-channel", 8 + 32 / 4096), ("fp8-block", 8 + 32 / 128**2),
        ("squeezellm-4bit", 4 + 256 / 4096), ("squeezellm-3bit", 3 + 128 / 4096),
    ],
)  # fmt: skip
def test_bits_per_weight_with_scales(mode, bits):
    n, k = 4096, 4096
    assert load_weight_mode(mode).matrix_bytes(n, k) * 8 / (n * k) == pytest.approx(bits, abs=1e-5)


@given(st.sampled_from(list_weight_modes()), st.integers(1, 9000), st.integers(1, 9000))
def test_a_matrix_is_never_smaller_than_its_weights(mode, n, k):
    assert mode.matrix_bytes(n, k) >= n * k * mode.bits / 8


@pytest.mark.parametrize("mode", list_weight_modes(), ids=lambda m: m.name)
def test_heads_and_routers_stay_in_the_models_dtype(mode):
    head = Linear("lm_head", "head", 1000, 64, 1)
    router = Linear("router", "router", 8, 64, 1)
    assert mode.linear_bytes(head, "bf16") == 1000 * 64 * 2
    assert mode.linear_bytes(router, "bf16") == 8 * 64 * 2
    assert mode.about


def test_mxfp4_quantises_experts_only():
    mode = load_weight_mode("mxfp4")
    assert mode.covers("expert") and not mode.covers("attention")
    with pytest.raises(InputError, match="has none"):
        weight_mode_for("mxfp4", load_model("Llama-3-8B"))
    shipped = replace(load_model("Llama-3-8B"), native_quantization="mxfp4")  # all of a checkpoint without experts
    assert weight_mode_for("auto", shipped).covers("attention")


@pytest.mark.parametrize(
    ("alias", "name"),
    [("int8", "int8-w8a8"), ("AWQ", "awq-int4"), ("float16", "fp16"), ("fp8_dynamic", "fp8-dynamic")],
)
def test_weight_aliases(alias, name):
    assert load_weight_mode(alias).name == name


def test_auto_is_the_checkpoints_own():
    assert weight_mode_for("auto", load_model("Llama-2-7B")).name == "fp16"
    assert weight_mode_for("auto", load_model("Llama-3-8B")).name == "bf16"
    assert weight_mode_for("auto", load_model("gpt-oss-20b")).name == "mxfp4"
    assert kv_mode_for("auto", "fp16").name == "fp16"


def test_hardware_without_the_tensor_cores_falls_back_or_refuses():
    fp8 = load_weight_mode("fp8")
    same, silence = fp8.on(load_gpu("h100"))
    assert same is fp8 and silence == ""
    fallback, note = fp8.on(load_gpu("a100"))
    assert fallback.weight_only and fallback.compute == "bf16" and "a100-sxm" in note
    assert fallback.matrix_bytes(512, 512) == fp8.matrix_bytes(512, 512)
    emulated, _ = load_weight_mode("nvfp4").on(load_gpu("h100"))
    assert emulated.weight_only
    assert load_weight_mode("nvfp4").on(load_gpu("b200"))[1] == ""


def test_int8_products_are_refused_without_int8_cores():
    from dataclasses import replace

    bare = replace(load_gpu("h100"), name="bare", int8=0.0)
    with pytest.raises(InputError, match="INT8"):
        load_weight_mode("int8").on(bare)
    assert load_weight_mode("int8-w8a16").on(bare)[1] == ""


def test_computed_and_static_scales():
    assert not load_weight_mode("fp8").dynamic
    assert all(load_weight_mode(m).dynamic for m in ("fp8-dynamic", "fp8-channel", "fp8-block", "int8"))


def test_kv_modes():
    assert load_kv_mode("fp8").name == "fp8-e4m3"
    assert [load_kv_mode(m).vector_bytes(128) for m in ("fp16", "bf16", "fp8", "fp8-e5m2", "int8")] == [
        256, 256, 128, 128, 130,
    ]  # fmt: skip
    assert {m.name for m in list_kv_modes()} == {"fp16", "bf16", "fp8-e4m3", "fp8-e5m2", "int8"}


@pytest.mark.parametrize(("load", "near"), [(load_weight_mode, "awq-int4"), (load_kv_mode, "int8")])
def test_unknown_modes_get_the_nearest(load, near):
    with pytest.raises(InputError, match=near):
        load({"awq-int4": "awq-int3", "int8": "int7"}[near])


def test_dotted_paths(monkeypatch):
    module = types.ModuleType("my_modes")
    module.Tiny, module.Cache, module.Wrong = (
        WeightMode("tiny", 2, group=64, scale_bits=8),
        KVMode("kv4", 4),
        3,
    )
    monkeypatch.setitem(sys.modules, "my_modes", module)
    assert load_weight_mode("my_modes:Tiny").bits == 2
    assert load_kv_mode("my_modes:Cache").bits == 4
    with pytest.raises(InputError, match="expected a WeightMode"):
        load_weight_mode("my_modes:Wrong")
    assert load_model("Llama-3-8B").weight_bytes("my_modes:Tiny") < load_model("Llama-3-8B").weight_bytes("awq-int4")


def test_nvfp4_leaves_latent_attention_alone():
    """NVIDIA's checkpoints of DeepSeek: experts and dense layers in FP4, attention in 16 bit; other models whole."""
    deepseek, qwen = load_model("DeepSeek-R1"), load_model("Qwen3-30B-A3B")
    mode = weight_mode_for("nvfp4", deepseek)
    assert not mode.covers("attention") and mode.covers("expert") and mode.covers("shared")
    assert weight_mode_for("nvfp4", qwen).covers("attention")
    assert weight_mode_for("fp8-block", deepseek).covers("attention")
    attention = sum(each.n * each.k * each.layers for each in deepseek.linears() if each.kind == "attention")
    more = deepseek.weight_bytes(mode) - deepseek.weight_bytes(load_weight_mode("nvfp4"))
    assert more == pytest.approx(attention * (2 - 4.5 / 8), rel=1e-3)
