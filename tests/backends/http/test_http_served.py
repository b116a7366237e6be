"""The same workload simulated in virtual time, and served by `bench serve` to the client: the two must agree."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("uvicorn")

from experiments import api
from reports.metrics import summarize
from reports.run_folder import read_run

pytestmark = pytest.mark.slow
BENCH = [sys.executable, "-c", "from experiments.cli import main; main()"]
WORKLOAD = """
name: served
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: l4}          # slow steps: what the client and a busy machine add is little beside them
engine: {preset: vllm, max_model_len: 4096, kv: {capacity_tokens: 40000}}
traffic:
  synthetic:
    requests: 30
    arrivals: {process: poisson, rate: 10}
    input_tokens: {distribution: uniform, low: 20, high: 200}
    output_tokens: {distribution: uniform, low: 4, high: 24}
    prefix: {kind: system-prompts, count: 1, tokens: 64}
slo: {ttft_ms: 2000, tpot_ms: 200}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("served")
    (made / "w.yaml").write_text(WORKLOAD, "utf-8")
    return made


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """`bench serve` on a free port."""
    command = [*BENCH, "serve", str(folder / "w.yaml"), "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as served:
        for line in served.stdout:
            if found := re.search(r"http://[\w.]+:\d+", line):
                break
        else:
            pytest.fail("bench serve ended")
        try:
            yield found.group(0)
        finally:
            served.send_signal(signal.SIGINT)
            served.communicate(timeout=60)


def bench(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([*BENCH, *arguments], capture_output=True, text=True, timeout=200)


def test_a_served_run_agrees_with_the_simulation(folder: Path, address: str) -> None:
    simulated = api.run(folder / "w.yaml", out=folder / "sim")
    same = ["--set", "backend.fresh_prompts=false"]  # of four bytes a token words are more or fewer by chance
    done = bench("run", str(folder / "w.yaml"), "--base-url", address, "--out", str(folder / "http"), *same)
    assert done.returncode == 0, done.stderr
    served = read_run(folder / "http")
    a, b = simulated.requests, served.requests
    assert set(b.status) == {"finished"} and (a.output_tokens == b.output_tokens).all()
    assert np.abs(served.client.counted_input - b.input_tokens).max() <= 0.2 * b.input_tokens.max()
    assert abs(int(served.client.counted_input.sum()) / int(b.input_tokens.sum()) - 1) < 0.02
    first, second = (summarize(run, with_intervals=False) for run in (simulated, served))
    for key in ("median_tpot_ms", "median_e2el_ms", "output_throughput"):  # a busy machine spoils a few requests, not most
        assert second[key] == pytest.approx(first[key], rel=0.4), key
    assert served.host["client"]["server_counters"]["generation_tokens"] == int(b.output_tokens.sum())
    assert served.info["kv_pool_tokens"] == simulated.info["kv_pool_tokens"]
    shared = served.host["client"]["server_counters"]["prefix_hits"]
    assert 0 < shared <= 64 * 29


def test_the_runs_can_be_compared_and_gated(folder: Path, address: str) -> None:
    compared = bench("compare", str(folder / "sim"), str(folder / "http"), "--json")
    assert compared.returncode == 0, compared.stderr
    assert "backend.base_url" in json.loads(compared.stdout)["settings"]
    gate = ["gate", str(folder / "http"), "--baseline", str(folder / "base.json")]
    assert bench(*gate, "--update", "--reason", "first").returncode == 0
    assert bench(*gate).returncode == 0


def test_a_sweep_of_the_load(folder: Path, address: str) -> None:
    settings = [f"backend.base_url={address}", "backend.name=http", "load.mode=closed", "traffic.synthetic.requests=4"]
    options = [part for each in settings for part in ("--set", each)]
    done = bench(
        "sweep",
        str(folder / "w.yaml"),
        *options,
        "--over",
        "load.concurrency=1,4",
        "--out",
        str(folder / "sweep"),
        "--json",
    )
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)["points"]
    assert [point["summary"]["completed"] for point in points] == [4, 4]


def test_nobody_there_and_no_address(folder: Path) -> None:
    done = bench(
        "run",
        str(folder / "w.yaml"),
        "--backend",
        "http",
        "--base-url",
        "http://127.0.0.1:9",
        "--out",
        str(folder / "no"),
    )
    assert done.returncode == 3 and "cannot reach http://127.0.0.1:9" in done.stderr and not (folder / "no").exists()
    done = bench("run", str(folder / "w.yaml"), "--backend", "http")
    assert done.returncode == 2 and "where is the server?" in done.stderr
