"""The guide to quantized weights: what the cost model says of batches, what was measured of quality."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import runner
from experiments.planner.bounds import steady_step
from experiments.planner.candidates import Candidate
from experiments.planner.quality import read_known
from experiments.planner.quantization import BATCHES, make_guide
from experiments.planner.question import Question
from experiments.planner.search import resolved
from reports.metrics import summarize
from workloads.errors import InputError

H100 = Candidate("h100-sxm", 1, 1, "vllm", "auto", "auto")


def measured(value: float) -> dict:
    return {"value": value, "low": value, "high": value}


def quality(path: Path) -> Path:
    row = {"mode": "awq", "weights": "awq-int4", "kv": "bf16", "ratio": measured(1.031), "divergence": measured(0.021),
           "agreement": measured(0.913)}  # fmt: skip
    kept = {**row, "kv": "fp8-e4m3", "ratio": measured(9.0)}
    path.write_text(
        json.dumps({"schema": 1, "model": "SmolLM2-135M", "text": {"name": "a novel"}, "rows": [kept, row]})
    )
    return path


def test_small_batches_want_few_bytes_and_large_ones_fast_products(question: Callable[..., Question]) -> None:
    decode = ["traffic.synthetic.input_tokens=16", "traffic.synthetic.output_tokens=400"]
    guide = make_guide(question(settings=decode), H100, 1024)
    speed = {choice.name: choice.speed for choice in guide.choices}
    assert max(speed, key=lambda name: speed[name][1]) == "awq-int4", "weight-only wins at batch 1"
    assert max(speed, key=lambda name: speed[name][256]) in ("fp8", "int8-w8a8"), "8-bit products win at batch 256"
    assert speed["bf16"] == dict.fromkeys(BATCHES, 1.0)
    assert speed["awq-int4"][1] > speed["awq-int4"][64] > speed["awq-int4"][256]
    assert guide.advice[0].startswith("batch") and "awq-int4 is fastest" in guide.advice[0]
    assert "nvfp4" not in speed, "no tensor cores for it"
    by_name = {choice.name: choice for choice in guide.choices}
    assert by_name["awq-int4"].kv_tokens > by_name["fp8"].kv_tokens > by_name["bf16"].kv_tokens
    assert by_name["bf16"].weight_bytes == pytest.approx(2 * by_name["fp8"].weight_bytes, rel=0.15)


def test_tight_memory(question: Callable[..., Question]) -> None:
    guide = make_guide(question(model="llama-3-70b"), H100, 2048)
    plain = guide.choices[0]
    assert "does not fit" in plain.problem and not plain.speed
    assert any("tight memory" in sentence and "does not fit" in sentence for sentence in guide.advice)
    assert any("bench quality" in sentence for sentence in guide.advice), "what is not known is said"


def test_measured_quality_stands_beside_the_modes(question: Callable[..., Question], tmp_path: Path) -> None:
    known = read_known(quality(tmp_path / "quality.json"))
    assert known == read_known(tmp_path), "the folder will do"
    guide = make_guide(question(), H100, 2048, known)
    by_name = {choice.name: choice.quality for choice in guide.choices}
    assert by_name["awq-int4"] == "perplexity +3.10%, KL 0.021, same token 91.3%"
    assert by_name["fp8"] == ""
    assert guide.advice[-1] == "quality was measured on SmolLM2-135M (a novel): others differ"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": 2, "rows": []}', '{"schema": 1, "rows": [{"kv": "bf16"}]}', "\0"]
)
def test_files_that_are_no_quality(text: str, tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"q\.json: .*bench quality MODEL"):
        read_known(path)
    with pytest.raises(InputError, match="no such file"):
        read_known(tmp_path / "no.json")


@pytest.mark.parametrize("preset", ["vllm", "sglang"])
def test_steps_are_as_long_as_simulated_ones(question: Callable[..., Question], preset: str) -> None:
    """With prompts beside decodes (vLLM) and in steps of their own (SGLang); so the guide ranks modes as runs do."""
    lengths = "traffic.synthetic.output_tokens={distribution: lognormal, mean: 200, std: 150, high: 900}"
    asked = question(
        slo="tpot=1s",
        settings=["load={mode: closed, concurrency: 64}", "traffic.synthetic.requests=800", lengths],
    )
    replica = replace(H100, preset=preset)
    guided = {choice.name: choice.speed[64] for choice in make_guide(asked, replica, 3072).choices}
    plain = 0.0
    for mode in ("auto", "int8-w8a8", "fp8"):
        engine = resolved(asked, replace(replica, quantization=mode), 3072)
        between = summarize(runner.run(engine), with_intervals=False)["mean_tpot_ms"] / 1e3
        assert steady_step(engine, 64, asked.demand()) == pytest.approx(between, rel=0.08), mode
        plain = plain or between
        assert guided.get(mode, 1.0) == pytest.approx(plain / between, rel=0.07), mode


def test_more_prompts_than_a_budget_takes(question: Callable[..., Question]) -> None:
    """A batch that starves its own prompts is not steady: no more requests are served than there is budget for."""
    long = ["traffic.synthetic.input_tokens=1500", "engine.scheduler.max_num_batched_tokens=512"]
    asked = question(slo="tpot=1s", settings=["load={mode: closed, concurrency: 128}", *long])
    engine = resolved(asked, H100, 2048)
    served = summarize(runner.run(engine), with_intervals=False)["request_throughput"]
    outputs = asked.demand().outputs
    rates = [rows / outputs / steady_step(engine, rows, asked.demand()) for rows in (8, 32, 128)]
    assert served < 1.15 * rates[2] and rates[2] < 1.25 * served
    assert rates[2] < 1.2 * rates[1], "a larger batch does not help"
