from __future__ import annotations

import json

import pytest
from synthetic_runs import make_requests, make_run, simulated_run, tokens_from_lists

from reports.export import vllm_result, write_vllm_result
from reports.metrics import summarize
from workloads.errors import OutputError

KEYS = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
    "max_concurrent_requests",
}  # fmt: skip


def test_flat_keys_of_vllm():
    result = vllm_result(simulated_run(150, 10, refuse=0.1))
    stats = {f"{s}_{m}_ms" for s in ("mean", "median", "std", "p99") for m in ("ttft", "tpot", "itl", "e2el")}
    assert KEYS | stats <= set(result)
    assert not any(isinstance(v, dict) for v in result.values())
    assert result["completed"] + result["failed"] == result["num_prompts"] == 150
    assert result["failed"] > 0


def test_detailed_lists_by_hand(tmp_path):
    r = make_requests(
        2, sent=[0.0, 1.0], first_token=[0.5, 1.5], finish=[1.0, 1.5], output_tokens=[3, 0], input_tokens=[7, 8],
        status=["finished", "failed"], reason=["", "reset"],
    )  # fmt: skip
    run = make_run(r, tokens_from_lists([[[0.5, 0.75, 1.0]], []]), load={"mode": "closed", "concurrency": 4})
    write_vllm_result(run, tmp_path / "v.json", detailed=True)
    found = json.loads((tmp_path / "v.json").read_text())
    assert found["input_lens"] == [7, 8]
    assert found["output_lens"] == [3, 0]
    assert found["ttfts"] == [0.5, 0.0]
    assert found["itls"] == [[0.25, 0.25], []]
    assert found["errors"] == ["", "failed: reset"]
    assert (found["request_rate"], found["max_concurrency"]) == ("inf", 4)


def test_the_model_is_the_one_that_was_asked_for():
    run = simulated_run(5, 10)
    run.info["model"] = "Qwen2.5-32B"
    run.config["model"] = {"value": "Qwen/QwQ-32B", "source": "user"}
    result = vllm_result(run)
    assert result["model_id"] == result["tokenizer_id"] == "Qwen/QwQ-32B"


def test_lists_agree_with_the_summary():
    run = simulated_run(80, 20, pool=8000)
    result, summary = vllm_result(run, detailed=True), summarize(run)
    gaps = [g for gaps in result["itls"] for g in gaps]
    assert summary["preemptions"] > 0
    assert len(gaps) == summary["latency_counts"]["itl"]
    assert sum(gaps) / len(gaps) * 1e3 == pytest.approx(summary["mean_itl_ms"])


def test_unwritable(tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        write_vllm_result(simulated_run(5, 10), tmp_path / "none" / "v.json")
