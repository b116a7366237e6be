"""How long commands take from the prompt to the prompt: start-up is what people wait for most often."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = ["run", "workloads/examples/chat-h100.yaml", "--set", "traffic.trace.limit=100", "--overwrite", "-q"]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list", "gpus"], ["size", "llama-3-8b", "--gpu", "h100-sxm"], RUN],
    ids=["help", "list", "size", "run of 100 requests"],
)  # fmt: skip
def test_a_command(benchmark, arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from experiments.cli import main; main()", *arguments]
    if arguments is RUN:
        command += ["--out", str(tmp_path / "run")]

    def once() -> None:
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)

    benchmark.pedantic(once, rounds=3, warmup_rounds=1)
