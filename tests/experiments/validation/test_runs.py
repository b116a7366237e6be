"""Measured runs that are no tidy tables."""

import json

import pytest

from experiments.api import load_workload, run
from experiments.validation.runs import read_path
from experiments.validation.validate import validate
from workloads.errors import InputError

STAGE = {
    "experiment": "chat", "stage": "0", "model": "meta-llama/Llama-2-7b-hf", "gpu": "H100-SXM-80GB", "tp": "1", "engine": "vLLM",
    "weight_dtype": "fp16", "kv_dtype": "fp16", "max_model_len": "4096", "max_num_batched_tokens": "2048", "max_num_seqs": "128",
    "gpu_memory_utilization": "0.9", "arrival": "constant", "rate_rps": "5", "num_requests": "100", "groups": "10",
    "prompts_per_group": "10", "system_prompt_tokens": "100", "question_tokens": "466", "output_tokens": "20",
    "prompt_tokens_measured_mean": "591.6", "ttft_mean_ms": "25", "ttft_p99_ms": "46", "e2e_mean_ms": "160",
    "tpot_mean_ms_derived": "7.2",
}  # fmt: skip


def write_stages(folder, **changes):
    stage = STAGE | changes
    folder.mkdir(exist_ok=True)
    (folder / "runs.csv").write_text(",".join(stage) + "\n" + ",".join(stage.values()) + "\n", "utf-8")
    return folder


def test_load_stages_with_shared_prompts(tmp_path):
    rows = read_path(write_stages(tmp_path / "stages"))
    assert {r.metric: r.value for r in rows} == {
        "ttft_ms_mean": 25, "ttft_ms_p99": 46, "e2e_latency_ms_mean": 160, "tpot_ms_mean": 7.2,
    }  # fmt: skip
    found = validate(rows, jobs=1)
    assert found.points == 1
    point, result = found.cells[0].point, found.cells[0].result
    assert point.workload["engine"]["scheduler"]["max_num_batched_tokens"] == 2048
    assert point.workload["traffic"]["synthetic"]["arrivals"] == {"process": "constant", "rate": 5.0}
    assert result.facts["cached_share"] > 0.3  # 100 requests of 100 different prompts in 10 groups
    assert all(cell.predicted for cell in found.cells)


def test_a_bad_figure_in_a_stage_is_told(tmp_path):
    with pytest.raises(InputError, match=r"runs.csv:2, column rate_rps: expected a number, found 'five'"):
        read_path(write_stages(tmp_path / "stages", rate_rps="five"))


def test_whole_runs_request_by_request(tmp_path):
    folder = tmp_path / "rtxpro6000_llama-3.1-8b"
    folder.mkdir()
    settings = {"tensor_parallel_size": 1, "max_num_seqs": 64, "dtype": "bfloat16", "max_model_len": None}
    meta = {"model": "meta-llama/Llama-3.1-8B", "vllm_version": "0.19.0", "engine_kwargs": settings}
    (folder / "meta.json").write_text(json.dumps(meta))
    lines = ["request_id,arrival_s,input_tokens,output_tokens,scheduled_s,first_token_s,last_token_s"]
    lines += ["a,0.0,100,11,0.0,0.05,0.25", "b,1.0,200,21,1.0,1.07,1.57"]
    (folder / "requests.csv").write_text("\n".join(lines) + "\n")
    rows = read_path(tmp_path)
    measured = {r.metric: r.value for r in rows}
    assert measured["ttft_ms_mean"] == pytest.approx(60)
    assert measured["tpot_ms_mean"] == pytest.approx((20 + 25) / 2)
    assert measured["e2e_latency_ms_p50"] == pytest.approx(410)
    assert measured["makespan_s"] == pytest.approx(1.57)
    assert measured["output_tokens_per_s"] == pytest.approx(32 / 1.57)
    found = validate(rows, jobs=1)
    assert found.cells[0].deployment.gpu.name == "rtx-pro-6000"
    assert found.cells[0].result.facts["requests"] == 2
    (folder / "requests.csv").write_text("\n".join([*lines, "c,x,1,1,1,1,1"]) + "\n")
    with pytest.raises(InputError, match=r"requests.csv:4, column arrival_s"):
        read_path(folder)


def test_a_result_file_of_a_serving_benchmark(tmp_path):
    result = {
        "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B", "num_prompts": 64, "max_concurrency": 4, "request_rate": "inf",
        "input_lens": [100] * 64, "output_lens": [20] * 64, "mean_ttft_ms": 20.0, "p99_tpot_ms": 9.0, "mean_e2el_ms": 170.0,
        "output_throughput": 500.0, "request_throughput": 25.0, "total_token_throughput": 3000.0, "gpu": "h100-sxm",
        "dtype": "bfloat16",
    }  # fmt: skip
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    rows = read_path(path)
    assert {r.metric for r in rows} == {
        "ttft_ms_mean", "tpot_ms_p99", "e2e_latency_ms_mean", "output_tokens_per_s", "request_per_s", "total_tokens_per_s",
    }  # fmt: skip
    found = validate(rows, jobs=1)
    assert found.points == 1
    assert all(cell.predicted and cell.excluded is None for cell in found.cells)
    del result["gpu"]
    path.write_text(json.dumps(result))
    with pytest.raises(InputError, match=r"does not tell the GPU"):
        read_path(path)


def test_a_run_folder_of_ours_is_met_exactly(tmp_path):
    workload = tmp_path / "w.yaml"
    workload.write_text(
        "model: Llama-3.1-8B\nbackend: {name: sim, gpu: h100-sxm}\nengine: {preset: 'vllm@0.8', quantization: fp8}\n"
        "traffic: {max_tokens: exact, synthetic: {requests: 120, arrivals: {process: poisson, rate: 20}, input_tokens: 100,"
        " output_tokens: 10}}\n"
    )
    run(load_workload(workload), out=tmp_path / "run")
    found = validate(read_path(tmp_path / "run"), jobs=1)
    assert len(found.cells) > 10
    assert max(abs(cell.log_ratio) for cell in found.cells) < 1e-6


def test_a_folder_with_nothing_in_it_is_told(tmp_path):
    with pytest.raises(InputError, match="holds no measured table or run"):
        read_path(tmp_path)
    with pytest.raises(InputError, match="there is no such file or folder"):
        read_path(tmp_path / "missing.csv")
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match="is no result of a serving benchmark"):
        read_path(tmp_path / "x.json")


@pytest.mark.parametrize("name", ["serve.json", "serve.jsonl", "runs.csv"])
def test_a_file_of_another_encoding_is_told(tmp_path, name):
    if name == "runs.csv":
        path = write_stages(tmp_path) / name
    else:
        path = tmp_path / name
        path.write_text('{"output_throughput": 3.0, "model_id": "x"}')
    path.write_bytes(path.read_bytes().rstrip() + b"\xf2\n")
    with pytest.raises(InputError, match=rf"{name}.*(not UTF-8 at byte|codec can't decode byte)"):
        read_path(path)
