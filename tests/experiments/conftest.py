"""A workload that runs quickly, and ways to write variations of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from fake_runner import FakeRunner

import experiments

WORKLOAD = """\
name: small
seed: 1
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
engine:
  preset: vllm
  scheduler: {max_num_seqs: 32}
traffic:
  max_tokens: exact
  synthetic:
    requests: 40
    arrivals: {process: poisson, rate: 8}
    input_tokens: 128
    output_tokens: 32
load: {mode: open}
slo: {ttft_ms: 500, tpot_ms: 50}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write(text="…", name="w.yaml")` puts a file into the test's folder."""

    def put(text: str = WORKLOAD, name: str = "w.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    return put


@pytest.fixture
def workload(write: Callable[..., Path]) -> Path:
    """The small workload as a file."""
    return write()


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    """A runner that runs nothing, in place of the real one."""
    fake = FakeRunner()
    module = ModuleType("experiments.runner")
    module.resolve, module.run = fake.resolve, fake.run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "experiments.runner", module)
    monkeypatch.setattr(experiments, "runner", module, raising=False)
    return fake
