"""A sweep that is killed loses no finished point, leaves no worker behind, and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("workloads", "sim", "backends", "reports", "experiments")
POINTS, KILLS = 8, 3
PATIENCE = 240.0  # for what must come: never a measure of speed
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The code as it is now: a point counts as finished only for the code that ran it."""
    fleeting = shutil.ignore_patterns("*.pyc.*", "*.ipynb", ".*")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / "home" / package, ignore=fleeting)
    return tmp_path / "home"


def start(home: Path, workload: Path, out: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", "from experiments.cli import main; main()", "sweep", str(workload)]
    over = f"sweep.seed=[{', '.join(map(str, range(POINTS)))}]"
    return subprocess.Popen(
        [*command, "--set", over, "--out", str(out), "--workers", "2", "--quiet"], cwd=home,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(home)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(out: Path) -> dict[str, int]:
    """Finished points and the inode of each folder: another inode is another run."""
    return {path.parent.name: path.parent.stat().st_ino for path in out.glob("points/[0-9]*/run.json")}


def until(holds: Callable[[], bool], process: subprocess.Popen | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds() and (process is None or process.poll() is None):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def children(pid: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.add(int(stat.parent.name))
        except (OSError, IndexError):
            continue
    return found


def runs(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped by whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def content(out: Path) -> dict[str, bytes]:
    """Every reproducible byte of a sweep: all but the host's part of run.json, and pages, which show it."""
    files = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.name == "run.json":
            head = json.loads(path.read_text("utf-8"))
            del head["host"]
            files[name] = json.dumps(head).encode()
        elif path.is_file() and (path.name != "report.html" or path.parent == out):
            files[name] = path.read_bytes()
    return files


@pytest.mark.timeout(900)
def test_a_killed_sweep_goes_on(home: Path, workload: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert start(home, workload, whole).wait(PATIENCE) == 0
    draw = random.Random(5)
    there: dict[str, int] = {}
    for _ in range(KILLS):
        process = start(home, workload, broken)
        wanted, pause = len(there) + draw.randint(0, 2), draw.uniform(0, 0.4)
        until(lambda process=process, wanted=wanted: len(finished(broken)) >= wanted and children(process.pid), process)
        time.sleep(pause)
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda workers=workers: not any(map(runs, workers)))
        now = finished(broken)
        assert there.items() <= now.items(), "a finished point is not run again"
        there = now
    process = start(home, workload, broken)
    assert process.wait(PATIENCE) == 0, process.stderr.read()
    assert there.items() <= finished(broken).items()
    assert content(broken) == content(whole)
    assert not [path for path in broken.rglob(".*")], "nothing half-written is left"
