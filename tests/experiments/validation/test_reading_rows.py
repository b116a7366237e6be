"""From the text of a row to metric, load, GPU, model, engine, precision and layout."""

from dataclasses import replace

import pytest

from experiments.validation.cells import cell_of
from experiments.validation.deployment import deployment_of
from experiments.validation.limits import one_prompt, trtllm_bench
from experiments.validation.load import parse_lengths, parse_load
from experiments.validation.mapping import map_row, rules
from experiments.validation.metrics import parse_metric
from experiments.validation.names import find_gpu, version_of
from experiments.validation.table import read_table
from sim.hardware import load_gpu
from sim.models import load_model
from workloads.errors import InputError


def test_metrics_have_a_quantity_a_statistic_and_perhaps_a_gpu():
    metric = parse_metric("output_tokens_per_s_per_gpu")
    assert (metric.quantity, metric.per_gpu, metric.key) == ("output_tokens_per_s", True, "output_tokens_per_s")
    assert parse_metric("ttft_ms").key == "ttft_ms_mean"
    assert parse_metric("tpot_ms_p99").key == "tpot_ms_p99"
    assert parse_metric("itl_ms_median").key == "itl_ms_p50"
    for wrong in ("ttft_s", "tpot_ms_per_gpu", "kv_capacity_tokens_p50", "goodness"):
        with pytest.raises(InputError, match="unknown metric"):
            parse_metric(wrong)


@pytest.mark.parametrize(
    ("text", "law", "low", "high"),
    [
        ("1024", "fixed", 1024, 1024),
        ("~11", "fixed", 11, 11),
        ("4,096", "fixed", 4096, 4096),
        ("uniform 100-1024", "uniform", 100, 1024),
        ("ShareGPT, mean 857.5", "mean", 857.5, 857.5),
        ("dataset, mean 290.1", "mean", 290.1, 290.1),
    ],
)
def test_lengths(text, law, low, high):
    found = parse_lengths(text)
    assert (found.law, found.low, found.high) == (law, low, high)


def test_lengths_that_are_not_told():
    assert parse_lengths("dataset") is None
    assert parse_lengths("") is None
    assert parse_lengths("0") is None


def load_of(row, **changes):
    found = parse_load(row(**changes))
    return found.kind, found.number, found.rate, found.requests


def test_mlperf_rows_have_the_lengths_of_their_data_set(row):
    """5,463,976 tokens in 24,576 prompts; those of other models' data sets are not known."""
    stated = {"load_kind": "mlperf_offline", "isl": "dataset", "osl": "dataset, mean 291.7", "model": "Llama-2-70B"}
    load = parse_load(row(**stated, concurrency_or_rate="MLPerf Offline"))
    assert load.inputs.mean == pytest.approx(5_463_976 / 24_576, abs=0.1) and load.outputs.mean == 291.7
    assert load.requests == 294_912
    assert parse_load(row(**stated | {"model": "GPT-J-6B"}, concurrency_or_rate="MLPerf Offline")).inputs is None


def test_mlperf_on_small_cards_is_taken_as_pipelines(row):
    stated = {
        "load_kind": "mlperf_offline", "model": "Llama-2-70B", "engine": "TensorRT 10.8", "weight_dtype": "fp8", "tp": "",
        "pp": "", "n_gpu": "16",
    }  # fmt: skip
    layout = deployment_of(row(**stated, gpu="NVIDIA H100-SXM-80GB")).layout
    assert (layout.tensor, layout.pipeline, layout.replicas) == (1, 2, 8)
    layout = deployment_of(row(**stated, gpu="NVIDIA H200-SXM-141GB")).layout
    assert (layout.tensor, layout.pipeline, layout.replicas) == (1, 1, 16)


