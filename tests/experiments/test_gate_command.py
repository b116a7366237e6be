"""`bench gate` around real simulated runs: what it catches, what it lets pass, what it refuses, what it writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fake_runner import FakeRunner
from typer.testing import CliRunner, Result

from experiments import runner as real_runner
from experiments.cli import app
from experiments.cli.gate_speed import speed_ratio
from experiments.workload_file import load_workload
from reports.export import write_vllm_result
from reports.run_folder import read_run
from sim.schedulers.chunked import ChunkedPrefill

CLOSED = """\
name: closed
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
engine: {preset: vllm, scheduler: {max_num_seqs: 64}}
traffic:
  max_tokens: exact
  synthetic:
    requests: 400
    arrivals: {process: poisson, rate: 100}
    input_tokens: 64
    output_tokens: 64
load: {mode: closed, concurrency: 80}
"""


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def closed(write: Callable[..., Path]) -> Path:
    return write(CLOSED)


@pytest.fixture
def base(closed: Path, tmp_path: Path) -> Path:
    file = tmp_path / "baselines" / "closed.json"
    assert bench("gate", closed, "--baseline", file, "--update", "--exact", "--reason", "first").exit_code == 0
    return file


def test_another_model_or_gpu_is_refused(closed: Path, base: Path, tmp_path: Path) -> None:
    """A smaller model passes every gate, and says nothing of what was changed."""
    assert bench("gate", closed, "--baseline", base, "--update", "--no-exact").exit_code == 0
    asked = ("gate", closed, "--baseline", base)
    for setting, says in (
        ("model=Qwen/Qwen2.5-0.5B", "model meta-llama/Meta-Llama-3-8B -> Qwen/Qwen2.5-0.5B"),
        ("backend.gpu=h200", "GPU h100-sxm -> h200"),
    ):
        refused = bench(*asked, "--set", setting)
        assert refused.exit_code == 2 and says in refused.stderr and "--other-target" in refused.stderr, setting
        out = tmp_path / setting.replace("/", "-")
        run = bench("run", closed, "--set", setting, "--out", out, "--quiet")
        assert run.exit_code == 0 and bench("gate", out, "--baseline", base).exit_code == 2, "finished runs too"
        done = bench(*asked, "--set", setting, "--other-target")
        assert done.exit_code in (0, 1) and "Settings differ" in done.stdout
    for same in ("model=meta-llama/Meta-Llama-3-8B-Instruct", "model=llama-3-8b", "backend.gpu=h100"):
        assert bench(*asked, "--set", same).exit_code == 0, same
    assert bench(*asked, "--set", "model=Qwen/Qwen2.5-0.5B", "--update").exit_code == 0, "an update may change it"


class Slower:
    """A cost model whose steps take a share longer; all else is as it was."""

    def __init__(self, cost: object, by: float) -> None:
        self._cost, self._by = cost, 1 + by

    def __getattr__(self, name: str) -> object:
        return getattr(self._cost, name)

    def step_seconds(self, shape: object) -> float:
        return self._cost.step_seconds(shape) * self._by

    def decode_line(self, rows: int, context: int) -> object:
        line = self._cost.decode_line(rows, context)
        return line._replace(intercept=line.intercept * self._by, slope=line.slope * self._by)


def slow_steps(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    resolve = real_runner.resolve

    def slower(*arguments: object) -> object:
        resolved = resolve(*arguments)
        return replace(resolved, cost=Slower(resolved.cost, by))

    monkeypatch.setattr(real_runner, "resolve", slower)


@pytest.mark.parametrize("load", ["closed", "open"])
def test_a_three_per_cent_slower_step_is_caught(
    closed: Path, tmp_path: Path, load: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a closed loop throughput falls; in an open one, which hands out what it is asked for, latencies rise."""
    over = ["--set", "load={mode: open}"] if load == "open" else []
    base = tmp_path / "base.json"
    assert bench("gate", closed, "--baseline", base, "--update", *over).exit_code == 0
    slow_steps(monkeypatch, 0.03)
    found = bench("gate", closed, "--baseline", base, "--json", *over)
    assert found.exit_code == 1, found.output
    failed = json.loads(found.stdout)["failed"]
    assert "mean_tpot_ms" in failed
    assert ("output_throughput" in failed) is (load == "closed")


