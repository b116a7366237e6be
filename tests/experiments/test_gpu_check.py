"""The script for a GPU, gone through on a CPU with a tiny model."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("transformers")

from experiments.gpu_check import _watched, main
from experiments.gpu_findings import Findings
from experiments.gpu_packed import predicted


@pytest.mark.slow
def test_a_dry_run_goes_through_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry-run", "--out", str(tmp_path)]) == 0, capsys.readouterr().out[-3000:]
    said = capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    sections = results["sections"]
    assert not results["left_out"]
    assert all(row["holds"] for row in sections["Kernels against plain torch"])
    assert len(sections["Kernels against plain torch"]) > 80
    assert [row["batch"] for row in sections["Decode steps"]] == [1, 2]
    assert [row["tokens"] for row in sections["Prefill"]] == [16, 64]
    served = [(row["engine"], row["requests at once"]) for row in sections["Serving"]]
    assert served == [
        ("ours, torch", 1),
        ("ours, torch", 2),
        ("transformers generate", 1),
        ("transformers generate", 2),
    ]
    for row in (*sections["Decode steps"], *sections["Prefill"], *sections["Serving"]):
        assert row["tokens/s"] > 0
    page = (tmp_path / "results.md").read_text("utf-8")
    assert {"card", "torch", "triton", "transformers", "date"} <= results["facts"].keys()
    assert "| batch | context |" in page and results["facts"]["card"] in page and "Decode steps: batch 1" in said
    assert (tmp_path / "run-2" / "report.html").is_file()
    assert {row["weights"] for row in sections["Packed layers"]} == {"fp32", "gptq-int4"}
    steps = sections["Decode steps of packed models"]
    assert [row["weights"] for row in steps] == ["fp32", "int8-w8a16", "fp32", "fp8-channel"]
    assert steps[0]["times unpacked"] == 1 and steps[3]["KV"] == "fp8-e4m3"
    assert not list(tmp_path.glob("phase-*")), "joined"


@pytest.mark.parametrize(("program", "code"), [
    ("import os; print('began', flush=True); os.abort()", -6), ("import time; print('began', flush=True); time.sleep(60)", None),
    ("print('began')", 0),
])  # fmt: skip
def test_a_phase_that_crashes_or_hangs_ends_and_what_it_said_is_passed_on(program, code, capfd) -> None:
    assert _watched([sys.executable, "-c", program], 3) == code
    assert "began" in capfd.readouterr().out


def test_a_phases_results_are_joined_and_missing_ones_are_named(tmp_path: Path) -> None:
    whole = Findings(tmp_path, {}, time.monotonic() + 30)
    part = Findings(tmp_path, {"card": "some card"}, time.monotonic() + 30, name="phase-speeds")
    part.add("Steps", {"batch": 1, "ms": float("nan")})
    part.miss("prefill of 8192: no time left")
    whole.take("phase-speeds")
    whole.take("phase-kernels")
    assert whole.wrong and whole.facts == {"card": "some card"} and not list(tmp_path.glob("phase-*"))
    assert whole.left_out == ["prefill of 8192: no time left", "phase-kernels: left no results that can be read"]
    assert "| 1 | – |" in (tmp_path / "results.md").read_text("utf-8")


def test_the_simulator_prices_a_packed_model_of_a_known_card(tmp_path: Path) -> None:
    from backends.weights.load import load_model
    from backends.weights.tiny import make_tiny

    model = load_model(make_tiny("tiny-llama", tmp_path / "m"))
    known = {
        mode: predicted(model, "NVIDIA H200", mode, "auto", 1, 100) for mode in ("auto", "gptq-int4", "fp8-channel")
    }
    assert all(0 < seconds < 0.01 for seconds in known.values()), known
    assert math.isnan(predicted(model, "Intel(R) Xeon(R) Processor", "auto", "auto", 1, 100))


def test_what_fails_or_finds_no_time_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    found = Findings(tmp_path, {"card": "none"}, time.monotonic() + 30)

    def breaks() -> None:
        raise RuntimeError("out of memory")

    found.part("first", breaks)
    found.part("second", lambda: found.add("Steps", {"batch": 1, "ms": 2.5, "other": float("nan")}))
    found.part("third", breaks, least=60)
    assert found.wrong
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert results["left_out"] == ["first: RuntimeError: out of memory", "third: no time left"]
    assert results["sections"] == {"Steps": [{"batch": 1, "ms": 2.5, "other": None}]}
    page = (tmp_path / "results.md").read_text("utf-8")
    assert "| 1 | 2.5 | – |" in page and "third: no time left" in page


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["--out", str(tmp_path / "out")]) == 2
    assert "no GPU" in capsys.readouterr().err and not (tmp_path / "out").exists()
