"""The project's own gate: baselines that fit the examples, `.ci/run` that fails with it, an action that runs as written."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from experiments.workload_file import load_workload
from reports.baseline import DEFAULTS, SPEED, read_baseline

ROOT = Path(__file__).parents[1]
BASELINES = sorted((ROOT / "baselines").glob("*.json"))
WORKFLOW = ROOT / ".github" / "workflows" / "gate.yml"
ACTION = ROOT / ".github" / "actions" / "gate" / "action.yml"
CLOSING = "5 passed, 1 skipped in 1.23s"


def parsed(path: Path) -> dict:
    return YAML(typ="safe", pure=True).load(path.read_text("utf-8"))


@pytest.mark.parametrize("path", BASELINES, ids=[p.stem for p in BASELINES])
def test_a_baseline_is_of_an_example(path: Path) -> None:
    expected = read_baseline(path)
    workload = load_workload(ROOT / "workloads" / "examples" / f"{path.stem}.yaml", ["sweep=null"])
    assert set(expected.metrics) <= set(DEFAULTS)
    assert "output_throughput" in expected.metrics
    assert expected.reason
    assert expected.config["seed"] == workload.seed
    assert expected.config["model"] == workload.model
    assert all(0 <= e.tolerance <= 0.05 for name, e in expected.metrics.items() if name != SPEED)
    assert not any(str(value).startswith("/") for value in expected.config.values())


def test_every_simulated_example_has_one() -> None:
    examples = {p.stem for p in (ROOT / "workloads" / "examples").glob("*.yaml")}
    real = {name for name in examples if load_workload(ROOT / f"workloads/examples/{name}.yaml").backend.name != "sim"}
    held = {p.stem for p in BASELINES}
    assert held <= examples
    assert {"chat-h100", "poisson-10k", "agents-radix"} <= held
    assert not held & real
    assert any(SPEED in read_baseline(p).metrics for p in BASELINES)


def stub(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("tests", "gate", "bench", "status"),
    [(0, 0, True, 0), (0, 1, True, 1), (1, 0, True, 1), (1, 1, True, 1), (2, 0, False, 1), (0, 0, False, 1)],
)
def test_ci_fails_with_the_gate_and_ends_with_pytests_line(
    tmp_path: Path, tests: int, gate: int, bench: bool, status: int
) -> None:
    """`.ci/run` around a make that only says what it was told to do."""
    stub(tmp_path, "chromium", "exit 0")
    stub(
        tmp_path, "make",
        f"""
        for word in "$@"; do case "$word" in VENV=*) venv=${{word#VENV=}} ;; test|gate) target=$word ;; esac; done
        if [ "$target" = test ]; then
            {'mkdir -p "$venv/bin"; : >"$venv/bin/bench"; chmod +x "$venv/bin/bench"' if bench else ":"}
            echo '{CLOSING}'; exit {tests}
        fi
        echo "output of the gate, 3 failed in 9.99s"; exit {gate}
        """,
    )  # fmt: skip
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([ROOT / ".ci" / "run"], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.splitlines()[-1] == CLOSING
    assert (done.returncode != 0) == (status != 0)
    assert ("output of the gate" in done.stdout) == bench
    if not bench:
        assert "was not run" in done.stdout
    elif gate:
        assert "make gate-update" in done.stdout


def test_the_workflow_gates_every_baseline() -> None:
    job = parsed(WORKFLOW)["jobs"]["gate"]
    assert sorted(job["strategy"]["matrix"]["workload"]) == [p.stem for p in BASELINES]
    used = next(step for step in job["steps"] if step.get("uses") == "./.github/actions/gate")
    assert set(used["with"]) <= set(parsed(ACTION)["inputs"])


def test_the_action_runs_as_written(tmp_path: Path) -> None:
    """Its script, with the inputs that a workflow would give, hostile ones among them; `bench` only notes what it gets."""
    script = next(step for step in parsed(ACTION)["runs"]["steps"] if step.get("id") == "gate")["run"]
    stub(tmp_path, "bench", 'printf "%s\\n" "$@" >"$NOTES"; exit "$CODE"')
    bash = shutil.which("bash")
    for code, verdict in ((0, "passed"), (1, "failed"), (2, "refused")):
        environment = {
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "NOTES": str(tmp_path / "notes"), "CODE": str(code),
            "RUN": "runs/a b\nruns/$(touch hacked)\n", "BASELINE": "b.json", "ARGS": "--set\nload.concurrency=4\n",
            "JUNIT": "j.xml", "BENCHER": "b.json", "POINTS": "p.json", "GITHUB_STEP_SUMMARY": "s.md",
            "GITHUB_OUTPUT": str(tmp_path / f"out{code}"),
        }  # fmt: skip
        done = subprocess.run([bash, "-eo", "pipefail", "-c", script], env=environment, cwd=tmp_path, timeout=30)
        assert done.returncode == code
        assert (tmp_path / f"out{code}").read_text() == f"verdict={verdict}\n"
        given = (tmp_path / "notes").read_text().splitlines()
        assert given[:5] == ["gate", "runs/a b", "runs/$(touch hacked)", "--baseline", "b.json"]
        assert given[-2:] == ["--set", "load.concurrency=4"]
    assert not (tmp_path / "hacked").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_make_gate_looks_at_all_and_then_fails(tmp_path: Path) -> None:
    """With a `bench` that fails for one of them."""
    venv = tmp_path / "venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(sys.executable)
    (venv.parent / ".core-installed").touch()
    stub(venv, "bench", 'echo "held $2"; case "$2" in *poisson*) exit 1 ;; esac')
    for target in ("gate", "gate-update"):
        options = ["REASON=because"] if target == "gate-update" else []
        done = subprocess.run(
            ["make", "--no-print-directory", target, f"VENV={venv.parent}", *options], cwd=ROOT, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        assert done.returncode != 0
        if target == "gate":
            assert done.stdout.count("held ") == len(BASELINES)
    none = subprocess.run(
        ["make", "--no-print-directory", "gate-update", f"VENV={venv.parent}"], cwd=ROOT, capture_output=True, text=True
    )
    assert none.returncode != 0
    assert "say why" in none.stdout