def test_half_a_per_cent_is_tolerated(closed: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps(monkeypatch, 0.005)
    found = json.loads(bench("gate", closed, "--baseline", base, "--json").stdout)
    # The 99th percentile of ITL may lie on the edge between steps with prompts and without, where a little moves it far.
    assert {*found["failed"]} - {"p99_itl_ms"} == {"equality"}, "within every tolerance, but not the same run"


def test_a_scheduler_that_leaves_seats_empty_is_caught(
    closed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of 64 seats stay empty: 3 % of the batch, and as much of the throughput."""
    base, lengths = tmp_path / "base.json", "output_tokens={distribution: uniform, low: 32, high: 160}"
    over = [f"traffic.synthetic.{part}" for part in ("requests=1000", "input_tokens=16", lengths)]
    over = [part for text in over for part in ("--set", text)]
    assert bench("gate", closed, "--baseline", base, "--update", *over).exit_code == 0
    admit = ChunkedPrefill.admit
    monkeypatch.setattr(
        ChunkedPrefill, "admit", lambda self, step, seq: len(step.state.running) < 62 and admit(self, step, seq)
    )
    found = bench("gate", closed, "--baseline", base, "--json", *over)
    assert found.exit_code == 1
    told = json.loads(found.stdout)
    change = next(c["change"] for c in told["checks"] if c["metric"] == "output_throughput")
    assert -0.04 < change < -0.02
    assert "output_throughput" in told["failed"]


def test_a_hundred_unchanged_repeats_pass(closed: Path, base: Path) -> None:
    """To the last bit, a hundred times."""
    from reports.gate import gate

    resolved = real_runner.resolve(load_workload(closed, ["traffic.synthetic.requests=60"]))
    small = base.with_name("small.json")
    from reports.baseline import update_baseline

    update_baseline(real_runner.run(resolved), small, exact=True)
    assert all(gate(real_runner.run(resolved), small).passed for _ in range(100))
    assert bench("gate", closed, "--baseline", base).exit_code == 0


def test_other_traffic_is_refused_with_what_differs(closed: Path, base: Path, tmp_path: Path) -> None:
    xml = tmp_path / "gate.xml"
    over = ("--set", "traffic.synthetic.requests=300", "--set", "load.concurrency=40")
    done = bench("gate", closed, "--baseline", base, *over, "--github", "--junit", xml)
    assert done.exit_code == 2
    error, annotation = done.stderr.splitlines()[-1], done.stderr.splitlines()[0]
    assert "requests 400 and 300" in error
    assert "concurrency 80 and 40" in error
    assert "traffic.synthetic.requests 400 -> 300" in error
    assert annotation.startswith("::error file=")
    assert ElementTree.parse(xml).find("testsuite").get("errors") == "1"


def test_every_output_of_a_failure(closed: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps(monkeypatch, 0.1)
    xml, summary, points, metrics = (tmp_path / n for n in ("g/j.xml", "s.md", "p.json", "m.json"))
    summary.write_text("# before\n")
    done = bench(
        "gate", closed, "--baseline", base, "--github", "--junit", xml, "--summary", summary, "--benchmark-action", points,
        "--bencher", metrics,
    )  # fmt: skip
    assert done.exit_code == 1
    assert "Gate failed" in done.stdout
    assert done.stdout.count("::error file=") >= 3
    assert int(ElementTree.parse(xml).find("testsuite").get("failures")) >= 3
    assert summary.read_text("utf-8").startswith("# before\n### ❌ closed")
    assert json.loads((tmp_path / "p.bigger.json").read_text())[0]["unit"] == "tokens/s"
    assert json.loads((tmp_path / "p.smaller.json").read_text())
    measure = json.loads(metrics.read_text())["closed"]["output_throughput"]
    assert measure["lower_value"] < measure["value"] < measure["upper_value"], "a single run has its own interval"
    assert f"wrote {xml}" in done.stdout and f"wrote {summary}" in done.stdout


def test_json_stays_json_beside_annotations(closed: Path, base: Path) -> None:
    done = bench("gate", closed, "--baseline", base, "--github", "--json")
    assert json.loads(done.stdout)["passed"] is True
    assert "::notice " in done.stderr


def test_an_output_that_cannot_be_written_is_told(closed: Path, base: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = bench("gate", closed, "--baseline", base, "--junit", tmp_path / "file" / "x.xml")
    assert done.exit_code == 2
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_another_tool_measured(closed: Path, base: Path, tmp_path: Path) -> None:
    """The same traffic served elsewhere: a result file stands where a run folder could."""
    assert bench("run", closed, "--out", tmp_path / "out", "-q").exit_code == 0
    write_vllm_result(read_run(tmp_path / "out"), tmp_path / "v.json", detailed=True)
    measured = tmp_path / "measured.json"
    assert bench("gate", tmp_path / "v.json", "--baseline", measured, "--update").exit_code == 0
    for path in (tmp_path / "v.json", tmp_path / "out"):
        done = bench("gate", path, "--baseline", measured)
        assert done.exit_code == 0, done.output
    refused = bench("gate", tmp_path / "v.json", "--baseline", base)
    assert refused.exit_code == 0 or "not equal" in refused.stdout.lower()
    other = bench("gate", closed, "--baseline", measured, "--set", "traffic.synthetic.output_tokens=90")
    assert other.exit_code == 2
    assert "output tokens" in other.stderr


def test_repeats_are_for_wall_clock_backends(
    closed: Path, base: Path, runner: FakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = bench("gate", closed, "--baseline", tmp_path / "r.json", "--update", "--repeat", "3")
    assert done.exit_code == 2
    assert "same figures every time" in done.stderr
    monkeypatch.setattr("experiments.registries.WALL", ("sim",))  # as if it took real time
    monkeypatch.setattr(sys.modules["experiments.runner"], "resolve", lambda workload, *_: runner.resolve(workload))
    done = bench(
        "gate", closed, "--baseline", tmp_path / "r.json", "--update", "--repeat", "3", "--out", tmp_path / "out"
    )
    assert done.exit_code == 0, done.output
    assert len(runner.runs) == 3
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["run-1", "run-2", "run-3"]
    assert len(json.loads((tmp_path / "r.json").read_text())["metrics"]["completed"]["values"]) == 3
    runner.runs.clear()
    other = bench("gate", closed, "--baseline", base, "--repeat", "5", "--set", "load.concurrency=2")
    assert other.exit_code == 2
    assert len(runner.runs) == 1, "other traffic is noticed after the first run"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--reason", "x"), "--reason belongs to --update"),
        (("--exact",), "--exact belongs to --update"),
        (("--speed",), "has no simulator_speed_ratio"),
        (("--repeat", "0"), "--repeat"),
    ],
)
def test_options_that_do_not_fit(closed: Path, base: Path, options: tuple[str, ...], said: str) -> None:
    done = bench("gate", closed, "--baseline", base, *options)
    assert done.exit_code == 2
    assert said in done.stderr


def test_speed_is_held_where_the_baseline_has_it(closed: Path, tmp_path: Path) -> None:
    base, out = tmp_path / "b.json", tmp_path / "out"
    small = ("--set", "traffic.synthetic.requests=100")
    assert bench("gate", closed, "--baseline", base, "--update", "--speed", *small).exit_code == 0
    told = json.loads(bench("gate", closed, "--baseline", base, "--json", *small, "--out", out).stdout)
    check = next(c for c in told["checks"] if c["metric"] == "simulator_speed_ratio")
    assert check["after"] > 0
    assert check["tolerance"] == 0.6
    # a folder cannot tell how fast it was made, in this process
    folder = bench("gate", out, "--baseline", base)
    assert folder.exit_code == 0
    assert "Not looked at: simulator_speed_ratio" in folder.stdout
    assert "simulator_speed_ratio" not in bench("gate", closed, "--baseline", base, "--no-speed", "-q", *small).stdout


def test_the_ratio_halves_when_the_simulator_does_twice_the_work(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = real_runner.resolve(load_workload(closed, []))
    before = speed_ratio(resolved)
    once = real_runner.run

    def twice(*arguments: object) -> object:
        once(*arguments)
        once(*arguments)
        return once(*arguments)

    monkeypatch.setattr(real_runner, "run", twice)
    assert speed_ratio(resolved) < 0.7 * before


def test_an_update_says_what_moved(closed: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps(monkeypatch, 0.1)
    done = bench("gate", closed, "--baseline", base, "--update")
    assert done.exit_code == 0
    assert "mean_tpot_ms: " in done.stdout
    assert "no reason is kept" in done.stdout
    assert "mean_tpot_ms" in json.loads(base.read_text())["history"][-1]["changes"]


def test_an_interrupted_run_is_no_baseline(closed: Path, runner: FakeRunner, tmp_path: Path) -> None:
    runner.interrupt_at = 0
    done = bench("gate", closed, "--baseline", tmp_path / "b.json", "--update")
    assert done.exit_code == 130
    assert not (tmp_path / "b.json").exists()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"schema_version": 1}', "NaN", '{"schema_version": 1, "traffic": NaN}']
)
def test_a_baseline_that_is_none_is_told_before_anything_runs(
    closed: Path, runner: FakeRunner, tmp_path: Path, content: str
) -> None:
    (tmp_path / "b.json").write_text(content)
    for path in (tmp_path / "b.json", tmp_path):
        for update in ((), ("--update",)):
            done = bench("gate", closed, "--baseline", path, *update)
            assert done.exit_code == 2, done.output
            assert str(path) in done.stderr
            assert "Traceback" not in done.stderr
    assert runner.runs == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{w}", "--junit", "{b}"), "is also --baseline"),
        (("{w}", "--summary", "{w}"), "is also a run"),
        (("{w}", "--bencher", "{d}/x", "--junit", "{d}/y/../x"), "is also --junit"),
        (("{w}", "--bencher", "{d}/x.bigger.json", "--benchmark-action", "{d}/x.json"), "is also --bencher"),
        (("{w}", "{w}"), "named twice"),
        (("{d}/none", "{d}/./none/run.json"), "named twice"),
    ],
)
def test_paths_that_must_differ(closed: Path, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    base = tmp_path / "b.json"
    base.write_text("{}")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    names = {"{w}": str(closed), "{b}": str(base), "{d}": str(tmp_path)}
    for name, path in names.items():
        arguments = tuple(argument.replace(name, path) for argument in arguments)
    done = bench("gate", *arguments, "--baseline", base)
    assert done.exit_code == 2 and said in done.stderr, done.output
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
