"""Finding models by the names people use."""

import csv
from contextlib import suppress
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.models import find_model, hub_id, list_models, load_model
from workloads.errors import InputError


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("meta-llama/Meta-Llama-3-8B", "Llama-3-8B"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "Llama-3-8B"),
        ("Meta-Llama-3-70B", "Llama-3-70B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("LLAMA-3.1-8b", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.3-70B"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama-2-7B"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B-v0.3"),
        ("Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B"),
        ("Qwen/Qwen2-7B-Instruct", "Qwen2-7B"),
        ("google/gemma-2-9b-it", "Gemma-2-9B"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-V3-0324", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "Llama-3.3-70B"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "Qwen3-235B-A22B"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "Qwen3-Coder-480B-A35B"),
        ("Qwen/QwQ-32B", "Qwen2.5-32B"),
        ("google/gemma-3-27b-it", "Gemma-3-27B"),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", "Llama-4-Maverick"),
        ("mistralai/Mistral-Large-Instruct-2411", "Mistral-Large-123B"),
        ("moonshotai/Kimi-K2-Instruct-0905", "Kimi-K2"),
        ("lmsys/vicuna-13b-v1.5", "Vicuna-13B"),
        ("lmsys/vicuna-33b-v1.3", "Llama-1-30B"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "DeepSeek-R1-Distill-Qwen-1.5B"),
        ("microsoft/Phi-3-mini-128k-instruct", "Phi-3.5-mini"),
        ("mistralai/Ministral-3-8B-Instruct-2512", "Ministral-3-8B"),
        ("mistralai/Ministral-8B-Instruct-2410", "Ministral-8B"),
        ("HuggingFaceH4/zephyr-7b-beta", "Mistral-7B"),
        ("tiiuae/falcon-40b-instruct", "Falcon-40B"),
        ("THUDM/glm-4-9b-chat", "GLM-4-9B"),
        ("mistralai/Ministral-3-3B-Instruct-2512", "Ministral-3-3B"),
        ("Qwen/Qwen3-VL-32B-Instruct-FP8", "Qwen3-32B-fp8-block"),
        ("cpatonn/Qwen3-VL-30B-A3B-Instruct-AWQ-4bit", "Qwen3-30B-A3B-awq-int4"),
        ("CohereLabs/c4ai-command-r-08-2024", "Command-R-08-2024"),
        ("Qwen/Qwen3-Coder-Next-FP8", "Qwen3-Next-80B-A3B-fp8-block"),
        ("nvidia/Qwen3.5-397B-A17B-NVFP4", "Qwen3.5-397B-A17B-nvfp4"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "DeepSeek-V3.2"),
        ("zai-org/GLM-5-FP8", "GLM-5-fp8-block"),
        ("moonshotai/Kimi-K2-Thinking", "Kimi-K2-Thinking"),
        ("moonshotai/Kimi-K2-Instruct", "Kimi-K2"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "Nemotron-3-Nano-30B-A3B-fp8"),
        ("unsloth/gpt-oss-20b-BF16", "gpt-oss-20b-bf16"),
        ("stabilityai/stablelm-2-1_6b-chat", "StableLM-2-1.6B"),
        ("llama3.1:8b", "Llama-3.1-8B"),
        ("llama3.3-70b", "Llama-3.3-70B"),
        ("qwen-3-32b", "Qwen3-32B"),
        ("qwen3-235b", "Qwen3-235B-A22B"),
        ("qwen2-57b", "Qwen2-57B-A14B"),
        ("allenai/Olmo-3-32B-Think", "OLMo-3-32B"),
    ],
)
def test_names(written, name):
    assert load_model(written).name == name


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-32B-Instruct"),
        ("Qwen/QwQ-32B", "Qwen/QwQ-32B"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-R1"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"),
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B"),
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
        ("qwen2.5-32b-instruct", ""),
        ("deepseek-r1-distill-qwen-32b", ""),
        ("llama-3.1-8b-fp8", ""),
    ],
)
def test_ids_are_of_what_was_asked_for(written, found):
    assert hub_id(written) == found


