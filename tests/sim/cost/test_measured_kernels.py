"""The operator forms against recorded kernel times of the engines (NVIDIA aiconfigurator's tables, InferSim's for MLA).

Bounds are generous: they catch a wrong factor, not a wrong per cent. Errors are medians of |log(predicted / measured)|.
"""

import csv
import math
import statistics
from pathlib import Path

import pytest

from sim.cost.constants import ElementwiseConstants, load_constants
from sim.cost.experts import GroupedGemm
from sim.cost.operators import (
    AllReduce,
    DecodeAttention,
    Elementwise,
    Gemm,
    LatentAttention,
    PrefillAttention,
)
from sim.hardware import load_gpu

SHARED = Path(__file__).parents[3].parent / "shared" / "measured"
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
pytestmark = pytest.mark.shared


def rows_of(gpu, op, **wanted):
    path = SHARED / "op-latency" / f"{gpu}_sxm.{op}.csv"
    if not path.is_file():
        pytest.skip("recorded kernel times are not here")
    rows = [r for r in csv.DictReader(path.open()) if all(r[k] == v for k, v in wanted.items())]
    return [{k: float(v) if v.replace(".", "", 1).isdigit() else v for k, v in r.items()} for r in rows]


def median_error(pairs):
    errors = [abs(math.log(predicted * 1e6 / measured)) for predicted, measured in pairs]
    assert len(errors) > 20
    return statistics.median(errors)


def setting(gpu, engine):
    device = load_gpu(gpu)
    return device, load_constants(device, ENGINES[engine])


@pytest.mark.parametrize(
    ("gpu", "engine", "bound"),
    [
        ("h100", "vllm", 0.10),
        ("h100", "sglang", 0.10),
        ("h100", "trtllm", 0.08),
        ("a100", "vllm", 0.12),
        ("a100", "trtllm", 0.12),
    ],
)
def test_bf16_matmuls(gpu, engine, bound):
    device, constants = setting(gpu, engine)
    pairs = [
        (
            Gemm(constants.gemm["bf16"], device, "bf16", r["n"], r["k"], 2 * r["n"] * r["k"], 2).seconds(r["m"]),
            r["us"],
        )
        for r in rows_of(gpu, "gemm", engine=engine, dtype="bfloat16")
    ]
    assert median_error(pairs) < bound


@pytest.mark.parametrize(("engine", "bound"), [("vllm", 0.22), ("sglang", 0.15), ("trtllm", 0.06)])
def test_fp8_matmuls_with_their_quantisation(engine, bound):
    device, constants = setting("h100", engine)
    q = constants.quantize
    pairs = []
    for r in rows_of("h100", "gemm", engine=engine, dtype="fp8"):
        gemm = Gemm(constants.gemm["fp8"], device, "fp8", r["n"], r["k"], r["n"] * r["k"], 1)
        prepare = Elementwise(ElementwiseConstants(q.dynamic_us, q.bandwidth, ""), device, q.dynamic_bytes * r["k"])
        pairs.append((gemm.seconds(r["m"]) + prepare.seconds(r["m"]), r["us"]))
    assert median_error(pairs) < bound


@pytest.mark.parametrize(
    ("gpu", "engine", "cache", "bound"),
    [("h100", "vllm", "bfloat16", 0.09), ("h100", "vllm", "fp8", 0.09), ("h100", "sglang", "bfloat16", 0.09),
     ("h100", "trtllm", "bfloat16", 0.12), ("h100", "trtllm", "fp8", 0.14), ("a100", "vllm", "bfloat16", 0.12)],
)  # fmt: skip
def test_decode_attention(gpu, engine, cache, bound):
    device, constants = setting(gpu, engine)
    size = 2 if cache == "bfloat16" else 1
    pairs = []
    for r in rows_of(gpu, "attn_decode", engine=engine, dtype="bfloat16", kv_dtype=cache):
        if r["n_q_heads"] == r["n_kv_heads"]:
            continue  # other kernels
        kind = constants.decode["bf16" if size == 2 else "fp8"]
        operator = DecodeAttention(kind, device, r["n_q_heads"], r["n_kv_heads"], size * r["head_dim"], r["head_dim"])
        pairs.append((operator.seconds(r["batch"], r["batch"] * r["seq"]), r["us"]))
    assert median_error(pairs) < bound


