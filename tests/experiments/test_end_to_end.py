"""The command line with the real engine behind it."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from experiments.cli import app
from experiments.sweep import run_sweep
from experiments.workload_file import load_workload
from reports.run_folder import read_head, read_run

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("experiments.runner") is None, reason="there is no runner to run anything"
)


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_run_is_the_same_bytes_again(workload: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        done = bench("run", workload, "--out", tmp_path / name)
        assert done.exit_code == 0, done.output
    for file in ("requests.parquet", "tokens.parquet", "steps.parquet", "timeline.parquet"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    heads = [{k: v for k, v in read_head(tmp_path / name).items() if k != "host"} for name in ("a", "b")]
    assert heads[0] == heads[1]
    assert heads[0]["summary"]["completed"] == 40


def test_a_run_and_its_export_are_traces_that_give_the_same_run(workload: Path, tmp_path: Path) -> None:
    served = tmp_path / "served"
    assert bench("run", workload, "--out", served, "-q").exit_code == 0
    assert bench("report", served, "--export", "vllm-json", "--out", tmp_path / "v", "-q").exit_code == 0
    assert bench("trace", "convert", served, tmp_path / "t.jsonl", "-q").exit_code == 0
    expected = read_run(served).requests
    text = workload.read_text("utf-8")
    for number, trace in enumerate((served, served / "run.json", tmp_path / "v" / "vllm.json", tmp_path / "t.jsonl")):
        shown = bench("trace", "inspect", trace, "--json")
        assert json.loads(shown.stdout)["requests"] == 40, shown.output
        (tmp_path / "again.yaml").write_text(
            re.sub(r"  synthetic:\n(    .*\n)+", f"  trace: {{path: {trace}}}\n", text), "utf-8"
        )
        done = bench("run", tmp_path / "again.yaml", "--out", tmp_path / f"again{number}", "-q")
        assert done.exit_code == 0, done.output
        found = read_run(tmp_path / f"again{number}").requests
        np.testing.assert_allclose(found.first_token - found.sent, expected.first_token - expected.sent, rtol=1e-9)


@pytest.mark.parametrize("preset", ["vllm", "vllm@0.8", "sglang", "static"])
def test_stepping_and_stretching_are_the_same(preset: str, workload: Path, tmp_path: Path) -> None:
    """Every request and every token, to the bit. (Memory over time is noted at the end of plans, of which there are fewer.)"""
    options = ("-q", "--set", f"engine.preset={preset}")
    assert bench("run", workload, "--out", tmp_path / "a", *options).exit_code == 0
    assert bench("run", workload, "--out", tmp_path / "b", *options, "--step").exit_code == 0
    for file in ("requests.parquet", "tokens.parquet", "steps.parquet"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    plans = [read_head(tmp_path / name)["host"]["plans"] for name in ("a", "b")]
    assert plans[0] < plans[1], "it did stretch"
    found = [read_run(tmp_path / name).timeline for name in ("a", "b")]
    for column in ("running", "waiting", "output_tokens", "arrivals", "finished", "cached_tokens"):
        np.testing.assert_array_equal(getattr(found[0], column), getattr(found[1], column))


def test_commands_import_nothing_that_takes_seconds(workload: Path, tmp_path: Path) -> None:
    """Running, sweeping and reading back need neither pandas nor matplotlib nor torch, also not behind pyarrow."""
    code = f"""
import sys
from experiments.cli import app
def bench(*arguments):
    try: app(list(arguments))
    except SystemExit as end: assert not end.code, arguments