def test_loads(row):
    assert load_of(row, concurrency_or_rate="batch=16") == ("static", 16, 0, 0)
    assert load_of(row, load_kind="closed_loop_concurrency", concurrency_or_rate="concurrency=64") == (
        "closed",
        64,
        0,
        0,
    )
    offline = {"load_kind": "offline_all_at_once", "concurrency_or_rate": "offline, 3000 requests queued at once"}
    assert load_of(row, **offline) == ("offline", 0, 0, 3000)
    online = {"load_kind": "open_loop_rate", "notes": "500 requests; constant gaps"}
    assert load_of(row, **online, concurrency_or_rate="qps=16") == ("open", 0, 16, 500)
    assert load_of(row, **online, concurrency_or_rate="qps=INF") == ("open", 0, float("inf"), 500)
    assert parse_load(row(**online, concurrency_or_rate="qps=16")).arrivals == "constant"
    decode = parse_load(
        row(
            load_kind="phase_only",
            concurrency_or_rate="decode",
            isl="",
            osl="",
            notes="decode batch 64 per GPU, output about 1786",
        )
    )
    assert (decode.phase, decode.number, decode.outputs.mean, decode.inputs) == ("decode", 64, 1786, None)
    assert parse_load(row(load_kind="something else")) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H100-SXM-80GB", "h100-sxm"), ("NVIDIA H200-SXM-141GB", "h200-sxm"), ("B200-180GB", "b200-sxm"),
        ("A100-PCIe-80GB", "a100-pcie"), ("A100-SXM-40GB", "a100-40gb"), ("A100-PCIE-40GB", "a100-pcie-40gb"),
        ("L40S-48GB", "l40s"), ("MI300X", "mi300x"), ("RTX-PRO-6000-Blackwell-96GB", "rtx-pro-6000"),
        ("A100-80GB", "a100-sxm"), ("H800", "h800-sxm"), ("H200-NVL-141GB", "h200-nvl"),
        # another memory size, another variant, or nothing that we know
        ("H100-SXM-96GB", "h100-sxm-96gb"), ("MI250", "mi250"), ("MI250X-1GCD", "mi250x-gcd"), ("RTX-4080-16GB", "rtx-4080"),
        ("H100-SXM-64GB", None), ("h100-80gb-pcap", None), ("RTX-4070-Ti-24GB", None),
        ("RTX-4070-Laptop-8GB", None), ("TPU v5e", None), ("Virtualized NVIDIA H200-SXM-141GB", None),
    ],
)  # fmt: skip
def test_gpus_by_the_names_of_tables(text, name):
    found = find_gpu(text)
    assert (found.name if found else None) == name


def test_versions():
    assert version_of("1.2.0rc6.post2") == (1, 2, 0)
    assert version_of("0.14") == (0, 14)
    assert version_of("nightly-dev-20260216") is None


@pytest.mark.parametrize(
    ("changes", "preset", "depth"),
    [
        ({"engine_version": "0.9.0"}, "vllm@0.8", None),
        ({"engine_version": "0.15.1"}, "vllm@0.14", None),
        ({"engine_version": "0.33.0"}, "vllm@0.33", None),
        ({"engine_version": "0.6.1"}, "vllm-v0", None),
        ({"engine_version": "", "source_date": "2024-10"}, "vllm-v0", None),
        ({"engine_version": "", "source_date": "2025-11-02"}, "vllm@0.8", None),
        ({"engine_version": "", "source_date": ""}, "vllm@0.33", None),
        ({"engine": "sglang", "engine_version": "0.5.9"}, "sglang@0.5", None),
        ({"engine": "TensorRT-LLM", "engine_version": "0.9.0"}, "tensorrt-llm-static", 1),
        ({"engine": "trtllm", "engine_version": "1.0", "load_kind": "offline_all_at_once"}, "tensorrt-llm@1.2", None),
        ({"engine": "trtllm", "engine_version": "0.20", "load_kind": "offline_all_at_once"}, "tensorrt-llm-chunked", None),
        ({"engine": "trtllm", "engine_version": "1.0.0rc3", "load_kind": "closed_loop_concurrency"}, "tensorrt-llm@1.2", None),
        ({"engine": "TensorRT 10.11", "engine_version": "", "load_kind": "mlperf_offline"}, "tensorrt-llm-chunked", None),
        ({"engine": "gpt-fast (PyTorch compile)"}, "static", None),
        ({"engine": "llama.cpp"}, "vllm-v0", None),
    ],
)  # fmt: skip
def test_presets(row, changes, preset, depth):
    mapped = map_row(row(**changes))
    assert (mapped.preset, mapped.settings.get("depth")) == (preset, depth)
    assert mapped.known == (changes.get("engine") != "llama.cpp")


