"""Fidelity held: a fixed, stratified part of recorded measurements, with generous ceilings a group.

The ceilings are about twice what the groups stood at when they were set; they catch a wrong policy or a wrong factor, not
a per cent. `bench validate` over the whole folder is what tells how good the simulator is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.validation.cells import record
from experiments.validation.validate import choose, read_rows, validate
from reports.validation import errors, kept

SHARED = Path(__file__).parents[4] / "shared" / "measured"
pytestmark = pytest.mark.shared


def held(paths, *, sources=(), metrics=(), subset, also=lambda record: True):
    """Errors of a fixed part of some tables."""
    paths = [SHARED / path for path in paths]
    for path in paths:
        if not path.exists():
            pytest.skip("recorded measurements are not here")
    rows = choose(read_rows(paths), sources=sources, metrics=metrics)
    rows = [row for row in rows if also(row)]
    found = validate(choose(rows, subset=subset), jobs=1, everything=False)
    records = kept([record(cell) for cell in found.cells])
    assert not [r["error"] for r in records if r["error"]]
    return errors(records)


def dense(row):
    return "disagg" not in row.notes and row.model in ("Llama-3.1-70B", "Qwen3-32B") and not row.gpu.startswith("B")


def test_offline_throughput_of_dense_models_in_fp8():
    found = held(
        ["trtllm-perf-docs-ifb.csv"], subset=6,
        also=lambda r: r.weight_dtype == "fp8" and "Llama" in r.model and "405B" not in r.model and r.load.find("30000") < 0,
    )  # fmt: skip
    assert found.cells == 6
    assert found.mean < 0.20
    assert abs(found.bias) < 0.18


def test_offline_throughput_of_the_rest():
    found = held(
        ["trtllm-perf-docs-ifb.csv"], subset=5,
        also=lambda r: (r.weight_dtype == "fp16" or "Mixtral" in r.model) and "30000" not in r.load,
    )  # fmt: skip
    assert found.mean < 0.45
    assert found.far == 0


def test_time_a_token_in_closed_loops():
    found = held(["aiconfigurator-silicon-sample.csv"], metrics=["tpot_ms"], subset=16, also=dense)
    assert found.median < 0.22
    assert found.far == 0


def test_first_token_in_closed_loops():
    found = held(["aiconfigurator-silicon-sample.csv"], metrics=["ttft_ms"], subset=16, also=dense)
    assert found.median < 0.45


def test_single_streams_and_static_batches():
    tables = ["trtllm-perf-docs-static.csv", "gpt-fast-readme.csv", "trtllm-blogs.csv"]
    found = held(tables, subset=40)
    assert found.median < 0.22
    assert found.close > 0.6


def test_online_runs_of_vllm_latency():
    found = held(["vllm-h100"], metrics=["e2e_latency_ms_mean", "ttft_ms_mean"], subset=1)
    assert found.mean < 0.25


def test_whole_runs_of_vllm_request_by_request():
    found = held(["vllm-requests"], metrics=["e2e_latency_ms_mean"], subset=2)
    assert found.mean < 0.45
