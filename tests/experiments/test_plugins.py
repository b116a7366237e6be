"""Schedulers, allocators and readers of a user's own, beside the workload file, wherever `bench` is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from experiments import runner
from experiments.cli import app
from experiments.sweep import run_sweep
from experiments.workload_file import load_workload
from reports.metrics import summarize
from reports.run_folder import read_run
from workloads.errors import InputError

SCHEDULER = '''\
from twinserve import Scheduler, Step


class ShortestPromptFirst(Scheduler):
    """Who decodes gets a token; then waiting prompts are admitted whole, the shortest first."""

    def plan(self, step: Step) -> None:
        step.decode()
        for seq in sorted(step.waiting, key=lambda seq: (seq.prompt_tokens, seq.tie)):
            if step.preempted or step.budget < 1 or not step.admit(seq, whole=True):
                break
'''
ALLOCATOR = '''\
from sim.kv import PagedAllocator


class Halved(PagedAllocator):
    """Paged, with half of the pool set aside."""

    def __init__(self, capacity, block_size, prefix_caching):
        super().__init__(capacity // 2, block_size, prefix_caching)
'''
USE = "engine.scheduler.name=my_sched:ShortestPromptFirst"
BURST = "traffic.synthetic={requests: 200, arrivals: {process: constant, rate: 2000}, input_tokens: {distribution: uniform, low: 10, high: 2000}, output_tokens: 20}"  # noqa: E501


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def plugged(write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workload in a folder with a scheduler, while the present folder is another one."""
    write(SCHEDULER, "mine/my_sched.py")
    path = write(name="mine/w.yaml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return path


def test_twenty_lines_are_enough() -> None:
    assert len([line for line in SCHEDULER.splitlines() if line.strip()]) <= 20


def test_a_scheduler_beside_the_workload(plugged: Path, tmp_path: Path) -> None:
    done = bench("run", plugged, "--out", tmp_path / "out", "--set", USE, "--set", BURST, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["summary"]["completed"] == 200
    own = read_run(tmp_path / "out").requests
    assert bench("run", plugged, "--out", tmp_path / "fcfs", "--set", BURST, "-q").exit_code == 0
    fcfs = read_run(tmp_path / "fcfs").requests
    # almost everything is there at once: the shorter half is served before the longer one
    half = own.input_tokens < 1000
    assert own.admitted[half].mean() < 0.5 * own.admitted[~half].mean()
    assert fcfs.admitted[half].mean() > 0.8 * fcfs.admitted[~half].mean()


def test_a_path_relative_to_the_present_folder(plugged: Path, tmp_path: Path) -> None:
    relative = os.path.relpath(plugged)
    assert bench("run", relative, "--out", tmp_path / "out", "--set", USE, "-q").exit_code == 0


def test_stepping_and_stretching_are_the_same(plugged: Path) -> None:
    resolved = runner.resolve(load_workload(plugged, [USE]))
    assert summarize(runner.run(resolved)) == summarize(runner.run(resolved, stretch=False))


@pytest.mark.slow
def test_workers_of_a_sweep_find_it_too(plugged: Path, tmp_path: Path) -> None:
    swept = load_workload(plugged, [BURST, f"sweep.{USE.replace('=', '=[chunked-prefill, ')}]"])
    result = run_sweep(swept, tmp_path / "out", workers=2)
    assert [point.status for point in result.points] == ["done", "done"], [point.error for point in result.points]
    assert result.points[0].summary["mean_ttft_ms"] != result.points[1].summary["mean_ttft_ms"]


def test_a_sweep_runs_again_what_a_changed_scheduler_made(plugged: Path, tmp_path: Path) -> None:
    swept = [USE, "sweep.seed=[1, 2]", "traffic.synthetic.requests=5"]
    out = tmp_path / "out"
    assert run_sweep(load_workload(plugged, swept), out).reused == 0
    assert run_sweep(load_workload(plugged, swept), out).reused == 2
    file = plugged.parent / "my_sched.py"
    file.write_text(SCHEDULER.replace("seq.prompt_tokens", "-seq.prompt_tokens"))
    os.utime(file, ns=(1, 1))
    assert run_sweep(load_workload(plugged, swept), out).reused == 0


def test_a_fresh_process_started_elsewhere(plugged: Path, tmp_path: Path) -> None:
    code = "from experiments.cli import main; main()"
    command = [sys.executable, "-c", code, "run", str(plugged), "--out", str(tmp_path / "out"), "--set", USE, "-q"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_allocator_beside_the_workload(plugged: Path, write: Callable[..., Path]) -> None:
    write(ALLOCATOR, "mine/my_kv.py")
    data = runner.run(runner.resolve(load_workload(plugged, ["engine.kv.allocator=my_kv:Halved"])))
    pool = data.timeline.kv_used + data.timeline.kv_free + data.timeline.kv_cached + data.timeline.kv_internal
    assert pool.max() <= data.info["kv_pool_tokens"] / 2
    assert (data.requests.status == "finished").all()


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("class X:\n    pass\n", "my_sched:X", "'my_sched:X' is not a scheduler (expected a class with a method plan"),
        ("x = 1\n", "my_sched:x", "is not a scheduler"),
        ("x = (\n", "my_sched:x", "SyntaxError"),
        (SCHEDULER, "my_sched:ShortestPromtFirst", "has no attribute 'ShortestPromtFirst'"),
        (SCHEDULER, "my_shed:ShortestPromptFirst", "No module named 'my_shed'"),
    ],
)
def test_what_cannot_be_used_is_told_at_its_key(
    text: str, name: str, says: str, plugged: Path, write: Callable[..., Path]
) -> None:
    write(text, "mine/my_sched.py")
    done = bench("run", plugged, "--set", f"engine.scheduler.name={name}")
    assert done.exit_code == 2 and done.stderr.startswith("error: --set: engine.scheduler.name: "), done.stderr
    assert says in done.stderr and "Traceback" not in done.output


def test_a_fault_inside_a_plugin_names_its_line(plugged: Path, write: Callable[..., Path], tmp_path: Path) -> None:
    write(SCHEDULER.replace("step.decode()", "step.decoed()"), "mine/my_sched.py")
    done = bench("run", plugged, "--set", USE, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "my_sched.py:8: in plan: AttributeError: 'Step' object has no attribute 'decoed'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_asking_for_what_no_step_can_do_is_the_plugins_fault(
    plugged: Path, write: Callable[..., Path], tmp_path: Path
) -> None:
    write(SCHEDULER.replace("step.decode()", "step.decode()\n        step.decode()"), "mine/my_sched.py")
    done = bench("run", plugged, "--set", USE, "--out", tmp_path / "out")
    assert done.exit_code == 2 and "planned the decoding sequences twice" in done.stderr


def test_a_scheduler_that_never_admits_is_told(plugged: Path, write: Callable[..., Path], tmp_path: Path) -> None:
    write(SCHEDULER.replace("step.budget < 1", "True"), "mine/my_sched.py")
    done = bench("run", plugged, "--set", USE, "--out", tmp_path / "out")
    assert done.exit_code == 3 and "never admitted although nothing runs" in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "from twinserve import Scheduler\nclass X(Scheduler):\n    pass\n",
            "scheduler 'my_sched:X' does not say what",
        ),
        ("from twinserve import Scheduler\nclass X(Scheduler):\n    plan = 1\n", "'my_sched:X' is not a scheduler"),
        ("class X:\n    def plan(self):\n        pass\n", "it takes (self), and is called with (self, step)"),
        (
            "class X:\n    def __init__(self, a, b):\n        pass\n    def plan(self, step):\n        pass\n",
            "scheduler 'my_sched:X' cannot be called: missing a required argument: 'b' (it takes (a, b), and is",
        ),
        ("class X:\n    def __init__(self):\n        pass\n    def plan(self, step):\n        pass\n", "too many pos"),
        ("raise SystemExit(3)\n", "cannot load scheduler 'my_sched:X': SystemExit: 3"),
    ],
)
def test_what_cannot_be_called_is_refused_when_it_is_loaded(
    text: str, says: str, plugged: Path, write: Callable[..., Path]
) -> None:
    write(text, "mine/my_sched.py")
    done = bench("run", plugged, "--set", "engine.scheduler.name=my_sched:X")
    assert done.exit_code == 2 and says in done.stderr, done.stderr
    assert done.stderr.startswith("error: --set: engine.scheduler.name: ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            ALLOCATOR.replace("(self, capacity,", "(self, size, capacity,"),
            "wants size, which nobody gives (it may take",
        ),
        (
            "from twinserve import KVAllocator\nclass Halved(KVAllocator):\n    def admit(self): ...\n",
            "lacks footprint,",
        ),
    ],
)
def test_an_allocator_that_cannot_be_used_is_refused(
    text: str, says: str, plugged: Path, write: Callable[..., Path]
) -> None:
    write(text, "mine/my_kv.py")
    done = bench("run", plugged, "--set", "engine.kv.allocator=my_kv:Halved")
    assert done.exit_code == 2 and says in done.stderr, done.stderr


