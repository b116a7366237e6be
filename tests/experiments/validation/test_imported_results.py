"""Results of guidellm, AIPerf and inference-perf held against the simulator."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "reports"))  # for files as other tools write them

import foreign_results as foreign

from experiments.validation.runs import read_path
from experiments.validation.validate import validate
from workloads.errors import InputError

DEPLOYMENT = {"gpu": "h100-sxm", "engine": "vllm", "model": "meta-llama/Meta-Llama-3-8B", "weight_dtype": "bf16"}
MADE = {
    "guidellm": foreign.guidellm,
    "aiperf": foreign.aiperf,
    "inference-perf": lambda known: foreign.inference_perf(known, requested_rate=2.0, achieved_rate=2.0),
}


@pytest.mark.parametrize("tool", MADE)
def test_reports_become_rows_and_are_simulated(tmp_path: Path, tool: str) -> None:
    known = foreign.Known()
    path = tmp_path / "result.json"
    path.write_text(json.dumps(MADE[tool](known) | DEPLOYMENT))
    rows = read_path(path)
    measured = {row.metric: row.value for row in rows}
    assert measured["ttft_ms_mean"] == pytest.approx(known.ttft.mean() * 1e3)
    assert measured["tpot_ms_mean"] == pytest.approx(known.tpot.mean() * 1e3)
    assert measured["output_tokens_per_s"] == pytest.approx(known.outputs.sum() / known.duration)
    found = validate(rows, jobs=1)
    assert found.points == 1
    assert all(cell.predicted for cell in found.cells if cell.row.metric.startswith(("ttft_ms_mean", "tpot")))


def test_the_deployment_must_be_told(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(foreign.guidellm(foreign.Known())))
    with pytest.raises(InputError, match="does not tell the GPU"):
        read_path(path)
