"""Impossible figures: recognised from data sheets, and possible ones left alone."""

import csv
from pathlib import Path

import pytest

from sim.cost.plausible import fastest_us, impossible, impossible_decode, impossible_throughput
from sim.cost.timings import Timing
from sim.hardware import load_gpu
from sim.models import load_model
from workloads.errors import Place

SHARED = Path(__file__).parents[3].parent / "shared" / "measured"
H100, A100 = load_gpu("h100"), load_gpu("a100")
LLAMA = load_model("Llama-3-8B")


def timing(op, us, dtype="bf16", kv="bf16", **shape):
    return Timing(op, dtype, kv, shape, us, "vllm", "h100-sxm", "", "", Place())


def test_arithmetic_and_memory_bound_what_can_be():
    product = timing("gemm", 1.0, m=8192, n=8192, k=8192)
    assert fastest_us(product, H100) == pytest.approx(2e6 * 8192**3 / 989.4e12)
    assert impossible(timing("gemm", 1000.0, m=8192, n=8192, k=8192), H100)
    assert not impossible(timing("gemm", 1200.0, m=8192, n=8192, k=8192), H100)
    read = timing("attn_decode", 1.0, batch=64, seq=16384, heads=32, kv_heads=8, head_dim=128)
    assert fastest_us(read, H100) == pytest.approx(64 * 16384 * 4096 / 3350e9 * 1e6, rel=1e-6)


def test_what_fits_a_cache_may_be_faster_than_memory():
    small = timing("gemm", 5.0, m=1, n=4096, k=4096)  # 33 MB in 5 us: 6.7 TB/s, in a loop over the same weights
    assert not impossible(small, H100)


def test_a_token_reads_every_weight():
    least = impossible_decode(LLAMA, H100, gpus=1, weights="bf16", tpot_ms=3.0)
    assert "Llama-3-8B" in least and not impossible_decode(LLAMA, H100, gpus=1, weights="bf16", tpot_ms=5.5)
    assert not impossible_decode(LLAMA, H100, gpus=2, weights="bf16", tpot_ms=3.0)
    assert not impossible_decode(LLAMA, H100, gpus=1, weights="fp8", tpot_ms=3.0)
    assert not impossible_decode(LLAMA, H100, gpus=1, weights="bf16", tpot_ms=3.0, tokens_per_step=2.0)
    sparse = load_model("Qwen3-30B-A3B")
    assert not impossible_decode(sparse, H100, gpus=1, weights="bf16", tpot_ms=2.5)  # 3 of 30 billion weights are read


def test_throughput_is_bounded_by_both():
    assert "peak" in impossible_throughput(LLAMA, H100, gpus=1, weights="bf16", tokens_per_s=90_000)
    assert "batch 1" in impossible_throughput(LLAMA, H100, gpus=1, weights="bf16", tokens_per_s=400, batch=1)
    assert not impossible_throughput(LLAMA, H100, gpus=1, weights="bf16", tokens_per_s=180, batch=1)


@pytest.mark.shared
def test_rows_that_their_collectors_called_impossible():
    path = SHARED / "premai-benchmarks.csv"
    if not path.is_file():
        pytest.skip("recorded benchmarks are not here")
    rows = [
        r for r in csv.DictReader(path.open()) if r["metric"].startswith("output_tokens_per_s") and r["weight_dtype"]
    ]
    modes = {"fp32": "bf16", "fp16": "fp16", "int8": "int8-w8a16", "int4": "awq-int4"}
    told = caught = 0
    for row in rows:
        if row["weight_dtype"] not in modes or "fp32" not in row["weight_dtype"]:
            continue
        model = load_model(row["model"])
        # labelled fp32: twice the bytes of 16 bit, so half the rate that 16 bit allows
        reason = impossible_throughput(
            model, A100, gpus=1, weights="bf16", tokens_per_s=2 * float(row["value"]), batch=1
        )
        told += "IMPOSSIBLE" in row["notes"]
        caught += bool(reason) and "IMPOSSIBLE" in row["notes"]
    assert told and caught == told