@pytest.mark.parametrize(
    ("gpu", "engine", "bound"),
    [
        ("h100", "vllm", 0.12),
        ("h100", "sglang", 0.12),
        ("h100", "trtllm", 0.12),
        ("a100", "vllm", 0.12),
        ("a100", "trtllm", 0.12),
    ],
)
def test_prefill_attention(gpu, engine, bound):
    device, constants = setting(gpu, engine)
    pairs = []
    for r in rows_of(gpu, "attn_prefill", engine=engine, dtype="bfloat16", kv_dtype="bfloat16"):
        tokens = r["batch"] * r["seq"]
        operator = PrefillAttention(
            constants.prefill["bf16"],
            device,
            "bf16",
            r["n_q_heads"],
            r["head_dim"],
            4 * r["n_kv_heads"] * r["head_dim"],
        )
        tiles = r["batch"] * max(r["seq"], 128) / 128
        pairs.append((operator.seconds(tokens, tokens * r["seq"], tokens, tiles), r["us"]))
    assert median_error(pairs) < bound


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_all_reduce(engine):
    device, constants = setting("h100", engine)
    pairs = []
    for r in rows_of("h100", "allreduce", engine=engine, dtype="bfloat16"):
        if r["launch"] == "eager":
            continue
        ways = int(r["tp"])
        operator = AllReduce(constants.all_reduce[str(ways)], device.group_link(ways), ways, 2.0)
        pairs.append((operator.seconds(r["elements"]), r["us"]))
    assert median_error(pairs) < 0.10


@pytest.mark.parametrize(
    ("engine", "dtype", "bound"),
    [("vllm", "bfloat16", 0.2), ("trtllm", "bfloat16", 0.2), ("sglang", "bfloat16", 0.35), ("vllm", "fp8_block", 0.2),
     ("trtllm", "fp8_block", 0.15), ("sglang", "fp8_block", 0.3)],
)  # fmt: skip
def test_expert_layers_with_balanced_routing(engine, dtype, bound):
    device, constants = setting("h100", engine)
    kind, compute, size = ("bf16", "bf16", 2) if dtype == "bfloat16" else ("fp8-block", "fp8", 1)
    pairs = []
    for r in rows_of("h100", "moe", engine=engine, dtype=dtype, distribution="balanced"):
        ffn = r["inter_size"] / r["moe_tp_size"]
        operator = GroupedGemm(
            constants.moe[kind], device, compute, experts=r["num_experts"], local=r["num_experts"] / r["moe_ep_size"],
            chosen=r["topk"], hidden=r["hidden_size"], up=2 * ffn, down=ffn,
            expert_bytes=size * 3 * r["hidden_size"] * ffn, activation_bytes=size,
        )  # fmt: skip
        pairs.append((operator.seconds(r["num_tokens"]), r["us"]))
    assert median_error(pairs) < bound


def test_latent_decode_attention():
    path = SHARED / "infersim-kernels" / "mla_decode_h800_128-512-64.csv"
    if not path.is_file():
        pytest.skip("recorded MLA times are not here")
    device = load_gpu("h800")
    operator = LatentAttention(load_constants(device, "vllm").mla, device, 128, 576, 512, 1152)
    rows = list(csv.DictReader(path.open()))
    pairs = [
        (
            operator.seconds(int(r["batch_size"]), int(r["batch_size"]) * int(r["kv_len"])),
            float(r["latency_us"]),
        )
        for r in rows
    ]
    assert median_error(pairs) < 0.08
