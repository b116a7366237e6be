"""`twinserve`: what users import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import twinserve

ROOT = Path(__file__).parents[1]
WORKLOAD = """\
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
traffic: {synthetic: {requests: 8, arrivals: {process: poisson, rate: 8}, input_tokens: 64, output_tokens: 8}}
"""


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD)
    return path


def test_every_name_is_there_and_documented() -> None:
    for name in twinserve.__all__:
        assert (getattr(twinserve, name).__doc__ or "").strip(), name
    assert set(twinserve.__all__) <= set(dir(twinserve))
    assert twinserve.__version__.count(".") == 2


def test_the_names_for_readers_are_those_that_are_loaded() -> None:
    """What type checkers see under TYPE_CHECKING is what `__getattr__` gives."""
    tree = ast.parse((ROOT / "twinserve.py").read_text("utf-8"))
    seen = {
        name.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert seen == twinserve._HOMES
    assert sorted(seen) == sorted(twinserve.__all__)


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Schedular'"):
        twinserve.Schedular  # noqa: B018
    with pytest.raises(ImportError):
        from twinserve import Schedular  # noqa: F401


def test_importing_it_loads_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules); import twinserve; "
        "print(sorted(m for m in set(sys.modules) - before if m.split('.')[0] in "
        "('numpy', 'pydantic', 'simpy', 'sim', 'reports', 'experiments', 'workloads', 'backends')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_run_from_python(workload: Path, tmp_path: Path) -> None:
    data = twinserve.run(workload, ["traffic.synthetic.requests=5"], out=tmp_path / "out")
    assert isinstance(data, twinserve.RunData)
    summary = twinserve.summarize(data)
    assert summary["completed"] == 5
    assert twinserve.summarize(twinserve.read_run(tmp_path / "out")) == summary
    assert (tmp_path / "out" / "report.html").is_file()
    with pytest.raises(twinserve.OutputError, match="already holds a run"):
        twinserve.run(workload, out=tmp_path / "out")
    loaded = twinserve.load_workload(workload, ["traffic.synthetic.requests=5"])
    assert isinstance(loaded, twinserve.Workload)
    again = twinserve.summarize(twinserve.run(loaded))
    assert again.pop("interval") is None and summary.pop("interval")["level"] == 0.8, (
        "ranges are made for a folder only"
    )
    assert again == summary


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda w: twinserve.run(w, ["load.mod=open"]), twinserve.InputError, "did you mean mode"),
        (lambda w: twinserve.run(w, ["sweep.seed=[1, 2]"]), twinserve.InputError, "not a sweep"),
        (lambda w: twinserve.run(twinserve.load_workload(w), ["seed=1"]), TypeError, "overrides change a file"),
        (lambda w: twinserve.run(w.with_name("no.yaml")), twinserve.InputError, "no.yaml"),
    ],
)
def test_mistakes(call: Callable, error: type, says: str, workload: Path) -> None:
    with pytest.raises(error, match=says):
        call(workload)
