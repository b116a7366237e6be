"""`bench experiment run --backend torch`: what changes in a workload, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from experiments.claims.base import Check, Result, Table, Verdict
from experiments.claims.registry import MODULES, find
from experiments.claims.simulate import simulate
from experiments.claims.target import MODELLED, Target, check_target, run_on
from experiments.cli import app
from experiments.workload_file import parse_override
from workloads.errors import InputError

MADE_UP = """
name: made up
model: facebook/opt-13b
backend: {name: sim, gpu: a100-40gb}
engine: {preset: vllm-v0}
traffic:
  max_tokens: exact
  synthetic: {requests: 12, arrivals: {process: at-once}, input_tokens: 24, output_tokens: 4}
load: {mode: open}
"""
FIXED = {"traffic.trace": None, "traffic.synthetic": {"requests": 3, "input_tokens": 8, "output_tokens": 3}}
TRACE = """
name: a trace
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
traffic:
  max_tokens: exact
  trace: {format: twinserve, path: chat.jsonl.gz, limit: 2000}
load: {mode: closed, concurrency: 4}
"""


def bench(*arguments: str) -> object:
    return CliRunner().invoke(app, ["experiment", "run", *arguments])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("torch", minversion="2.0")
    pytest.importorskip("transformers")
    from backends.weights.tiny import make_tiny

    return str(make_tiny("tiny-llama", tmp_path_factory.mktemp("models") / "tiny"))


def experiment(*runs: tuple[str, dict], keep: list | None = None) -> SimpleNamespace:
    """An experiment of some runs, whose `keep` gets them."""

    def run(small: bool = False) -> Result:
        found = [simulate(text, changes) for text, changes in runs]
        if keep is not None:
            keep.extend(found)
        check = Check("tokens", "> 0", "some", found[0]["output_throughput"] > 0)
        return Result("made-up", "Made up", (Table("t", ("a",), ((1,),)),), (), (Verdict("c", "s", (check,), "w"),))

    return SimpleNamespace(NAME="made-up", TITLE="Made up", WORKLOAD=MADE_UP, run=run)


def test_the_same_traffic_runs_with_the_memory_of_the_sources_gpu(model: str) -> None:
    kept: list = []
    result = run_on(
        Target("torch", model), experiment((MADE_UP, {"engine.scheduler.max_num_seqs": 5}), keep=kept), False
    )
    simulated = simulate(MADE_UP, {"engine.scheduler.max_num_seqs": 5})
    info = kept[0].data.info
    assert info["backend"] == "torch" and info["max_num_seqs"] == 5
    pool = simulated.data.info["kv_pool_tokens"]
    assert info["kv_pool_tokens"] == pytest.approx(pool, abs=2 * info["kv_block_tokens"])
    assert (kept[0].data.requests.output_tokens == simulated.data.requests.output_tokens).all()
    assert "ran on the real engine: " in result.ran_on and "backend torch" in result.ran_on
    assert "not served" not in result.ran_on
    assert simulate(MADE_UP, {}).data.info["backend"] == "sim", "the next one is simulated again"


def test_requests_settings_and_what_does_not_fit(model: str) -> None:
    kept: list = []
    settings = [parse_override("traffic.synthetic.output_tokens=2"), parse_override("traffic.trace.limit=60")]
    told: list[str] = []
    target = Target("torch", model, requests=8, settings=settings, tell=told.append)
    result = run_on(target, experiment((MADE_UP, {}), (TRACE, {}), (TRACE, FIXED), keep=kept), False)
    made, trace, fixed = (run.data.requests for run in kept)
    assert len(made) == 8 and set(made.output_tokens) == {2}
    assert len(trace) == 8 and len(fixed) == 3 and set(fixed.output_tokens) == {2}
    left = int((trace.status != "finished").sum())
    assert 0 < left < 8, "the trace has prompts that the small model's context cannot hold"
    assert f"{left} of 19 requests were not served" in result.ran_on and "at most 8 requests" in result.ran_on
    assert told == ["run 1: 8 requests", "run 2: 8 requests", "run 3: 3 requests"]


def test_too_little_is_told_and_not_judged(model: str) -> None:
    long = {"traffic.synthetic.input_tokens": 1500}
    with pytest.raises(InputError, match="no request of the experiment was served"):
        run_on(Target("torch", model), experiment((MADE_UP, long)), False)

    def run(small: bool = False) -> None:
        return simulate(MADE_UP)["p99_ttft_ms"]

    with pytest.raises(InputError, match="p99_ttft_ms takes 100 finished requests, and a run had 12"):
        run_on(Target("torch", model), SimpleNamespace(NAME="made-up", run=run), False)


def test_what_needs_a_gpu_kind_or_is_arithmetic_is_refused() -> None:
    assert MODELLED.keys() < MODULES.keys()
    for name in MODULES:
        if name in MODELLED:
            with pytest.raises(InputError, match=f"{name} cannot run on backend torch: "):
                check_target(Target("torch"), find(name))
        else:
            check_target(Target("torch"), find(name))
    done = bench("batching", "sizing", "--backend", "torch", "--model", "x")
    assert done.exit_code == 2 and "sizing cannot run on backend torch: it is arithmetic" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--backend", "trton"), "unknown backend 'trton' (did you mean triton?)"),
        (("--model", "x"), "--model: is for a real model"),
        (("--backend", "sim", "--requests", "5"), "--requests: is for a real model"),
        (("--set", "seed=1"), "--set: is for a real model"),
        (("--backend", "torch", "--set", "seed"), "expected key=value"),
        (("--backend", "torch", "--model", "./nowhere"), "nowhere"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], said: str) -> None:
    done = bench("batching", "--small", *arguments)
    assert done.exit_code == 2 and said in done.output and "Traceback" not in done.output, done.output
    assert len(done.output.strip().splitlines()) <= 2


def test_what_is_not_here_is_told_under_the_option(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
              "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 2048}  # fmt: skip
    (model / "config.json").write_text(json.dumps(config))
    done = bench("batching", "--small", "--backend", "triton", "--model", str(model))
    assert done.exit_code == 2 and "experiment.yaml" not in done.output, done.output
    assert done.output.startswith(("error: --backend: ", "error: --model: "))  # no torch, no GPU, or no weights
    done = bench(
        "batching", "--small", "--backend", "torch", "--model", str(model), "--set", "engine.kv.alocator=paged"
    )
    assert done.exit_code == 2 and done.output.startswith("error: --set: engine.kv.alocator: unknown key"), done.output


def test_the_command_says_where_it_ran(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.claims.batching.run", experiment((MADE_UP, {})).run)
    done = bench("batching", "--backend", "torch", "--model", model, "--requests", "4", "--json")
    assert done.exit_code == 0, done.output
    assert "on the real engine" in json.loads(done.stdout)[0]["ran_on"]
    done = bench("batching", "--backend", "torch", "--model", model, "--requests", "4")
    assert "ran on the real engine" in " ".join(done.stdout.split())