@pytest.mark.parametrize("where", ["__init__(self, config)", "plan(self, step)"])
def test_a_plugin_that_ends_itself_is_named(where: str, plugged: Path, write: Callable[..., Path]) -> None:
    body = f"    def {where}:\n        raise SystemExit(3)\n"
    rest = "    def plan(self, step):\n        pass\n" if "init" in where else ""
    write(f"from twinserve import Scheduler\nclass X(Scheduler):\n{body}{rest}", "mine/my_sched.py")
    done = bench("run", plugged, "--set", "engine.scheduler.name=my_sched:X", "-q")
    assert done.exit_code == 2 and f"my_sched.py:4: in {where.partition('(')[0]}: SystemExit: 3" in done.stderr


@pytest.mark.slow
def test_a_fault_in_a_worker_of_a_sweep_names_its_line_too(
    plugged: Path, write: Callable[..., Path], tmp_path: Path
) -> None:
    write(SCHEDULER.replace("step.decode()", "raise SystemExit(3)"), "mine/my_sched.py")
    swept = load_workload(plugged, [f"sweep.{USE.replace('=', '=[chunked-prefill, ')}]"])
    result = run_sweep(swept, tmp_path / "out", workers=2)
    assert [point.status for point in result.points] == ["done", "failed"]
    assert "my_sched.py:8: in plan: SystemExit: 3" in result.points[1].error


