"""Limits that TensorRT-LLM's benchmark tool sets by itself, and to which of its versions they belong."""

from experiments.validation.limits import trtllm_bench, trtllm_bench_listed
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
    """By model, tensor degree and length; where nothing is listed the builder's own; never more rows than tokens."""

    def limits(name: str, tensor: int, inputs: int, outputs: int) -> tuple[int, int]:
        found = trtllm_bench_listed(
            load_model(name), H100, tensor=tensor, pipeline=1, inputs=inputs, outputs=outputs, weights="fp8", kv="fp8"
        )
        return found["max_num_seqs"], found["max_num_batched_tokens"]

    assert limits("Llama-3.1-70B", 2, 128, 128) == (256, 1024)
    assert limits("Llama-3.1-70B", 2, 2048, 2048) == (1024, 1024)
    assert limits("Llama-3.1-70B", 8, 2048, 2048) == (8192, 16384)
    assert limits("Llama-3.1-405B", 8, 128, 128) == (2048, 8192) == limits("Mixtral-8x7B", 8, 128, 128)


def test_the_list_is_of_the_versions_that_had_it(row):
    offline = {"engine": "TensorRT-LLM", "load_kind": "offline_all_at_once"}
    assert map_row(row(**offline, engine_version="0.14")).limits == "trtllm-bench-listed"
    assert map_row(row(**offline, engine_version="0.17")).limits == "trtllm-bench"
    assert map_row(row(engine="TensorRT-LLM", load_kind="static_batch", engine_version="0.14")).limits == ""
