"""Runs the kernels' checks in Triton's interpreter, on the CPU: in a process apart, as it is on for a process's whole life.

The checks lie beside this file, as `check_*.py`. One of them alone: `python -m pytest .../check_sampling.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

HERE = Path(__file__).parent
CHECKS = sorted(HERE.glob("check_*.py"))
LEAST = 300
"""Checks there are at least: a run that found none of them would prove nothing."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kernels_in_the_interpreter() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-o",
        "addopts=-p no:cacheprovider",
        "--timeout=600",
        "-W",
        "ignore::RuntimeWarning",
    ]
    command += map(str, CHECKS)
    done = subprocess.run(command, cwd=HERE.parents[2], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    passed = int(re.search(r"(\d+) passed", done.stdout).group(1))
    assert passed >= LEAST, done.stdout[-1000:]
    assert "skipped" not in done.stdout, done.stdout[-1000:]
