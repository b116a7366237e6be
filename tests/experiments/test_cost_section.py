"""`cost:` in a workload file: every key has an effect, and what is wrong in it is told with its place."""

from pathlib import Path

import pytest

from experiments import runner
from experiments.workload_file import load_workload
from sim.cost.base import StepShape
from workloads.errors import InputError

BASE = """name: costs
model: {model}
backend: {{name: sim, gpu: h100-sxm}}
engine: {{preset: vllm, parallel: {{tensor: {tensor}}}}}
traffic: {{synthetic: {{requests: 3, input_tokens: 100, output_tokens: 20}}}}
load: {{mode: closed, concurrency: 2}}
"""
HEADER = "op,dtype,m,n,k,us\n"
ROWS = "gemm,bf16,1,6144,4096,500\ngemm,bf16,8192,6144,4096,900\n"
CALIBRATION = (
    '[host]\nexposed_ms = { "1" = 7.0 }\nschedule_ms = 0.0\nrow_us = 0.0\nkernel_launch_us = 1.0\nsource = "here"\n'
)


def resolved(folder: Path, cost: str = "", model: str = "meta-llama/Meta-Llama-3-8B", tensor: int = 1):
    path = folder / "w.yaml"
    path.write_text(BASE.format(model=model, tensor=tensor) + (f"cost: {cost}\n" if cost else ""))
    return runner.resolve(load_workload(path))


def seconds(folder: Path, cost: str = "", **others) -> float:
    return resolved(folder, cost, **others).cost.step_seconds(StepShape(8, 8000, sampled=8))


def test_tables_beside_the_file(tmp_path):
    (tmp_path / "mine.csv").write_text(HEADER + ROWS)
    assert seconds(tmp_path, "{tables: [mine.csv]}") > seconds(tmp_path) + 32 * 200e-6
    found = resolved(tmp_path, "{tables: [mine.csv]}")
    assert any("mine.csv" in entry["source"] for entry in found.cost.provenance)
    assert found.config["cost"]["tables"]["value"] == ["mine.csv"]


def test_a_calibration(tmp_path):
    (tmp_path / "mine.toml").write_text(CALIBRATION)
    assert seconds(tmp_path, "{calibration: mine.toml}") > seconds(tmp_path) + 5e-3


def test_a_cost_model_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "flat_costs.py").write_text(
        "class Flat:\n    front_end = None\n    notes = ()\n    def __init__(self, model, gpu, config): pass\n"
        "    def step_seconds(self, shape): return 0.5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert seconds(tmp_path, "{model: 'flat_costs:Flat'}") == 0.5


def test_skewed_routing_touches_fewer_experts(tmp_path):
    model = "Qwen/Qwen3-30B-A3B"
    assert seconds(tmp_path, "{routing_skew: 1.2}", model=model) < seconds(tmp_path, model=model)


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ("{tables: [none.csv]}", ["w.yaml:7", "cost.tables", "none.csv"]),
        ("{tables: []}", ["w.yaml:7", "cost.tables"]),
        ("{calibration: none.toml}", ["w.yaml:7", "cost.calibration", "none.toml"]),
        ("{model: analytik}", ["w.yaml:7", "cost.model", "analytic"]),
        ("{routing_skew: -1}", ["w.yaml:7", "cost.routing_skew"]),
        ("{table: x.csv}", ["w.yaml:7", "tables"]),
        ("{tables: [bad.csv]}", ["bad.csv:3", "column k"]),
        ("{tables: [a100.csv]}", ["a100.csv", "a100-sxm"]),
        ("{calibration: bad.toml}", ["bad.toml", "launch"]),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path, cost, words):
    (tmp_path / "bad.csv").write_text(HEADER + "gemm,bf16,1,6144,4096,500\ngemm,bf16,1,6144,many,500\n")
    (tmp_path / "a100.csv").write_text("gpu," + HEADER + "a100,gemm,bf16,1,6144,4096,500\n")
    (tmp_path / "bad.toml").write_text("[elementwise]\nlaunch = 1\n")
    with pytest.raises(InputError) as caught:
        resolved(tmp_path, cost)
    for word in words:
        assert word in str(caught.value), str(caught.value)
