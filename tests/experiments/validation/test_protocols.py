"""Every protocol and metric against values worked out by hand: steps with prompts take 100 ms, others 10 ms."""

from dataclasses import replace

import pytest

from experiments.validation.deployment import deployment_of
from experiments.validation.load import parse_load
from experiments.validation.mapping import map_row
from experiments.validation.points import point_of
from experiments.validation.simulate import simulate
from experiments.validation.table import read_table
from experiments.validation.validate import validate


@pytest.fixture
def predicted(flat, table):
    """`predicted(isl="100", metrics=[…])` simulates one measurement; metric → predicted."""

    def run(metrics, **changes):
        rows = read_table(table(*[{**changes, "metric": metric} for metric in metrics]))
        found = validate(rows, jobs=1)
        assert found.points == 1
        assert not [cell.error for cell in found.cells if cell.error]
        return {cell.row.metric: cell.predicted for cell in found.cells}

    return run


def test_a_static_batch(predicted):
    """4 sequences of 100 in and 11 out: 100 ms for the prompts and the first tokens, 10 steps for the others: 200 ms."""
    metrics = (
        "output_tokens_per_s", "total_tokens_per_s", "ttft_ms", "tpot_ms", "itl_ms", "e2e_latency_ms", "request_per_s",
        "makespan_s", "output_tokens_per_s_per_gpu",
    )  # fmt: skip
    found = predicted(metrics, concurrency_or_rate="batch=4", n_gpu="2", tp="2")
    assert found == pytest.approx(
        {
            "output_tokens_per_s": 4 * 11 / 0.2, "total_tokens_per_s": 4 * 111 / 0.2, "ttft_ms": 100, "tpot_ms": 10,
            "itl_ms": 10, "e2e_latency_ms": 200, "request_per_s": 20, "makespan_s": 0.2,
            "output_tokens_per_s_per_gpu": 110,
        }
    )  # fmt: skip


def test_a_static_batch_of_the_static_engine(predicted):
    found = predicted(
        ("output_tokens_per_s", "ttft_ms", "e2e_latency_ms"),
        engine="TensorRT-LLM",
        engine_version="0.9.0",
        source_date="2024-04-12",
    )
    assert found == pytest.approx({"output_tokens_per_s": 220, "ttft_ms": 100, "e2e_latency_ms": 200})


def test_the_first_token_of_a_static_batch_is_that_of_its_last_sequence(predicted):
    """8,192 tokens hold two prompts of 4,096, then, beside two decoding rows, one and all but two tokens of another."""
    found = predicted(("ttft_ms",), isl="4096", notes="max_num_batched_tokens=8192")
    assert found["ttft_ms"] == pytest.approx(300)


def test_offline_all_at_once(predicted):
    """32 requests, 8 at a time: a wave takes 200 ms; the next wave's prompts start when the first wave is over."""
    metrics = ("output_tokens_per_s", "makespan_s", "total_tokens_per_s")
    found = predicted(
        metrics,
        load_kind="offline_all_at_once",
        concurrency_or_rate="offline, 32 requests queued at once",
        notes="max_num_seqs=8",
    )
    assert found == pytest.approx(
        {"output_tokens_per_s": 32 * 11 / 0.8, "makespan_s": 0.8, "total_tokens_per_s": 32 * 111 / 0.8}
    )


def test_a_long_offline_run_is_extrapolated_at_its_steady_rate(predicted):
    """30,000 requests in waves of 8 are 3,750 waves of 200 ms; only 1,000 requests are simulated."""
    found = predicted(
        ("makespan_s", "output_tokens_per_s"), load_kind="offline_all_at_once",
        concurrency_or_rate="offline, 30000 requests queued at once", notes="max_num_seqs=8",
    )  # fmt: skip
    assert found["makespan_s"] == pytest.approx(750, rel=0.01)
    assert found["output_tokens_per_s"] == pytest.approx(30000 * 11 / 750, rel=0.01)


