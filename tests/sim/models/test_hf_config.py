"""`config.json` files of every family, right and wrong."""

import json

import pytest

from sim.models import load_model
from workloads.errors import InputError

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
QWEN = LLAMA | {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
                "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064, "use_sliding_window": False,
                "sliding_window": 131072, "max_window_layers": 28}  # fmt: skip
QWEN3 = LLAMA | {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
                 "num_hidden_layers": 28, "vocab_size": 151936, "head_dim": 128,
                 "max_position_embeddings": 40960, "tie_word_embeddings": True}  # fmt: skip
QWEN3_MOE = LLAMA | {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
                     "num_key_value_heads": 4, "vocab_size": 151936, "head_dim": 128,
                     "max_position_embeddings": 40960, "num_experts": 128,
                     "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
                     "mlp_only_layers": []}  # fmt: skip
MIXTRAL = LLAMA | {"model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
                   "sliding_window": None, "max_position_embeddings": 32768}  # fmt: skip
MISTRAL = LLAMA | {"model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096,
                   "max_position_embeddings": 32768}  # fmt: skip
GEMMA2 = {
    "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16,
    "num_hidden_layers": 42, "num_key_value_heads": 8, "vocab_size": 256000, "head_dim": 256, "sliding_window": 4096,
    "max_position_embeddings": 8192, "torch_dtype": "float32",
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 128,
    "num_key_value_heads": 128, "num_hidden_layers": 61, "vocab_size": 129280, "max_position_embeddings": 163840,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
    "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 24, "vocab_size": 201088, "num_local_experts": 32,
    "num_experts_per_tok": 4, "sliding_window": 128, "max_position_embeddings": 131072, "attention_bias": True,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
OPT = {
    "model_type": "opt", "hidden_size": 768, "ffn_dim": 3072, "num_attention_heads": 12, "num_hidden_layers": 12,
    "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 768, "torch_dtype": "float16",
}  # fmt: skip
SMOLLM = LLAMA | {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_hidden_layers": 30,
                  "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192,
                  "tie_word_embeddings": True}  # fmt: skip
SAME = [
    (LLAMA, "Llama-3.1-8B"), (QWEN, "Qwen2.5-7B"), (QWEN3, "Qwen3-0.6B"), (QWEN3_MOE, "Qwen3-30B-A3B"),
    (MIXTRAL, "Mixtral-8x7B"), (MISTRAL, "Mistral-7B"), (GEMMA2, "Gemma-2-9B"), (DEEPSEEK, "DeepSeek-V3"),
    (GPT_OSS, "gpt-oss-20b"), (OPT, "OPT-125M"), (SMOLLM, "SmolLM2-135M"),
]  # fmt: skip


def write(folder, config):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("config", "name"), SAME, ids=[name for _, name in SAME])
def test_a_config_gives_the_bundled_model(tmp_path, config, name):
    model, bundled = load_model(write(tmp_path / "local-model", config)), load_model(name)
    assert model.name == "local-model"
    assert model.params_total == bundled.params_total
    assert model.params_active == bundled.params_active
    assert model.kv_bytes_per_token("bf16") == bundled.kv_bytes_per_token("bf16")
    same = ("max_position", "window", "window_layers", "attention", "native_quantization", "norms")
    assert [getattr(model, key) for key in same] == [getattr(bundled, key) for key in same]


def test_the_file_itself_may_be_named(tmp_path):
    folder = write(tmp_path / "m", LLAMA)
    assert load_model(folder / "config.json") == load_model(str(folder))