GROWING = '''\
from twinserve import PrivateAllocator


class Growing(PrivateAllocator):
    """Slabs of 256 tokens that double."""

    def footprint(self, tokens: int) -> int:
        return max(256, 1 << (max(tokens, 1) - 1).bit_length())
'''


def test_an_allocator_of_a_few_lines_is_described_as_it_is(plugged: Path, write: Callable[..., Path]) -> None:
    write(GROWING, "mine/growing.py")
    resolved = runner.resolve(load_workload(plugged, ["engine.kv.allocator=growing:Growing"]))
    kv = resolved.config["engine"]["kv"]
    assert (kv["block_size"]["value"], kv["prefix_caching"]["value"]) == (1, False)
    assert any(
        "prefix_caching: true of the preset became false: growing:Growing shares no prefixes" in w
        for w in resolved.warnings
    )
    data = runner.run(resolved)
    assert (data.requests.status == "finished").all() and data.info["kv_block_tokens"] == 1
    assert data.timeline.kv_internal.max() > 0, "slabs are larger than what they hold"


@pytest.mark.parametrize(
    ("changed", "overrides", "says"),
    [
        (("footprint", "foot"), (), "does not say how much memory a sequence takes"),
        (("", ""), ("engine.kv.prefix_caching=true",), "shares no prefixes"),
        (("    def foot", "    shares = property(lambda self: self.nothing)\n\n    def foot"), (), "cannot be made"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_allocator(
    plugged: Path, write: Callable[..., Path], changed: tuple, overrides: tuple, says: str
) -> None:
    write(GROWING.replace(*changed) if changed[0] else GROWING, "mine/wrong_kv.py")
    sys.modules.pop("wrong_kv", None)
    with pytest.raises(InputError, match=says):
        runner.resolve(load_workload(plugged, ["engine.kv.allocator=wrong_kv:Growing", *overrides]))