def test_offline_with_varied_lengths(predicted):
    """All run at once; the longest answer of at most 21 tokens ends the run after 100 ms and at most 20 steps."""
    found = predicted(
        ("makespan_s",), load_kind="offline_dataset", concurrency_or_rate="150 requests", osl="uniform 1-21"
    )
    assert found["makespan_s"] == pytest.approx(0.3)


def test_a_closed_loop(predicted):
    """2 in flight, in lockstep: each turn takes 50 ms of front end, 100 ms of prompts and 10 steps: 250 ms."""
    metrics = ("ttft_ms", "ttft_ms_p99", "tpot_ms_p50", "e2e_latency_ms", "output_tokens_per_s", "request_per_s")
    found = predicted(metrics, load_kind="closed_loop_concurrency", concurrency_or_rate="concurrency=2")
    assert found == pytest.approx(
        {
            "ttft_ms": 150, "ttft_ms_p99": 150, "tpot_ms_p50": 10, "e2e_latency_ms": 250, "output_tokens_per_s": 2 * 11 / 0.25,
            "request_per_s": 8,
        }
    )  # fmt: skip


def test_a_closed_loop_over_replicas(predicted):
    """4 GPUs at TP 1 are 4 replicas with 2 requests in flight each."""
    metrics = ("request_per_s", "output_tokens_per_s_per_gpu")
    found = predicted(metrics, load_kind="closed_loop_concurrency", concurrency_or_rate="concurrency=8", n_gpu="4")
    assert found == pytest.approx({"request_per_s": 32, "output_tokens_per_s_per_gpu": 88})


def test_a_client_that_repeats_its_prompts(row):
    """Prompts are drawn from so many; twice the concurrency goes before, fills the cache and is not counted."""
    made = row(
        source="aiconfigurator-silicon-sample", notes="origin: other file named in the sample", engine_version="0.12.0",
        load_kind="closed_loop_concurrency", concurrency_or_rate="concurrency=64", isl="1000", osl="10",
    )  # fmt: skip
    point = point_of(made, parse_load(made), deployment_of(made))
    synthetic = point.workload["traffic"]["synthetic"]
    assert (point.skip, synthetic["requests"], synthetic["prefix"]["count"]) == (128, 128 + 640, 100)
    repeated = simulate(point)
    assert repeated.facts["cached_share"] > 0.8
    told = validate([replace(made, metric="ttft_ms"), replace(made, metric="tpot_ms")], jobs=1).cells
    assert ["again and again" in " ".join(cell.warnings) for cell in told] == [True, False]
    counted = simulate(replace(point, skip=0))
    assert counted.figures["ttft_ms_mean"] > 1.5 * repeated.figures["ttft_ms_mean"]
    assert map_row(row(notes="", load_kind="closed_loop_concurrency")).prompts == 0


def test_an_open_loop_at_a_constant_rate(predicted):
    """One request a second, each alone: 50 + 100 ms to the first token; the last of 20 comes at 19 s and takes 250 ms."""
    metrics = ("ttft_ms", "ttft_ms_p90", "tpot_ms", "request_per_s")
    changes = {"load_kind": "open_loop_rate", "concurrency_or_rate": "qps=1, 20 requests", "notes": "constant gaps"}
    found = predicted(metrics, **changes)
    first = 19 + 0.25
    assert found == pytest.approx(
        {"ttft_ms": 150, "ttft_ms_p90": 150, "tpot_ms": 10, "request_per_s": 20 / first}, rel=0.06
    )
    inside = predicted(("ttft_ms",), **{**changes, "notes": "constant gaps; timed from engine queueing"})
    assert inside["ttft_ms"] == pytest.approx(100)


def test_all_at_once_over_http(predicted):
    found = predicted(
        ("ttft_ms", "request_per_s"), load_kind="open_loop_rate", concurrency_or_rate="qps=INF", notes="16 requests"
    )
    assert found == pytest.approx({"ttft_ms": 150, "request_per_s": 16 / 0.25})


