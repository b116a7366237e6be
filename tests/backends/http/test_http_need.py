"""The package of the backend: named where it is not there, and not loaded where it is not wanted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from experiments import runner
from experiments.workload_file import load_workload
from workloads.errors import InputError

FILE = """
model: meta-llama/Meta-Llama-3-8B
backend: {name: http, base_url: "http://127.0.0.1:9"}
traffic: {synthetic: {requests: 2, input_tokens: 5, output_tokens: 2}}
"""


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.yaml").write_text(FILE, "utf-8")
    monkeypatch.setattr("backends.http.need.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"w\.yaml:3: backend\.name: backend http needs aiohttp.*twinserve\[http\]"):
        runner.resolve(load_workload(tmp_path / "w.yaml"))


def test_simulation_loads_nothing_of_it(tmp_path: Path) -> None:
    simulated = FILE.replace('name: http, base_url: "http://127.0.0.1:9"', "name: sim, gpu: l4")
    (tmp_path / "w.yaml").write_text(simulated, "utf-8")
    code = (
        "import sys; from experiments.api import run; run(sys.argv[1])\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('aiohttp', 'asyncio') or m.startswith('backends.http')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "w.yaml")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
