"""Every experiment runs small and gives sound results; those with a known answer give it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from experiments.claims import batching, kv_waste, memory_limits, plugin, scaling, sizing, speculation
from experiments.claims.base import FAILS, Result
from experiments.claims.registry import MODULES, find, notebook
from experiments.claims.simulate import simulate, workload_of
from sim.models import load_model
from workloads.errors import InputError


@cache
def small(name: str) -> Result:
    return find(name).run(small=True)


@pytest.mark.parametrize("name", MODULES)
def test_runs_and_tells_everything(name: str) -> None:
    result = small(name)
    assert (result.name, result.small) == (name, True) and result.title
    assert result.verdicts and result.tables and result.charts
    for verdict in result.verdicts:
        assert len(verdict.checks) >= 2 and verdict.claim and verdict.source and len(verdict.why) > 80
        assert all(check.part and check.claimed and check.ours for check in verdict.checks)
        assert "nan" not in verdict.why and "None" not in verdict.why
    for table in result.tables:
        assert table.rows and all(len(row) == len(table.columns) for row in table.rows)
    for chart in result.charts:
        assert chart.series and all(len(values) == len(chart.x) for values in chart.series.values())
    json.dumps(result.plain(), allow_nan=False)


def test_names_titles_and_notebooks_are_each_ones_own() -> None:
    found = [find(name) for name in MODULES]
    assert [each.NAME for each in found] == list(MODULES)
    assert len({each.TITLE for each in found}) == len({notebook(name) for name in MODULES}) == len(MODULES)
    with pytest.raises(InputError, match="did you mean batching"):
        find("baching")


def test_listing_them_loads_nothing_heavy() -> None:
    heavy = ("torch", "pandas", "matplotlib", "scipy", "transformers", "nbclient")
    code = "from experiments.claims.registry import MODULES, find; [find(n) for n in MODULES]; import sys; "
    code += f"print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_workloads_hold_together() -> None:
    for name in MODULES:
        if find(name).WORKLOAD:
            assert workload_of(find(name).WORKLOAD).name


def test_changes_are_as_strict_as_a_file() -> None:
    with pytest.raises(InputError, match="nonsense"):
        simulate(batching.WORKLOAD, {"engine.nonsense": 1})


def test_the_wrong_arithmetic_is_called_wrong() -> None:
    """2 × 80 layers × 64 heads × 128 × 2,048 tokens × 2 bytes; a 70B model in 16 bit has some 140 GB."""
    model = load_model("llama-2-70b")
    assert sizing.kv_bytes(model, 2048, kv_heads=64) == 5_368_709_120
    assert sizing.kv_bytes(model, 2048) == 671_088_640
    wrong = next(each for each in small("sizing").verdicts if "5.24" in each.claim)
    assert wrong.verdict == FAILS
    assert "5.37 GB (5.00 GiB)" in wrong.checks[0].ours and "0.67 GB" in wrong.checks[1].ours


def test_static_batching_loses_the_more_the_more_lengths_differ() -> None:
    found = batching.throughputs(60)
    gains = [vllm / static for static, vllm in zip(found["static"], found["vllm-v0"], strict=True)]
    assert gains[0] < 2 and gains[-1] > 3 and gains == sorted(gains)


def test_answers_are_drawn_again_above_the_limit() -> None:
    """The mean of an exponential law cut off at L: m − L / (e^(L/m) − 1)."""
    from workloads.synthetic import synthesize

    for limit in (32, 512):
        made = synthesize(
            {"requests": 20_000, "input_tokens": 1, "output_tokens": batching.answers(limit)}, 0
        ).output_tokens
        assert made.max() <= limit
        expected = batching.MEAN - limit / math.expm1(limit / batching.MEAN)
        assert made.mean() == pytest.approx(expected, rel=0.05)


def test_what_slabs_hold_adds_up_and_falls_with_their_length() -> None:
    run = simulate(kv_waste.WORKLOAD, {"traffic.synthetic.requests": 60})
    held = kv_waste.shares(run)
    assert sum(held.values()) == pytest.approx(1)
    asked = run.data.requests
    mean = float((asked.input_tokens + asked.output_tokens).mean())
    assert held["used"] + held["reserved"] == pytest.approx(mean / 2048, rel=0.5), "slabs are of 2,048 tokens"


def test_memory_runs_out_monotonically() -> None:
    left = [memory_limits.outcome("sglang", fraction)[1] for fraction in (0.85, 0.90, 0.95, 1.0)]
    assert left == sorted(left, reverse=True) and left[-1] < 0
    assert memory_limits.outcome(longest=131072)[0] == "too little KV"
    assert memory_limits.outcome(longest=4096)[0] == "runs"


def test_speculation_by_hand() -> None:
    """With nothing accepted a step gives one token and costs more than a plain one; with all accepted it gives five."""
    plain, check, draft = speculation._decode(False, 1), speculation._verify(1), speculation._decode(True, 1)
    cost = (check + speculation.DRAFTS * draft) / plain
    assert speculation.speedup(1, 0.0) == pytest.approx(1 / cost)
    assert speculation.speedup(1, 1 - 1e-9) == pytest.approx((speculation.DRAFTS + 1) / cost, rel=1e-6)


def test_a_signal_fires_when_it_has_held() -> None:
    import numpy as np

    time = np.arange(10.0, 110.0, scaling.WINDOW)
    fired = np.array([0, 1, 1, 0, 1, 1, 1, 0, 1, 1], bool)
    assert scaling.first_held(time, fired) == 70.0
    assert scaling.first_held(time, np.zeros(10, bool)) is None


def test_shortest_first_admits_the_shorter_prompt(tmp_path: Path) -> None:
    """One place, three prompts: the first to come runs, then the shortest."""
    text = """
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
engine: {scheduler: {max_num_seqs: 1}, depth: 1}
traffic: {trace: {path: three.jsonl}}
"""
    rows = ((0, 500), (0.1, 2000), (0.15, 100))
    three = tmp_path / "three.jsonl"
    three.write_text("".join(f'{{"arrival": {at}, "input_tokens": {n}, "output_tokens": 50}}\n' for at, n in rows))
    orders = {}
    for name, scheduler in plugin.SCHEDULERS.items():
        r = simulate(text, {"engine.scheduler.name": scheduler, "traffic.trace.path": str(three)}).data.requests
        orders[name] = r.admitted.argsort().tolist()
    assert orders["first come, first served"] == [0, 1, 2]
    assert orders["shortest prompt first"] == [0, 2, 1]