def test_decode_alone(predicted):
    """64 sequences a step of 10 ms, whatever the prompts took."""
    changes = {
        "load_kind": "phase_only",
        "concurrency_or_rate": "decode",
        "notes": "decode batch 64 per GPU",
        "isl": "10",
    }
    found = predicted(("output_tokens_per_s_per_gpu",), **changes)
    assert found["output_tokens_per_s_per_gpu"] == pytest.approx(6400)


def test_prefill_alone(predicted):
    """Two prompts of 1,000 a step of 100 ms."""
    changes = {
        "load_kind": "phase_only",
        "concurrency_or_rate": "prefill",
        "notes": "2000 prefill tokens per GPU",
        "isl": "1000",
    }
    found = predicted(("input_tokens_per_s_per_gpu",), **changes)
    assert found["input_tokens_per_s_per_gpu"] == pytest.approx(20000)


def test_kv_capacity_and_a_ratio(predicted, table):
    found = predicted(("kv_capacity_tokens",), load_kind="none", isl="", osl="", concurrency_or_rate="", tp="1")
    assert (
        300_000 < found["kv_capacity_tokens"] < 600_000
    )  # 131,072 bytes a token in what 16 GB of weights leave of 71 GiB
    rows = read_table(table({"metric": "speedup_vs_fp16", "weight_dtype": "fp8", "kv_dtype": "fp8"}))
    result = validate(rows, jobs=1)
    assert result.cells[0].predicted == pytest.approx(1.0)  # every step takes as long
    assert result.points == 2


def test_a_deployment_that_does_not_fit_is_told_and_the_others_go_on(flat, table):
    rows = read_table(table({"model": "Llama-3.1-405B"}, {"tp": "3", "n_gpu": "3"}, {}))
    cells = validate(rows, jobs=1).cells
    assert "does not fit" in cells[0].error
    assert "cannot share evenly" in cells[1].error
    assert cells[2].predicted == pytest.approx(220)


def test_experts_over_attention_ranks(table):
    """DeepSeek-R1 in FP8 is too large for one B200, but not with its experts over eight data-parallel ranks."""
    common = {"model": "DeepSeek-R1", "gpu": "B200-180GB", "engine": "trtllm", "engine_version": "1.2.0", "weight_dtype": "fp8",
              "kv_dtype": "", "tp": "1", "n_gpu": "8", "load_kind": "closed_loop_concurrency", "metric": "tpot_ms",
              "concurrency_or_rate": "concurrency=16", "isl": "64", "osl": "8"}  # fmt: skip
    spread, alone = ({**common, "notes": f"dp_attention={d} moe_tp=1 moe_ep={e}"} for d, e in ((8, 8), (1, 1)))
    cells = validate(read_table(table(spread, {**alone, "n_gpu": "1"})), jobs=1).cells
    assert not cells[0].error and cells[0].predicted > 1
    assert cells[0].point.workload["load"]["concurrency"] == 16 and cells[0].point.share == 1
    assert "does not fit" in cells[1].error


def test_attention_ranks_are_one_group(table):
    """They have the memory and the limits of all, take their steps together, and stretches of steps are steps."""
    from experiments import runner
    from experiments.validation.simulate import _resolved

    row = {"model": "DeepSeek-R1", "gpu": "B200-180GB", "engine": "trtllm", "engine_version": "1.2.0", "weight_dtype": "fp4",
           "kv_dtype": "", "tp": "1", "n_gpu": "4", "load_kind": "closed_loop_concurrency", "metric": "tpot_ms",
           "notes": "dp_attention=4 moe_tp=1 moe_ep=4; max_num_seqs=8", "concurrency_or_rate": "concurrency=12",
           "isl": "500", "osl": "20"}  # fmt: skip
    point = validate(read_table(table(row)), jobs=1).cells[0].point
    group = _resolved(point.workload)
    assert group.engine.scheduler.max_num_seqs == 32
    assert group.budget.kv_tokens == group.budget.blocks * group.budget.block_size
    runs = [runner.run(_resolved(point.workload), stretch=stretch).requests for stretch in (True, False)]
    assert (runs[0].finish == runs[1].finish).all() and (runs[0].first_token == runs[1].first_token).all()
