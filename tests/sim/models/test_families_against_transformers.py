"""Parameter counts of every family against transformers' own modules, built without memory on the meta device."""

from __future__ import annotations

import json

import pytest

from sim.models import load_model
from sim.models.hf_families import FAMILIES
from sim.models.hf_hybrids import HYBRID_FAMILIES
from sim.models.hf_newer import NEWER_FAMILIES

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Keys whose defaults in transformers build no model, or that make the case say more.
SETTINGS = {
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 8, "first_k_dense_replace": 1},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 64, "hidden_size": 4096},
    "llama4_text": {"interleave_moe_layer_step": 2, "num_local_experts": 4},
    "nemotron": {"num_key_value_heads": 8},
    "ministral": {"head_dim": 128, "num_key_value_heads": 8},
    "bamba": {"attn_layer_indices": [2]},
    "granitemoehybrid": {
        "layer_types": ["linear_attention"] * 4 + ["full_attention"] * 2,
        "shared_intermediate_size": 700,
    },
    "jamba": {"num_experts": 4, "attn_layer_offset": 1, "attn_layer_period": 3},
    "kimi_linear": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe", "linear_attention"],
        "n_routed_experts": 4,
        "moe_latent_size": 1024,
    },
    "qwen3_5_moe_text": {"num_experts": 16},
    "qwen3_next": {"num_experts": 16},
    "deepseek_v32": {"n_routed_experts": 8},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 2, "first_k_dense_replace": 1},
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": 2},
    "exaone_moe": {"num_experts": 8},
    "gemma4_text": {
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 2,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 704,
    },
    "granitemoeshared": {"shared_intermediate_size": 700},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"num_experts": 4, "head_dim": 128},
    "glm_moe_dsa": {"n_routed_experts": 8},
}
# Small weights that are counted otherwise: norms of q and k over all heads instead of one; norms
# without weights; a router's bias, which is no parameter there.
ABOUT = {
    "apertus", "deepseek_v32", "dots1", "ernie4_5_moe", "exaone_moe", "gemma4_text", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa",
    "kimi_linear", "minimax_m2", "nemotron_h", "olmo", "olmo2", "olmo3", "olmoe",
}  # fmt: skip
WITHOUT = {
    "bailing_moe",
    "bailing_moe_v2",
    "exaone",
    "internlm3",
    "kimi_k2",
    "qwen2_vl_text",
    "qwen2_5_vl_text",
    "qwen3_vl_text",
    "qwen3_vl_moe_text",
}  # no class of their own


def layers_key(family: str) -> str:
    return {"gpt2": "n_layer", "gptj": "n_layer", "mpt": "n_layers", "bloom": "n_layer"}.get(
        family, "num_hidden_layers"
    )


@pytest.mark.parametrize("family", sorted({*FAMILIES, *NEWER_FAMILIES, *HYBRID_FAMILIES} - WITHOUT))
def test_parameters(family, tmp_path):
    import torch

    config = transformers.CONFIG_MAPPING[family](**{layers_key(family): 6} | SETTINGS.get(family, {}))
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
    module.tie_weights()
    theirs = sum(parameter.numel() for _, parameter in module.named_parameters())
    values = {key: value for key, value in config.to_dict().items() if not hasattr(value, "to_dict")}
    (tmp_path / "config.json").write_text(json.dumps(values | {"model_type": family}, default=str))
    ours = load_model(tmp_path)
    assert ours.layers == 6
    assert ours.params_total == (pytest.approx(theirs, rel=2e-4) if family in ABOUT else theirs)


def test_the_part_that_writes_is_read_out_of_a_model_that_sees(tmp_path):
    config = transformers.CONFIG_MAPPING["gemma3"]()
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    alone = transformers.CONFIG_MAPPING["gemma3_text"](**config.text_config.to_dict())
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "config.json").write_text(
        json.dumps(alone.to_dict() | {"model_type": "gemma3_text"}, default=str)
    )
    assert load_model(tmp_path).params_total == load_model(tmp_path / "alone").params_total