def test_missing_head_dim_and_kv_heads_are_derived(tmp_path):
    bare = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    model = load_model(write(tmp_path / "m", bare))
    assert (model.kv_heads, model.head_dim) == (32, 128)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": True}, "vocab_size"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"torch_dtype": "float8"}, "torch_dtype"),
        ({"model_type": "lama", "num_experts": 8}, "model_type"),
        ({"model_type": "lama", "vocab_size": None}, "model_type"),
        ({"model_type": "zamba2"}, "model_type"),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention"]}, "layer_types"),
        ({"model_type": "qwen3_5_text", "mamba_ssm_dtype": "float8"}, "mamba_ssm_dtype"),
        ({"model_type": "qwen3_5_text", "layer_types": ["linear_attention"] * 32}, "layer_types"),
        ({"model_type": "nemotron_h"}, "hybrid_override_pattern"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-X"}, "hybrid_override_pattern"),
        ({"model_type": "gemma4_text"}, "hidden_size_per_layer_input"),
        (
            {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 2},
            "num_kv_shared_layers",
        ),
        ({"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "per_layer_config": [1]}, "per_layer_config"),
        ({"model_type": "bamba", "mamba_n_heads": 7}, "mamba_n_heads"),
        ({"model_type": "jamba", "attn_layer_period": 0}, "attn_layer_period"),
        ({"model_type": "deepseek_v32"}, "kv_lora_rank"),
        ({"model_type": None}, "model_type"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quantization_config.quant_method"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 2}}, "quantization_config.bits"),
    ],
)
def test_a_wrong_key_is_named_with_its_file(tmp_path, change, key):
    folder = write(tmp_path / "m", LLAMA | change)
    with pytest.raises(InputError) as caught:
        load_model(folder)
    assert caught.value.place.file == str(folder / "config.json")
    assert caught.value.place.key == key


def test_an_unknown_family_with_the_keys_of_llama_is_taken_to_be_one(tmp_path):
    model = load_model(write(tmp_path / "m", LLAMA | {"model_type": "newest"}))
    assert model.params_total == load_model("Llama-3.1-8B").params_total
    assert "'newest' is not known" in model.notes


def test_layers_that_are_not_modelled_are_refused_with_what_they_are(tmp_path):
    with pytest.raises(InputError, match="'lfm2' has short convolutions"):
        load_model(write(tmp_path / "m", LLAMA | {"model_type": "lfm2"}))
    with pytest.raises(InputError, match="'mamba2' has no attention"):
        load_model(write(tmp_path / "m", LLAMA | {"model_type": "mamba2"}))


def test_the_text_config_of_a_model_that_sees(tmp_path):
    quantized = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    outer = {
        "model_type": "mistral3",
        "text_config": MISTRAL,
        "vision_config": {"hidden_size": 7},
        "quantization_config": quantized,
    }
    model = load_model(write(tmp_path / "m", outer))
    assert (model.params_total, model.native_quantization) == (load_model("Mistral-7B").params_total, "fp8-dynamic")
    with pytest.raises(InputError, match="expected an object"):
        load_model(write(tmp_path / "n", outer | {"text_config": 3}))


@pytest.mark.parametrize(
    ("config", "change", "key"),
    [
        (QWEN3_MOE, {"num_experts_per_tok": 256}, "num_experts_per_tok"),
        (QWEN3_MOE, {"mlp_only_layers": [0]}, "mlp_only_layers"),
        (DEEPSEEK, {"kv_lora_rank": None}, "kv_lora_rank"),
        (GPT_OSS, {"layer_types": ["full_attention"]}, "layer_types"),
        (OPT, {"word_embed_proj_dim": 512}, "word_embed_proj_dim"),
    ],
)
def test_family_keys_are_checked(tmp_path, config, change, key):
    with pytest.raises(InputError) as caught:
        load_model(write(tmp_path / "m", config | change))
    assert caught.value.place.key == key


@pytest.mark.parametrize(("text", "match"), [("{", "not JSON"), ("[]", "JSON object"), ("\x00\xff", "config.json")])
def test_files_that_are_no_config(tmp_path, text, match):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=match):
        load_model(path)


def test_a_folder_without_config(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("section", "mode"),
    [
        ({"quant_method": "awq", "bits": 4}, "awq-int4"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
        ({"quant_method": "fp8"}, "fp8-dynamic"),
        ({"quant_method": "fbgemm_fp8"}, "fp8-channel"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
            "input_activations": {"dynamic": True}}}}, "fp8-channel"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "weights": {"num_bits": 8, "type": "int"}, "input_activations": {"dynamic": True}}}}, "int8-w8a8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "weights": {"num_bits": 4, "type": "float"}}}}, "nvfp4"),
    ],
)  # fmt: skip
def test_quantization_sections(tmp_path, section, mode):
    assert load_model(write(tmp_path / "m", LLAMA | {"quantization_config": section})).native_quantization == mode


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "too many digits"),
        (json.dumps(LLAMA | {"hidden_size": int("9" * 400)}), r"hidden_size: must be at most 1,000,000,000,000"),
        (json.dumps(LLAMA | {"hidden_size": -int("9" * 400)}), r"hidden_size: must be at least 1, found -9{59}…"),
    ],
)
def test_numbers_and_nesting_beyond_measure(tmp_path, text, match):
    (tmp_path / "config.json").write_text(text, "utf-8")
    with pytest.raises(InputError, match=match):
        load_model(str(tmp_path / "config.json"))


def test_a_byte_order_mark_is_no_fault(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), "utf-8-sig")
    assert load_model(str(tmp_path / "config.json")).hidden == 4096