def test_context_lengths_differ_where_shapes_do_not():
    assert load_model("Llama-3-8B").max_position == 8192
    assert load_model("Llama-3.1-8B").max_position == 131072
    assert load_model("Llama-3-8B").params_total == load_model("Llama-3.1-8B").params_total
    for name, context in (
        ("Qwen/Qwen2.5-32B", 131072), ("Qwen/Qwen2.5-32B-Instruct", 32768), ("qwen2.5-32b-instruct", 32768),
        ("Qwen/Qwen2.5-32B-Instruct-AWQ", 32768), ("Qwen/Qwen2.5-Coder-32B-Instruct", 32768), ("Qwen/QwQ-32B", 40960),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", 131072), ("Qwen/Qwen2.5-Math-7B", 4096),
        ("Qwen/Qwen3-30B-A3B", 40960), ("Qwen/Qwen3-30B-A3B-Instruct-2507", 262144),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 262144), ("zai-org/GLM-4.6-FP8", 202752),
        ("Qwen/Qwen3-VL-8B-Instruct", 262144),
    ):  # fmt: skip
        assert load_model(name).max_position == context, name


def test_every_fine_tune_with_a_context_of_its_own_is_known():
    rows = list(csv.DictReader((files("sim") / "data" / "contexts.csv").read_text("utf-8").splitlines()))
    names = [name for row in rows for name in row["names"].split()]
    assert len(names) == len(set(names)) and all(row["source"] for row in rows)
    for row in rows:
        assert {find_model(name).max_position for name in row["names"].split()} == {int(row["max_position"])}


@pytest.mark.parametrize(
    ("written", "mode"),
    [
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", "fp8-dynamic"),
        ("Qwen/Qwen3-8B-FP8", "fp8-block"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "fp8-block"),
        ("nvidia/DeepSeek-R1-FP4", "nvfp4"),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "nvfp4"),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "gptq-int4"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "awq-int4"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "awq-int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "gptq-int4"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", "gptq-int8"),
        ("cpatonn/GLM-4.5-Air-AWQ-4bit", "awq-int4"),
    ],
)
def test_quantized_checkpoints_say_so(written, mode):
    assert load_model(written).native_quantization == mode


@pytest.mark.parametrize("model", list_models(), ids=lambda m: m.name)
def test_every_model_is_found_by_name_and_id(model):
    assert find_model(model.name.upper()) is model
    assert find_model(model.hf_id) is model


def test_unknown_names_get_the_nearest():
    with pytest.raises(InputError, match=r"Llama-3-8B") as caught:
        load_model("lama-3-8b")
    assert "did you mean" in str(caught.value)


def test_unknown_names_get_told_of_config_files():
    with pytest.raises(InputError, match=r"save the config.json of its page, and give the folder"):
        load_model("someone/New-Model-13B")


@pytest.mark.parametrize("written", ["llama3", "qwen3", "gemma-3", "deepseek", "nobody/qwen3-235b-x"])
def test_what_may_be_several_is_not_guessed(written):
    with pytest.raises(InputError, match="unknown model"):
        load_model(written)


def test_forms_of_names_mean_one_model_each():
    """However a name is written, it is never another model's own name."""
    own = {spec.name: spec for spec in list_models()}
    for name, spec in own.items():
        for form in (name, name.lower(), name.upper(), name.replace("-", "_"), f"someone/{name}-FP8"):
            assert load_model(form).name.startswith(spec.name), form


def test_a_path_that_is_not_there_is_not_a_name():
    with pytest.raises(InputError, match="no model folder"):
        load_model("./nowhere/at-all")


@given(st.text(max_size=40))
def test_any_text_gives_a_model_or_an_input_error(text):
    with suppress(InputError):
        assert find_model(text).layers > 0
