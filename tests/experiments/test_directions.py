"""What the literature says must come out, with generous margins: which way a setting pushes, and about how far."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from simulate import CHAT, figures, run, workload

from experiments import runner
from reports.run_folder import write_run
from sim.cost.base import StepShape

CLOSED = {"load": {"mode": "closed", "concurrency": 64}}
LATENCIES = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")

# The PagedAttention paper's setting (arXiv 2309.06180, §6.2): OPT-13B on one A100 with 40 GB, lengths like ShareGPT's
# with its means of 161 tokens in and 338 out, under more load than fits.
OPT = {
    "model": "facebook/opt-13b",
    "backend.gpu": "a100-40gb",
    "traffic.max_tokens": "next_power_of_two",
    "traffic.synthetic.requests": 400,
    "traffic.synthetic.input_tokens": {"distribution": "lognormal", "mean": 161, "std": 200, "high": 1000},
    "traffic.synthetic.output_tokens": {"distribution": "lognormal", "mean": 338, "std": 300, "high": 1000},
    "load": {"mode": "closed", "concurrency": 200},
}
PREFIX = {"traffic.synthetic.prefix": {"kind": "system-prompts", "count": 4, "tokens": 1500}}
FIXED = {"traffic.synthetic.input_tokens": 512, "traffic.synthetic.output_tokens": 128, "traffic.max_tokens": "exact"}


def test_continuous_batching_beats_static_by_a_multiple() -> None:
    """Same GPU, allocator, batch limit and host; only who may join when differs. (Orca, OSDI '22; Anyscale's 23x is with
    paging and larger batches on top.)"""
    same = {**CLOSED, "engine.scheduler": {"max_num_seqs": 32}}
    static = figures({**same, "engine.preset": "static"})
    orca = figures({**same, "engine.preset": "orca"})
    assert 2 < orca["output_throughput"] / static["output_throughput"] < 23
    assert orca["median_ttft_ms"] < 0.2 * static["median_ttft_ms"]


def test_of_equal_lengths_static_batching_loses_little() -> None:
    """Its loss is padding and waiting for the longest: with one length and a full batch there is neither."""
    same = {
        "load": {"mode": "closed", "concurrency": 32}, "engine.scheduler": {"max_num_seqs": 32},
        "traffic.synthetic.requests": 320, **FIXED,
    }  # fmt: skip
    # Requests that are sent together come out of the front end one after another: a batch waits until it is full.
    static = figures({**same, "engine.preset": "static", "engine.scheduler.batch_wait": "200ms"})
    orca = figures({**same, "engine.preset": "orca"})
    assert 0.75 < static["output_throughput"] / orca["output_throughput"] < 1.1


def test_paging_admits_two_to_four_times_the_batch() -> None:
    """Figure 13 of the paper has mean batches of 7.0 (maximum), 9.8 (powers of two), 13.6 (oracle) and 30.4 (paged)."""
    slabs = {
        slab: figures({**OPT, "engine": {"preset": "orca", "kv": {"slab": slab}}})
        for slab in ("max-length", "power-of-two", "exact")
    }
    paged = figures({**OPT, "engine": {"preset": "vllm-v0"}})
    batch = {slab: found["mean_batch"] for slab, found in slabs.items()}
    assert batch["max-length"] < batch["power-of-two"] < batch["exact"] < paged["mean_batch"]
    assert 5.5 < batch["max-length"] < 8.5
    assert 2.5 < paged["mean_batch"] / batch["max-length"] < 5.5
    assert 2 < paged["mean_batch"] / batch["power-of-two"] < 4
    assert 1.5 < paged["output_throughput"] / slabs["power-of-two"]["output_throughput"] < 4


def test_slabs_waste_most_of_the_cache_and_pages_a_few_per_cent() -> None:
    """§2 of the paper: 20.4 to 38.2 % of what earlier systems reserve holds tokens; of pages, under 4 % is waste."""

    def use(engine: dict) -> tuple[float, float]:
        found = figures({**OPT, "engine": engine})
        wasted = sum(found[f"kv_{kind}_mean"] for kind in ("reserved", "internal", "external"))
        return found["kv_used_mean"], wasted

    used, wasted = use({"preset": "orca"})
    assert 0.1 < used < 0.4 and wasted > 0.6
    used, wasted = use({"preset": "vllm-v0"})
    assert used > 0.75 and wasted < 0.04


@pytest.mark.parametrize("preset", ["sglang", "vllm"])
def test_caching_prefixes_pays_where_they_are_shared_and_nowhere_else(preset: str) -> None:
    on = {**CLOSED, "engine": {"preset": preset, "kv": {"prefix_caching": True}}}
    off = {**CLOSED, "engine": {"preset": preset, "kv": {"prefix_caching": False}}}
    shared, computed = figures({**on, **PREFIX}), figures({**off, **PREFIX})
    assert shared["prefix_hit_rate"] > 0.6 and computed["prefix_hit_rate"] == 0
    assert shared["output_throughput"] > 1.2 * computed["output_throughput"]
    assert shared["p95_ttft_ms"] < 0.7 * computed["p95_ttft_ms"]
    alone, without = figures(on), figures(off)
    assert alone["prefix_hit_rate"] == 0
    assert [alone[key] for key in LATENCIES] == [without[key] for key in LATENCIES]


def test_a_radix_tree_and_hashed_blocks_find_nearly_the_same() -> None:
    """Blocks lose what does not fill a block: under 16 tokens of 1,500 each."""
    hits = [
        figures({**CLOSED, **PREFIX, "engine": {"preset": "vllm", "kv": {"allocator": kind}}})["prefix_hit_rate"]
        for kind in ("paged", "radix")
    ]
    assert hits[0] < hits[1] < hits[0] + 16 / 1500 + 0.005


def test_chunks_cut_the_longest_gaps_between_tokens() -> None:
    """Sarathi-Serve (OSDI '24): prefill-first stalls whoever decodes; a small budget of tokens bounds the stall."""
    long = {
        "traffic.synthetic.arrivals": {"process": "poisson", "rate": 6},
        "traffic.synthetic.input_tokens": {"distribution": "lognormal", "mean": 2000, "std": 2000, "high": 7000},
    }
    whole = figures({**long, "engine": {"preset": "vllm-v0"}})
    scheduler = {"max_num_batched_tokens": 512, "max_num_seqs": 256}
    chunked = figures({**long, "engine": {"preset": "vllm@0.8", "scheduler": scheduler}})
    assert chunked["p99_itl_ms"] < 0.4 * whole["p99_itl_ms"]
    assert chunked["p95_ttft_ms"] > whole["p95_ttft_ms"], "the price is a later first token"
    budgets = [
        figures({**long, "engine": {"preset": "vllm@0.8", "scheduler": {"max_num_batched_tokens": budget}}})[
            "p99_itl_ms"
        ]
        for budget in (1024, 2048, 8192)
    ]
    assert budgets == sorted(budgets)


def test_fp8_halves_the_traffic_of_weights_and_speeds_small_batches() -> None:
    """Llama-2-7B: 1.51x at batch 1 and 1.40x at batch 8 are claimed (NVIDIA)."""
    moved, speed = {}, {}
    for mode in ("bf16", "fp8"):
        costs = runner.resolve(workload({"engine.quantization": mode})).cost.explain(StepShape(1, 256, (), 1))
        layers = [cost for cost in costs if cost.name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")]
        assert len(layers) == 4
        moved[mode] = sum(cost.bytes for cost in layers)
        for batch in (1, 8):
            load = {"load": {"mode": "closed", "concurrency": batch}, "traffic.synthetic.requests": 60}
            speed[mode, batch] = figures({**load, "engine.quantization": mode})["median_tpot_ms"]
    assert moved["bf16"] / moved["fp8"] == pytest.approx(2, rel=0.01)
    gain = {batch: speed["bf16", batch] / speed["fp8", batch] for batch in (1, 8)}
    assert 1.3 < gain[1] < 2 and 1.25 < gain[8] <= gain[1]


def test_weights_and_cache_in_fp8_are_settings_of_their_own_whose_gains_add_up() -> None:
    long = {
        "load": {"mode": "closed", "concurrency": 32}, "traffic.synthetic.requests": 64,
        "traffic.synthetic.input_tokens": 6000, "traffic.synthetic.output_tokens": 100,
    }  # fmt: skip
    tpot = {
        (weights, cache): figures({**long, "engine": {"quantization": weights, "kv": {"dtype": cache}}})
        for weights in ("bf16", "fp8")
        for cache in ("bf16", "fp8")
    }
    best = tpot["fp8", "fp8"]["mean_tpot_ms"]
    assert best < tpot["fp8", "bf16"]["mean_tpot_ms"] < tpot["bf16", "bf16"]["mean_tpot_ms"]
    assert best < tpot["bf16", "fp8"]["mean_tpot_ms"] < tpot["bf16", "bf16"]["mean_tpot_ms"]


def test_past_the_knee_throughput_flattens_while_latency_climbs() -> None:
    def at(clients: int) -> dict:
        load = {"load": {"mode": "closed", "concurrency": clients}, "traffic.synthetic.requests": max(60, 4 * clients)}
        return figures(
            {**load, "traffic.synthetic.output_tokens": {"distribution": "uniform", "low": 100, "high": 200}}
        )

    found = {clients: at(clients) for clients in (1, 4, 16, 64, 256, 512)}
    rate = {clients: figure["output_throughput"] for clients, figure in found.items()}
    wait = {clients: figure["median_e2el_ms"] for clients, figure in found.items()}
    assert list(rate.values()) == sorted(rate.values()) and list(wait.values()) == sorted(wait.values())
    assert rate[4] > 3.2 * rate[1] and wait[4] < 1.3 * wait[1], "below the knee load is nearly free"
    assert rate[512] < 1.25 * rate[256] and wait[512] > 1.6 * wait[256], "beyond it, it only costs time"


@pytest.mark.parametrize("preset", ["vllm", "vllm-v0", "tensorrt-llm"])
def test_past_capacity_throughput_stays_and_the_queue_takes_the_rest(preset: str) -> None:
    """A simulator may not get better, or worse, once a queue has formed."""
    base = {**FIXED, "traffic.synthetic.requests": 8000, "engine.preset": preset}
    capacity = figures({**base, "load": {"mode": "closed", "concurrency": 1500}})["request_throughput"]
    for factor in (1.5, 2, 3):
        rate = factor * capacity
        r = run({**base, "traffic.synthetic.arrivals": {"process": "constant", "rate": rate}}).requests
        assert len(r) / (r.finish.max() - r.sent.min()) == pytest.approx(capacity, rel=0.03), factor
        # from when the first have finished to when the last have come, those in the system grow by the difference
        start, end = np.quantile(r.finish, 0.05), r.sent.max()
        inside = [(r.sent <= t).sum() - (r.finish <= t).sum() for t in (start, end)]
        assert inside[1] - inside[0] == pytest.approx((rate - capacity) * (end - start), rel=0.1), factor


def test_little_and_the_closed_loop_agree() -> None:
    """In a closed loop without pauses, clients = throughput × time in the system (Little's law)."""
    found = run({"load": {"mode": "closed", "concurrency": 16}, "traffic.synthetic.requests": 800})
    r = found.requests
    steady = (r.sent > np.quantile(r.sent, 0.1)) & (r.finish < np.quantile(r.finish, 0.9))
    rate = steady.sum() / (r.finish[steady].max() - r.finish[steady].min())
    assert rate * (r.finish - r.sent)[steady].mean() == pytest.approx(16, rel=0.05)


def test_the_speed_of_the_machine_does_not_leak_into_results(tmp_path: Path) -> None:
    """The predictor's own wall time once counted as simulated time elsewhere."""

    class Slow:
        def __init__(self, cost: object) -> None:
            self._cost = cost

        def __getattr__(self, name: str) -> object:
            return getattr(self._cost, name)

        def step_seconds(self, shape: StepShape) -> float:
            time.sleep(0.002)
            return self._cost.step_seconds(shape)

        def decode_line(self, rows: int, context: int) -> tuple:
            time.sleep(0.002)
            return self._cost.decode_line(rows, context)

    files = {}
    for name in ("quick", "slow"):
        resolved = runner.resolve(workload({"traffic.synthetic.requests": 30}))
        if name == "slow":
            resolved.cost = Slow(resolved.cost)
        out = write_run(runner.run(resolved), tmp_path / name, report=False)
        files[name] = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    assert len(files["quick"]) == 4 and files["quick"] == files["slow"]


def test_splitting_what_fits_on_one_gpu_gains_less_than_the_gpus_it_takes() -> None:
    tpot = {
        ways: figures({**CLOSED, "traffic.synthetic.requests": 100, "engine.parallel": {"tensor": ways}})
        for ways in (1, 2, 4)
    }
    rates = [tpot[ways]["output_throughput"] for ways in (1, 2, 4)]
    assert rates == sorted(rates), "each step is quicker"
    assert rates[1] < 2 * rates[0] and rates[2] < 4 * rates[0], "but not in proportion"


def test_the_base_workload_is_calm() -> None:
    """What the comparisons above start from finishes everything and waits for nothing."""
    calm = figures({"traffic.synthetic.arrivals": {"process": "poisson", "rate": 4}})
    assert calm["completed"] == CHAT["traffic"]["synthetic"]["requests"] and calm["mean_queue_ms"] < 20
