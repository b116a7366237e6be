"""Questions that are answered quickly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.planner.question import Question, ask

TRAFFIC = """\
name: small
seed: 3
model: x
backend: {name: sim, gpu: h100-sxm}
traffic:
  max_tokens: exact
  synthetic:
    requests: 500
    arrivals: {process: poisson, rate: 60}
    input_tokens: {distribution: lognormal, mean: 400, std: 300, high: 2000}
    output_tokens: {distribution: lognormal, mean: 60, std: 40, high: 300}
"""


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    """A workload file with sixty requests a second; its model and GPU do not matter."""
    path = tmp_path / "traffic.yaml"
    path.write_text(TRAFFIC, "utf-8")
    return path


@pytest.fixture
def question(traffic: Path) -> Callable[..., Question]:
    """`question(slo="…", gpus=["l40s"], …)` about that traffic."""

    def make(**options: object) -> Question:
        defaults = {
            "slo": "ttft_p95=300ms,tpot_p95=30ms", "gpus": ["h100"], "quantizations": ["none"], "requests": 300,
        }  # fmt: skip
        options = defaults | options
        return ask(options.pop("model", "llama-3-8b"), str(traffic), **options)

    return make
