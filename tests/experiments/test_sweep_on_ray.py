"""Points on a Ray cluster: the same sweep as in processes here. Ray is an extra, and no part of what tests install."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.sweep import run_sweep
from experiments.workload_file import load_workload
from workloads.errors import InputError, TargetError

HAVE = find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAVE, reason="Ray is an extra")
SWEEP = ["load={mode: closed, concurrency: 1}", "sweep.load.concurrency=[1, 2, 4]"]


def heads(out: Path) -> list[dict]:
    found = [json.loads(path.read_text("utf-8")) for path in sorted(out.glob("points/*/run.json"))]
    for head in found:
        del head["host"]
    return found


@needs_ray
@pytest.mark.slow
def test_a_local_cluster_gives_the_same(workload: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    assert run_sweep(load_workload(workload, SWEEP), here).complete
    result = run_sweep(load_workload(workload, SWEEP), there, ray="local", workers=2)
    assert result.complete and [point.status for point in result.points] == ["done"] * 3
    for name in ("sweep.json", "points.parquet", "points/001/requests.parquet"):
        assert (here / name).read_bytes() == (there / name).read_bytes(), name
    assert heads(here) == heads(there)
    assert not list(there.rglob(".*"))
    assert run_sweep(load_workload(workload, SWEEP), there, ray="local", workers=2).reused == 3


def test_a_cluster_that_is_not_there(workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not HAVE:
        ray = ModuleType("ray")
        ray.exceptions, ray.is_initialized = ModuleType("ray.exceptions"), lambda: False
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray.exceptions", ray.exceptions)
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        with pytest.raises(TargetError, match=f"no Ray cluster at '{address}'"):
            run_sweep(load_workload(workload, SWEEP), tmp_path / "out", ray=address)
    for address in ("", "nowhere", "host:x", "host:99999"):
        with pytest.raises(InputError, match="is no address of a cluster"):
            run_sweep(load_workload(workload, SWEEP), tmp_path / "out", ray=address)


def test_what_cannot_go_to_a_cluster(workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="points on a cluster would disturb each other on backend torch"):
        run_sweep(load_workload(workload, [*SWEEP, "backend={name: torch}"]), tmp_path / "out", ray="local")
    monkeypatch.setitem(sys.modules, "ray", None)
    over = ["--over", "seed=1,2", "--ray", "local", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["sweep", str(workload), *over])
    assert done.exit_code == 2
    assert "--ray needs Ray, which is not installed (pip install 'twinserve[ray]', or leave --ray out)" in done.stderr
