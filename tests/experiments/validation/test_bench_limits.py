"""Limits that TensorRT-LLM's benchmark tool sets by itself, and to which of its versions they belong."""

from experiments.validation.limits import LIMITS, prompt_and_1500, trtllm_bench, trtllm_bench_listed, trtllm_bench_whole
from experiments.validation.mapping import map_row
from sim.hardware import load_gpu
from sim.models import load_model

H100 = load_gpu("h100-sxm")


def test_ranks_of_attention_data_parallelism_are_one_group():
    common = {"pipeline": 1, "weights": "fp8", "kv": "fp8", "inputs": 1000, "outputs": 1000}
    ranks, group = (trtllm_bench(load_model("Llama-3.1-8B"), H100, **common, **d) for d in
                    ({"tensor": 1, "data": 4}, {"tensor": 4}))  # fmt: skip
    assert ranks == group


def test_limits_of_the_time_when_it_had_a_list():
    """By model, tensor degree and length; of degrees not listed the next smaller; else the builder's own."""

    def limits(name: str, tensor: int, inputs: int, outputs: int) -> tuple[int, int]:
        found = trtllm_bench_listed(
            load_model(name), H100, tensor=tensor, pipeline=1, inputs=inputs, outputs=outputs, weights="fp8", kv="fp8"
        )
        return found["max_num_seqs"], found["max_num_batched_tokens"]

    assert limits("Llama-3.1-70B", 2, 128, 128) == (256, 1024)
    assert limits("Llama-3.1-70B", 2, 2048, 2048) == (1024, 1024)
    assert limits("Llama-3.1-70B", 8, 2048, 2048) == (8192, 16384)
    assert limits("Llama-3.1-70B", 4, 2048, 2048) == (1024, 1024)
    assert limits("Mixtral-8x7B", 8, 128, 128) == limits("Mixtral-8x7B", 4, 128, 128) == (8192, 8192)
    assert limits("Llama-3.1-405B", 8, 128, 128) == (2048, 8192) == limits("Mixtral-8x7B", 1, 128, 128)


def test_prompts_that_are_not_cut_fit_beside_a_batch():
    common = {"tensor": 2, "pipeline": 1, "weights": "fp8", "kv": "fp8"}
    long, short = ({"inputs": n, "outputs": 500} for n in (5000, 128))
    model = load_model("Llama-3.3-70B")
    cut, whole = trtllm_bench(model, H100, **common, **long), trtllm_bench_whole(model, H100, **common, **long)
    assert cut["max_num_batched_tokens"] == 2048
    assert whole == cut | {"max_num_batched_tokens": 5000 + cut["max_num_seqs"]}
    assert trtllm_bench_whole(model, H100, **common, **short) == trtllm_bench(model, H100, **common, **short)


def test_the_list_is_of_the_versions_that_had_it(row):
    offline = {"engine": "TensorRT-LLM", "load_kind": "offline_all_at_once"}
    assert map_row(row(**offline, engine_version="0.14")).limits == "trtllm-bench-listed"
    assert map_row(row(**offline, engine_version="0.17")).limits == "trtllm-bench"
    assert map_row(row(**offline, engine_version="0.20")).preset == "tensorrt-llm-chunked"
    newest = map_row(row(**offline, engine_version="1.0"))
    assert (newest.limits, newest.preset) == ("trtllm-bench-whole", "tensorrt-llm@1.2")
    assert map_row(row(engine="TensorRT-LLM", load_kind="static_batch", engine_version="0.14")).limits == ""


def test_what_a_generator_of_deployments_sets(row):
    """aiconfigurator's rows that are not of InferenceX: budget of batch, prompt and 1,500; which era, by version and lengths."""
    made = {"source": "aiconfigurator-silicon-sample", "load_kind": "closed_loop_concurrency", "isl": "4000"}
    other = {**made, "notes": "origin: other file named in the sample; checkpoint X-FP8", "kv_dtype": ""}
    vllm = map_row(row(**other, engine="vllm", engine_version="0.12.0", weight_dtype="fp8"))
    assert (vllm.limits, vllm.prompts, vllm.kv) == ("prompt-and-1500", 100, "fp8")
    assert vllm.settings["kv.prefix_caching"] is True
    older = map_row(row(**{**other, "isl": "4096"}, engine="vllm", engine_version="0.12.0", weight_dtype="fp8"))
    assert (older.limits, older.prompts, older.settings["kv.prefix_caching"]) == ("prompt-and-1500", 0, False)
    assert map_row(row(**other, engine="sglang", engine_version="0.5.6.post2")).preset == "sglang-mixed"
    assert map_row(row(**other, engine="sglang", engine_version="0.5.1.post1")).preset == "sglang@0.5"
    first = map_row(row(**{**other, "isl": "4096"}, engine="trtllm", engine_version="1.0.0rc3", weight_dtype="fp8"))
    assert (first.limits, first.kv, first.settings["depth"]) == ("prompt-and-1500", "fp8", 1)
    assert first.settings["kv.memory_utilization"] == 0.8
    assert "depth" not in map_row(row(**other, engine="trtllm", engine_version="1.2.0rc6")).settings
    assert map_row(row(**other, engine="trtllm", engine_version="1.2.0rc6")).prompts == 100
    candidate = map_row(row(**other, engine="trtllm", engine_version="1.3.0rc1"))
    assert (candidate.prompts, candidate.settings["kv.prefix_caching"], candidate.settings["depth"]) == (0, False, 1)
    assert candidate.settings["cuda_graph_padding"] is False
    dump = {**made, "notes": "origin: InferenceX/InferenceMAX dump"}
    assert map_row(row(**dump, engine="vllm", engine_version="0.12.0")).prompts == 0
    number = LIMITS["prompt-and-1500-for-so-many"](load_model("Llama-3.1-8B"), H100, inputs=4000, number=64)
    assert number == {"max_num_batched_tokens": 5564, "max_num_seqs": 64}
    assert prompt_and_1500(load_model("Llama-3.1-8B"), H100, inputs=4000, number=64) == {"max_num_batched_tokens": 5564}