def test_every_rule_gives_its_reason_and_none_looks_at_a_value():
    columns = {"engine", "model", "gpu", "notes", "load_kind", "weight_dtype", "kv_dtype", "load", "family", "preset"}
    columns |= {"isl", "osl", "engine_version", "source_date"}
    for kind, listed in rules().items():
        for rule in listed:
            assert len(rule["reason"]) > 5, (kind, rule)
            looks = set(rule["when"]) | set(rule.get("unless", {}))
            # A source by its name only for what its description says of the engine and its rows do not.
            assert looks <= columns | ({"source"} if "README of the tables" in rule["reason"] else set())
    names = [rule["name"] for rule in rules()["rule"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("changes", "weights", "kv"),
    [
        ({"weight_dtype": "bf16"}, "bf16", "auto"),
        ({"weight_dtype": "fp8", "kv_dtype": ""}, "fp8", "auto"),
        ({"weight_dtype": "fp8", "kv_dtype": "", "engine": "trtllm"}, "fp8", "fp8"),
        ({"weight_dtype": "fp8", "kv_dtype": "fp16", "engine": "trtllm"}, "fp8", "auto"),
        ({"weight_dtype": "fp8", "kv_dtype": "", "model": "DeepSeek-R1"}, "fp8-block", "auto"),
        ({"weight_dtype": "fp8", "kv_dtype": "", "model": "Qwen3-32B"}, "fp8-block", "auto"),
        ({"weight_dtype": "nvfp4", "model": "gpt-oss-120b", "kv_dtype": "", "engine": "trtllm"}, "mxfp4", "auto"),
        ({"weight_dtype": "fp8", "model": "gpt-oss-120b", "kv_dtype": "fp8", "engine": "trtllm"}, "mxfp4", "fp8"),
        (
            {
                "weight_dtype": "fp8",
                "model": "gpt-oss-120b",
                "kv_dtype": "fp8",
                "engine": "trtllm",
                "notes": "weights mxfp4 checkpoint (column label in the doc is fp8)",
            },
            "mxfp4",
            "auto",
        ),
        ({"weight_dtype": "int4", "kv_dtype": ""}, "gptq-int4", "auto"),
        ({"weight_dtype": "int8", "kv_dtype": ""}, "int8-w8a16", "auto"),
        ({"weight_dtype": "", "kv_dtype": ""}, "auto", "auto"),
        ({"weight_dtype": "fp32", "kv_dtype": ""}, "", "auto"),
    ],
)
def test_precision(row, changes, weights, kv):
    mapped = map_row(row(**changes))
    assert (mapped.weights, mapped.kv) == (weights, kv)


def test_layouts(row):
    def layout(**changes):
        found = deployment_of(row(**changes)).layout
        return found.tensor, found.pipeline, found.expert, found.data, found.replicas

    assert layout(tp="2", n_gpu="8") == (2, 1, 1, 1, 4)
    moe = {"model": "gpt-oss-120b", "weight_dtype": "mxfp4"}
    assert layout(**moe, tp="8", n_gpu="8", notes="dp_attention=1 moe_tp=8 moe_ep=1") == (8, 1, 1, 1, 1)
    assert layout(**moe, tp="4", n_gpu="4", notes="dp_attention=1 moe_tp=1 moe_ep=4") == (4, 1, 4, 1, 1)
    assert layout(**moe, tp="1", n_gpu="4", notes="dp_attention=4 moe_tp=1 moe_ep=4") == (1, 1, 4, 4, 1)
    ranks = "dp_attention=1 moe_tp=2 moe_ep=2; batch_size column=40"  # of a rank: four of them make the load
    assert layout(**moe, tp="4", n_gpu="4", notes=ranks, concurrency_or_rate="concurrency=160") == (1, 1, 4, 4, 1)
    assert layout(**moe, tp="4", n_gpu="4", notes=ranks, concurrency_or_rate="concurrency=40") == (4, 1, 2, 1, 1)
    # InferenceX states tensor and expert degree of the same GPUs; a table multiplied them
    dump = "moe_tp=8 moe_ep=8; origin: InferenceX dump"
    assert layout(**moe, tp="64", n_gpu="64", notes=f"dp_attention=1 {dump}") == (8, 1, 8, 1, 1)
    assert layout(**moe, tp="1", n_gpu="64", notes=f"dp_attention=64 {dump}") == (1, 1, 8, 8, 1)
    assert layout(**moe, tp="64", n_gpu="64", notes="dp_attention=1 moe_tp=8 moe_ep=8") != (8, 1, 8, 1, 1)
    guessed = deployment_of(row(model="Llama-3.1-70B", tp="", n_gpu="8"))
    assert (guessed.layout.tensor, guessed.layout.replicas) == (4, 2)
    assert "not stated" in guessed.notes[0]


def test_settings_in_the_notes_are_used(row):
    settings = deployment_of(
        row(notes="max_num_seqs=128 max_num_batched_tokens=2048 gpu_memory_utilization=0.85")
    ).settings
    assert settings["scheduler.max_num_seqs"] == 128
    assert settings["scheduler.max_num_batched_tokens"] == 2048
    assert settings["kv.memory_utilization"] == 0.85


def test_limits_of_the_benchmark_tool():
    """8B in FP8 on one H100 at 1,000/1,000: (79.1 GiB - 7.5 GiB) x 0.95 / (64 KiB x 2,000) = 557 requests."""
    model, gpu = load_model("Llama-3.1-8B"), load_gpu("h100-sxm")
    common = {"tensor": 1, "pipeline": 1, "weights": "fp8", "kv": "fp8"}
    found = trtllm_bench(model, gpu, **common, inputs=1000, outputs=1000)
    assert found == {"max_num_seqs": 640, "max_num_batched_tokens": 2048}
    long = trtllm_bench(model, gpu, **common, inputs=2048, outputs=128)
    assert long == {"max_num_seqs": 640, "max_num_batched_tokens": 9216}
    assert one_prompt(model, gpu, inputs=1024, number=64) == {"max_num_batched_tokens": 1152}


APART = (
    "disaggregated; prefill: workers=3 tp=1 pp=1 dp_attention=4 moe_tp=1 moe_ep=4 batch=1; "
    "decode: workers=2 tp=8 pp=1 dp_attention=1 moe_tp=1 moe_ep=8 batch=16; origin: InferenceX/InferenceMAX dump"
)
DRAFTS = {"engine": "trtllm", "model": "DeepSeek-R1", "weight_dtype": "fp8", "gpu": "B200-180GB", "source_date": "2025-12-15",
          "load_kind": "closed_loop_concurrency", "concurrency_or_rate": "concurrency=16", "n_gpu": "8", "tp": "8",
          "notes": "dp_attention=1 moe_tp=8 moe_ep=1; origin: InferenceX/InferenceMAX dump"}  # fmt: skip
SGLANG = {"engine": "sglang", "engine_version": "0.5.9", "source_date": "2026-03-25", "isl": "1024"}


@pytest.mark.parametrize(
    ("changes", "rule", "runnable"),
    [
        ({"model": "Unknown-13B"}, "unknown model", False),
        ({"gpu": "TPU v5e"}, "unknown GPU", False),
        ({"notes": "disaggregated; prefill: workers=1"}, "disaggregated, layout unknown", False),
        ({"notes": APART}, "disaggregated", True),
        ({"notes": APART.replace("batch=16", "batch=")}, "disaggregated, layout unknown", False),
        ({"notes": "IMPOSSIBLE as labelled"}, "marked impossible", True),
        ({"engine": "llama.cpp"}, "unknown engine", True),
        ({"weight_dtype": ""}, "precision missing", True),
        ({"weight_dtype": "fp32"}, "precision not modelled", False),
        ({"isl": "dataset"}, "lengths unknown", False),
        ({"concurrency_or_rate": ""}, "load unknown", False),
        ({"load_kind": "a new one"}, "unknown load kind", False),
        ({"load_kind": "mlperf_server"}, "rate searched", False),
        ({"notes": "MTP on, spec_decoding=mtp"}, "speculative decoding", False),
        ({"notes": "spec_decoding=none"}, None, True),
        (DRAFTS | {"engine_version": "1.2.0rc6.post3"}, "drafts assumed", True),
        (DRAFTS | {"engine_version": "1.2.0rc6.post2"}, None, True),
        (DRAFTS | {"engine_version": "1.1.0rc2.post2"}, None, True),
        (DRAFTS | {"engine_version": "1.1.0rc2.post2", "source_date": "2026-01-14"}, "speculation not told", True),
        (DRAFTS | SGLANG | {"concurrency_or_rate": "concurrency=64"}, "speculation not told", True),
        (DRAFTS | SGLANG | {"concurrency_or_rate": "concurrency=128"}, "drafts assumed", True),
        (DRAFTS | SGLANG | {"concurrency_or_rate": "concurrency=8", "isl": "8192"}, "drafts assumed", True),
        (DRAFTS | SGLANG | {"concurrency_or_rate": "concurrency=4", "isl": "8192"}, "speculation not told", True),
        (DRAFTS | SGLANG | {"notes": "dp_attention=1 moe_tp=4 moe_ep=1; origin: InferenceX"}, None, True),
        ({}, None, True),
    ],
)
def test_exclusions_come_from_metadata_alone(row, changes, rule, runnable):
    for value in ("220", "999999"):
        cell = cell_of(row(**changes, value=value))
        assert (cell.excluded.name if cell.excluded else None) == rule
        assert (cell.point is not None) == runnable


def test_cells_of_one_configuration_share_a_point_and_values_do_not_matter(row):
    first, second = cell_of(row(value="1")), cell_of(row(value="2", metric="total_tokens_per_s"))
    assert first.point.key == second.point.key
    assert cell_of(row(osl="12")).point.key != first.point.key
    assert cell_of(row(engine_version="0.15.0")).point.key != first.point.key


def test_drafts_are_assumed_where_it_is_public_how_many_hold(row):
    """DeepSeek-V3's report gives 85 to 90 % for one token more; a row that says what it used is taken by its word."""
    read = row(**DRAFTS, engine_version="1.2.0rc6.post3")
    section = cell_of(read).point.workload["engine"]["speculation"]
    assert (section["method"], section["num_speculative_tokens"]) == ("mtp", 1) and 0.85 <= section["acceptance"] <= 0.9
    said = {"speculation.method": "mtp", "speculation.num_speculative_tokens": 3, "speculation.acceptance": 0.8}
    cell = cell_of(replace(read, extra=said))
    assert cell.excluded is None and cell.point.workload["engine"]["speculation"]["num_speculative_tokens"] == 3


def test_prefill_and_decode_engines_are_laid_out_as_told(table) -> None:
    """Three of four GPUs with attention ranks, two of eight with tensor parallelism: 28 GPUs, and all of the load at once."""
    changes = {"model": "DeepSeek-R1", "weight_dtype": "fp8", "gpu": "B200-180GB", "n_gpu": "28", "isl": "8192", "osl": "1024",
               "engine": "sglang", "engine_version": "0.5.8", "source_date": "2026-03-01", "tp": "", "pp": "",
               "load_kind": "closed_loop_concurrency", "concurrency_or_rate": "concurrency=64", "notes": APART}  # fmt: skip
    (row,) = read_table(table({**changes, "metric": "tpot_ms"}))
    cell = cell_of(row)
    assert cell.point.gpus == 28 and cell.point.share == 1 and cell.point.workload["load"]["concurrency"] == 64
    cluster = cell.point.workload["cluster"]
    assert cluster["prefill"]["replicas"] == 3 and cluster["decode"]["replicas"] == 2
    assert cluster["prefill"]["engine"]["parallel"] == {"data": 4, "expert": 4}
    assert cluster["decode"]["engine"]["parallel"] == {"tensor": 8, "expert": 8}