bench("run", {str(workload)!r}, "--out", {str(tmp_path / "run")!r}, "-q")
bench("report", {str(tmp_path / "run")!r}, "-q")
bench("sweep", {str(workload)!r}, "--out", {str(tmp_path / "sweep")!r}, "--over", "seed=[1, 2]", "--workers", "1", "-q")
print([name for name in ("pandas", "matplotlib", "torch", "scipy", "IPython") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_value_says_where_it_is_from(workload: Path) -> None:
    done = bench("explain", workload, "--json", "--set", "engine.kv.block_size=32")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    engine = found["config"]["engine"]
    assert engine["kv"]["block_size"] == {"value": 32, "source": "user"}
    assert engine["scheduler"]["max_num_seqs"] == {"value": 32, "source": "user"}
    assert engine["scheduler"]["gate"]["source"] == "preset"
    prefill, decode = found["steps"]
    assert prefill["shape"]["chunks"] and not prefill["shape"]["decode_rows"]
    assert decode["shape"]["decode_rows"] and not decode["shape"]["chunks"]
    for step in (prefill, decode):
        assert sum(operator["seconds"] for operator in step["operators"]) == pytest.approx(step["seconds"], rel=1e-6)
        assert all(operator["bound"] and operator["source"] for operator in step["operators"])
    assert bench("explain", workload).exit_code == 0


def test_explain_shows_the_step_that_is_asked_for(workload: Path) -> None:
    done = bench("explain", workload, "--json", "--prefill", "512", "--decode", "0")
    (step,) = json.loads(done.stdout)["steps"]
    assert step["shape"]["chunks"] == [[512, 0]]
    assert bench("explain", workload, "--decode", "0").exit_code == 2


@pytest.mark.slow
def test_points_run_at_once_are_those_run_one_by_one(workload: Path, tmp_path: Path) -> None:
    over = ["load={mode: closed, concurrency: 1}", "sweep.load.concurrency=[1, 2, 4]"]
    one = run_sweep(load_workload(workload, over), tmp_path / "one", workers=1)
    two = run_sweep(load_workload(workload, over), tmp_path / "two", workers=2)
    assert [p.summary for p in one.points] == [p.summary for p in two.points]
    assert [p.folder for p in one.points] == [p.folder for p in two.points]
    for point in one.points:
        pair = [(tmp_path / name / point.folder / "requests.parquet").read_bytes() for name in ("one", "two")]
        assert pair[0] == pair[1]


def test_the_gate_on_a_real_run(workload: Path, tmp_path: Path) -> None:
    base = tmp_path / "base.json"
    assert bench("gate", workload, "--baseline", base, "--update", "--reason", "first").exit_code == 0
    assert bench("gate", workload, "--baseline", base).exit_code == 0
    slower = ("gate", workload, "--baseline", base, "--set", "backend.gpu=l4")
    other = bench(*slower)
    assert other.exit_code == 2 and "--other-target" in other.stderr, other.output
    assert bench(*slower, "--other-target").exit_code == 1


def test_when_all_are_refused_the_exit_code_says_so(workload: Path, tmp_path: Path) -> None:
    done = bench("run", workload, "--out", tmp_path / "out", "--set", "engine.max_model_len=64")
    assert done.exit_code == 3 and "no request finished" in done.stderr


def test_a_model_that_does_not_fit_is_told_at_once(workload: Path, tmp_path: Path) -> None:
    done = bench("run", workload, "--out", tmp_path / "out", "--set", "model=llama-2-70b", "--gpu", "l4")
    assert done.exit_code == 2 and "does not fit" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_a_run_that_can_be_read(write: Callable[..., Path], tmp_path: Path, asked: signal.Signals) -> None:
    text = write().read_text().replace("requests: 40", "requests: 400000")
    command = [sys.executable, "-c", "from experiments.cli import main; main()", "run", str(write(text)), "--step"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline(), "the plan is printed before the run"
    time.sleep(1.5)
    process.send_signal(asked)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    data = read_run(tmp_path / "out")
    assert data.info["complete"] is False and len(data.requests) > 0


def test_the_schedulers_of_the_guide_run(write: Callable[..., Path], tmp_path: Path, monkeypatch) -> None:
    """The code in CONTRIBUTING.md is code that works."""
    guide = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for block in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", guide, re.DOTALL):
        write(block[1], f"{block[0]}.py")
    write("start,prompt,answer\n" + "".join(f"{i * 100},{50 + i},{5 + i}\n" for i in range(20)), "log.csv")
    monkeypatch.chdir(tmp_path)
    done = bench(
        "run", write(), "--out", tmp_path / "out", "--json",
        "--set", "engine.scheduler.name=my_schedulers:ShortPromptsFirst",
        "--set", "traffic={trace: {format: 'my_readers:read_ours', path: log.csv, unit: 0.001}}",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["summary"]["completed"] == 20


def test_traffic_that_was_written_down_gives_the_same_run(write: Callable[..., Path], tmp_path: Path) -> None:
    """Run, export, replay: prefixes, sessions, priorities and samples survive the trace format."""
    synthetic = (
        "{requests: 60, arrivals: {process: gamma, rate: 8, burstiness: 0.5}, input_tokens: {distribution: uniform, low: 20, "
        "high: 900}, output_tokens: {distribution: zipf, low: 1, high: 200, exponent: 1.1}, priority: {0: 1, 1: 1}, "
        "n: {1: 4, 2: 1}, prefix: {kind: system-prompts, count: 3, tokens: 300}, sessions: {turns: 3, think: 2s}}"
    )
    path = write()
    common = ["--set", "engine.scheduler.policy=priority", "-q"]
    made = ["--set", f"traffic.synthetic={synthetic}"]
    assert bench("run", path, "--out", tmp_path / "a", *common, *made).exit_code == 0
    done = bench("trace", "synth", path, tmp_path / "t.jsonl.gz", *made)
    assert done.exit_code == 0, done.output
    replayed = ["--set", "traffic={max_tokens: exact, trace: {path: t.jsonl.gz}}"]
    assert bench("run", path, "--out", tmp_path / "b", *common, *replayed).exit_code == 0
    for file in ("requests.parquet", "tokens.parquet", "steps.parquet", "timeline.parquet"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
