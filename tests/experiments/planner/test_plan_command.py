"""`bench plan` at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from experiments.cli import app

QUICK = ("--gpus", "h100", "--quantization", "none", "--max-gpus", "3", "--requests", "200", "--workers", "1")
SLO = ("--slo", "ttft_p95=300ms,tpot_p95=30ms")


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["plan", *(str(argument) for argument in arguments)])


def test_the_answer_says_what_it_costs_and_why(traffic: Path) -> None:
    done = bench("llama-3-8b", "--traffic", traffic, *SLO, *QUICK, "--price", "h100=2.5/h")
    assert done.exit_code == 0, done.output
    for words in ("x h100-sxm, bf16 weights, vllm  =  ", "/h, $", "a million output tokens", "TTFT p95: ", "allowed", "binds: ",
                  "80 %", "candidates, ", "simulations", "meets, verified"):  # fmt: skip
        assert words in done.stdout, words
    assert "Weights on" not in done.stdout, "the guide is for --quantization auto"
    assert max(map(len, done.stdout.splitlines())) < 400


def test_json_and_the_guide(traffic: Path) -> None:
    done = bench(
        "llama-3-8b", "--traffic", traffic, *SLO, *QUICK[:2], *QUICK[4:], "--json", "--set", "engine.parallel.tensor=1"
    )
    found = json.loads(done.stdout)
    assert found["best"]["meets"] and found["quantization"]["gpu"] == "h100-sxm"
    assert found["quantization"]["modes"][0]["name"] == "bf16"
    assert found["slo"] == {"ttft_p95": 300.0, "tpot_p95": 30.0}
    assert found["prices"]["h100-sxm"]["source"].startswith("list price")
    plain = found["best"]["quantization"] == "bf16"
    assert (found["weights_from"] is None) == plain


def test_a_manifest_alone_on_stdout_or_in_a_file(traffic: Path, tmp_path: Path) -> None:
    arguments = ("llama-3-8b", "--traffic", traffic, *SLO, *QUICK, "--emit", "kubernetes")
    done = bench(*arguments)
    workload, service, _claim = YAML(typ="safe").load_all(done.stdout)
    assert workload["kind"] == "Deployment" and service["kind"] == "Service" and "candidates" in done.stderr
    out = tmp_path / "deploy" / "x.yaml"
    written = bench(*arguments, "--out", out)
    assert out.read_text("utf-8") == done.stdout and "candidates" in written.stdout


def test_the_head_says_what_the_rate_was_counted_from_and_the_answer_where_weights_come_from(traffic: Path) -> None:
    done = bench(
        "llama-3-8b", "--traffic", traffic, *SLO, *QUICK[:2], *QUICK[4:], "--quantization", "fp8", "--rate", "30"
    )
    assert done.exit_code == 0, done.output
    head = next(line for line in done.stdout.splitlines() if line.startswith("traffic"))
    assert "30 requests/s (" in head and " requests in " in head and "/s before --rate)" in head
    assert "weights: vLLM makes fp8 of the 16-bit checkpoint while it loads" in done.stdout
    plain = bench("llama-3-8b", "--traffic", traffic, *SLO, *QUICK)
    tuned = bench("NousResearch/Meta-Llama-3-8B-Instruct", "--traffic", traffic, *SLO, *QUICK)
    assert "NousResearch/Meta-Llama-3-8B-Instruct (the shape of Llama-3-8B)\n" in tuned.stdout
    assert "model    Llama-3-8B\n" in plain.stdout
    assert "before --rate" not in plain.stdout and "weights: vLLM" not in plain.stdout


def test_nothing_found_ends_with_1(traffic: Path) -> None:
    done = bench("llama-3-8b", "--traffic", traffic, "--slo", "tpot_p95=1ms", *QUICK)
    assert done.exit_code == 1
    assert "Nothing meets the SLO." in done.stdout and "no number of GPUs will do" in done.stdout
    assert "--emit" not in done.stdout


def test_a_trace_and_the_slo_of_a_workload(traffic: Path) -> None:
    rows = bench(
        "llama-3-8b", "--traffic", "chat.jsonl.gz", *SLO, *QUICK[:4], "--max-gpus", "1", "--workers", "1", "--quiet"
    )
    assert rows.exit_code == 0 and rows.stdout == ""
    none = bench("llama-3-8b", "--traffic", traffic, *QUICK)
    assert none.exit_code == 2 and "--slo: the workload has no slo, and none is given" in none.stderr
    own = bench("llama-3-8b", "--traffic", traffic, *QUICK, "--set", "slo={ttft_ms: 300}", "--json")
    assert json.loads(own.stdout)["slo"] == {"ttft_p95": 300.0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["llama-9", "--traffic", "T", *SLO], "MODEL: unknown model 'llama-9' (did you mean"),
        (["llama-3-8b", "--traffic", "nix.yaml", *SLO], "nix.yaml: no such file"),
        (["llama-3-8b", "--traffic", "nix.csv", *SLO], "--traffic: no trace at nix.csv"),
        (["llama-3-8b", "--traffic", "", *SLO], "--traffic: expected a workload file or a trace, got nothing"),
        (["llama-3-8b", "--traffic", "T", "--slo", "ttft=5"], "--slo ttft: expected a unit after 5"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--gpus", "h1000"], "--gpus: unknown GPU 'h1000'"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--price", "h100=-1"], "--price: the price of h100 must be above 0"),
        (
            ["llama-3-8b", "--traffic", "T", *SLO, "--price", "h100=inf"],
            "above 0 and at most $1,000,000 an hour, got inf",
        ),
        (["llama-3-8b", "--traffic", "T", *SLO, "--price", "h100=1e300"], "at most $1,000,000 an hour, got 1e300"),
        (
            ["llama-3-8b", "--traffic", "T", *SLO, "--rate", "1e9"],
            "--rate: expected requests a second above 0 and at most 1,000,000",
        ),
        (["llama-3-8b", "--traffic", "T", *SLO, "--max-gpus", "0"], "--max-gpus: expected 1 to 4096 GPUs, got 0"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--rate", "nan"], "--rate: expected requests a second above 0"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--quantization", "fp9"], "--quantization: unknown quantization 'fp9'"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--quantization", "auto,fp8"], "auto chooses by itself"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--kv-dtype", "fp7"], "--kv-dtype: unknown KV dtype 'fp7'"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--engine", "tgi"], "--engine: unknown engine 'tgi'"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--emit", "helm"], "--emit: unknown target 'helm'"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--emit", "vllm", "--engine", "sglang"], "needs a plan for vllm alone"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--out", "x"], "--out is for what --emit makes"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--emit", "vllm", "--out", "."], "cannot write .: it is a folder"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--set", "backend.gpu=h100"], "a plan chooses backend itself"),
        (
            ["llama-3-8b", "--traffic", "T", *SLO, "--set", "backend={network: ib-hdr}"],
            "only link, network, gpus_per_node may be set",
        ),
        (["llama-3-8b", "--traffic", "T", *SLO, "--set", "backend.network=nix"], "backend.network: unknown"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--set", "engine.kv.blocksize=1"], "did you mean block_size"),
        (["llama-3-8b", "--traffic", "T", *SLO, "--quality", "nix.json"], "nix.json: no such file"),
    ],
)
def test_mistakes(arguments: list[str], says: str, traffic: Path) -> None:
    done = bench(*(str(traffic) if each == "T" else each for each in arguments))
    assert done.exit_code == 2
    assert says in done.stderr and done.stderr.count("\n") <= 2 and "Traceback" not in done.stderr


def test_the_traffic_is_not_written_over_and_no_name_is_empty(traffic: Path) -> None:
    before = traffic.read_bytes()
    done = bench("llama-3-8b", "--traffic", traffic, *SLO, *QUICK, "--emit", "vllm", "--out", traffic)
    assert done.exit_code == 2 and "is also --traffic" in done.stderr and traffic.read_bytes() == before
    for option in ("--gpus", "--engine", "--quantization", "--kv-dtype", "--price"):
        done = bench("llama-3-8b", "--traffic", traffic, *SLO, option, "")
        assert done.exit_code == 2 and f"{option}: has an empty name" in done.stderr, done.output
