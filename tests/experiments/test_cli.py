"""The command line itself: help, start-up, exit codes, pipes, lists, and the small commands."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_runner import FakeRunner
from typer.testing import CliRunner, Result

from experiments.cli import app
from experiments.cli.commands import COMMANDS, application
from experiments.cli.doctor import USES, _satisfies, install, parts
from experiments.cli.lists import KINDS, LISTS
from experiments.cli.progress import Progress
from experiments.workload_file import load_workload

ROOT = Path(__file__).parents[2]
MAIN = [sys.executable, "-c", "from experiments.cli import main; main()"]


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def process(*arguments: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MAIN, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        **options,
    )


@pytest.mark.parametrize(
    "command",
    [
        "",
        "run",
        "sweep",
        "compare",
        "gate",
        "report",
        "explain",
        "size",
        "list",
        "init",
        "doctor",
        "trace",
        "trace inspect",
        "trace convert",
        "trace synth",
    ],
)
def test_help_teaches_by_example(command: str) -> None:
    done = bench(*command.split(), "--help")
    assert done.exit_code == 0
    assert command == "trace" or f"bench {command}".strip() in done.stdout.partition("\n")[2]
    assert all(len(line) <= 120 for line in done.stdout.splitlines())
    assert "..." not in bench("--help").stdout.replace("[ARGS]...", "")


def test_help_starts_about_as_fast_as_python_and_typer() -> None:
    """A ratio and not a time: a loaded machine slows both alike."""
    own, typer = [], []
    for _ in range(3):
        start = time.perf_counter()
        assert process("--help").returncode == 0
        own.append(time.perf_counter() - start)
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import typer.main"], check=True)
        typer.append(time.perf_counter() - start)
    assert min(own) < 3 * min(typer)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["list", "backends", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom experiments.cli import app\n"
        f"try: app({arguments!r})\nexcept SystemExit: pass\n"
        "heavy = ('numpy', 'pandas', 'pyarrow', 'rich', 'ruamel', 'torch', 'sim', 'reports')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_command_line_builds_the_one_command_that_it_names() -> None:
    def built(*line: str) -> int:
        made = application(line)
        return len(made.registered_commands) + len(made.registered_groups)

    assert built("run", "x.yaml") == built("--debug", "trace", "synth") == 1
    assert built() == built("--help") == built("--help", "run") == built("rnu") == len(COMMANDS)


def test_version() -> None:
    assert bench("--version").stdout.startswith("twinserve ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rnu"], "Did you mean 'run'?"),
        (["run"], "Missing argument"),
        (["run", "a", "b"], "unexpected extra argument"),
        (["run", "w.yaml", "--quite"], "--quiet"),
        (["list", "gpuz"], "gpus"),
        (["size", "x"], "--gpu"),
        (["sweep", "w.yaml", "--workers", "0"], "--workers"),
    ],
)
def test_usage_errors_exit_2_and_help(arguments: list[str], says: str) -> None:
    done = bench(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_everything_can_be_listed(kind: str) -> None:
    rows = json.loads(bench("list", kind, "--json").stdout)
    assert rows and all(row["name"] for row in rows)
    assert len({tuple(row) for row in rows}) == 1, "all rows have the same columns"
    shown = bench("list", kind).stdout
    assert all(row["name"] in shown for row in rows)


def test_kinds_in_the_singular_and_misspelt() -> None:
    assert tuple(LISTS) == KINDS
    assert bench("list", "gpu").stdout == bench("list", "gpus").stdout
    done = bench("list", "policy")
    assert done.exit_code == 2 and "unknown kind 'policy' (did you mean policies?)" in done.stderr


def test_lists_name_what_a_workload_accepts(write: Callable[..., Path]) -> None:
    path = write()
    for kind, key in (
        ("schedulers", "engine.scheduler.name"),
        ("gates", "engine.scheduler.gate"),
        ("policies", "engine.scheduler.policy"),
        ("victims", "engine.scheduler.victim"),
        ("allocators", "engine.kv.allocator"),
        ("presets", "engine.preset"),
        ("gpus", "backend.gpu"),
        ("models", "model"),
    ):
        names = [row["name"] for row in json.loads(bench("list", kind, "--json").stdout)]
        load_workload(path, [f"sweep={{{key}: {json.dumps(names)}}}"])


def test_init_writes_a_file_that_loads_and_never_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = bench("init")
    assert done.exit_code == 0 and "bench run workload.yaml" in done.stdout
    found = load_workload(tmp_path / "workload.yaml")
    assert found.name == "chat on one H100" and found.traffic.synthetic is not None
    (tmp_path / "workload.yaml").write_text("mine")
    again = bench("init")
    assert again.exit_code == 2 and "exists already" in again.stderr
    assert (tmp_path / "workload.yaml").read_text() == "mine"
    assert bench("init", "sub/other.yaml", "-q").output == ""
    assert (tmp_path / "sub" / "other.yaml").is_file()
    assert bench("init", "workload.yaml/x").exit_code == 2


def test_the_comments_of_the_template_are_valid_too(tmp_path: Path) -> None:
    """Uncommenting a suggestion must give a valid file."""
    template = (ROOT / "experiments" / "cli" / "template.yaml").read_text("utf-8")
    lines = []
    for line in template.splitlines():
        body = line.lstrip().removeprefix("# ")
        hidden = line.lstrip().startswith("# ") and (": " in body or body.endswith(":")) and "trace" not in body
        skip = any(
            word in body
            for word in (
                "path:",
                "format:",
                "duration:",
                "rate_scale:",
                "A recorded",
                "With a sweep",
                "Every key",
            )
        )
        lines.append(line.replace("# ", "", 1) if hidden and not skip and not line.startswith("# A workload") else line)
    (tmp_path / "w.yaml").write_text("\n".join(lines), "utf-8")
    found = load_workload(tmp_path / "w.yaml")
    assert found.engine.scheduler.name == "chunked-prefill" and found.engine.kv.dtype == "fp8" and found.sweep


@pytest.mark.parametrize("name", ["traffic.png", "traffic.svg"])
def test_a_trace_can_be_drawn(name: str, tmp_path: Path) -> None:
    done = bench("trace", "inspect", "chat.jsonl.gz", "--limit", "300", "--figure", tmp_path / name)
    assert done.exit_code == 0, done.output
    assert (tmp_path / name).stat().st_size > 5_000
    refused = bench("trace", "inspect", "chat.jsonl.gz", "--limit", "300", "--figure", tmp_path / "traffic.gif")
    assert refused.exit_code == 2 and ".svg" in refused.stderr


@pytest.mark.parametrize(("memory", "at_4k", "at_32k"), [("40GiB", 80, 10), ("40GB", 74, 9)])
def test_size_of_a_given_kv_memory_is_the_rule_of_thumb(memory: str, at_4k: int, at_32k: int) -> None:
    what = ("llama-3.1-8b", "--gpu", "a100-sxm", "--quantization", "fp16", "--tensor", "1")
    done = bench("size", *what, "--kv-memory", memory, "--context", "4096", "--context", "32768", "--json")
    assert json.loads(done.stdout)[0]["requests"] == {"4096": at_4k, "32768": at_32k}


def test_size_takes_what_engines_are_started_with() -> None:
    """A Qwen3-8B on an H100 as vLLM 0.30 printed it: 377,024 tokens (silybench-data); fewer seats leave less to sample for."""
    what = (
        "size",
        "qwen3-8b",
        "--gpu",
        "h100",
        "--memory-utilization",
        "0.9",
        "--tensor",
        "1",
        "--quantization",
        "auto",
    )

    def budget(*more: str) -> dict:
        return json.loads(bench(*what, *more, "--json").stdout)[0]["budget"]

    plain = budget("--max-model-len", "16384")
    assert plain["kv_tokens"] == pytest.approx(377_024, rel=0.03) and plain["max_model_len"] == 16384
    assert budget("--max-num-seqs", "32")["kv_tokens"] > plain["kv_tokens"]
    assert budget("--max-num-batched-tokens", "131072")["kv_tokens"] < plain["kv_tokens"]
    refused = bench("size", "opt-13b", "--gpu", "a100", "--max-model-len", "9000")
    assert refused.exit_code == 2 and "learned positions" in refused.output


@pytest.mark.parametrize("memory", ["40", "-3GiB", "lots"])
def test_size_wants_a_unit_for_kv_memory(memory: str) -> None:
    done = bench("size", "llama-3.1-8b", "--gpu", "a100-sxm", f"--kv-memory={memory}")
    assert done.exit_code == 2
    assert "--kv-memory" in done.output
    assert "40GiB" in done.output


def test_size_counts_like_the_memory_model() -> None:
    done = bench(
        "size",
        "llama-2-70b",
        "--gpu",
        "h100-sxm",
        "--tensor",
        "1",
        "--tensor",
        "8",
        "--context",
        "4096",
        "--json",
    )
    rows = json.loads(done.stdout)
    one, eight = [row for row in rows if row["quantization"] == "auto"]
    assert "weights take" in one["problem"]
    assert eight["requests"]["4096"] == eight["budget"]["kv_bytes"] // (4096 * eight["budget"]["bytes_per_token"])
    assert "does not fit" in bench("size", "llama-2-70b", "--gpu", "h100-sxm").stdout
    for wrong in (["--kv-dtype", "fp9"], ["--quantization", "int3"], ["--preset", "vlm"]):
        assert bench("size", "llama-2-70b", "--gpu", "h100-sxm", *wrong).exit_code == 2
    assert bench("size", "lama", "--gpu", "h100-sxm").exit_code == 2


def test_traces_are_inspected_converted_and_made(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write()
    made = tmp_path / "made.jsonl"
    assert bench("trace", "synth", path, made).exit_code == 0
    assert len(made.read_text().splitlines()) == 40
    again = bench("trace", "synth", path, made)
    assert again.exit_code == 2 and "exists already" in again.stderr
    facts = json.loads(bench("trace", "inspect", made, "--json").stdout)
    assert facts["requests"] == 40 and facts["input_tokens"]["mean"] == 128
    shown = bench("trace", "inspect", path)
    assert "Poisson" in shown.stdout and "input tokens" in shown.stdout
    part = tmp_path / "part.jsonl.gz"
    assert bench("trace", "convert", made, part, "--limit", "7", "-q").exit_code == 0
    assert json.loads(bench("trace", "inspect", part, "--json").stdout)["requests"] == 7
    assert bench("trace", "convert", made, tmp_path / "x.csv").exit_code == 2
    assert "did you mean" in bench("trace", "inspect", tmp_path / "maed.jsonl").stderr
    wrong = bench("trace", "inspect", made, "--option", "tim_unit=ms")
    assert wrong.exit_code == 2 and "time_unit" in wrong.stderr
    assert bench("trace", "inspect", made, "--start", "soon").exit_code == 2


def test_a_bundled_trace_is_what_its_specification_makes(tmp_path: Path) -> None:
    import gzip

    folder = ROOT / "workloads" / "examples" / "traces"
    assert bench("trace", "synth", folder / "code.synth.yaml", tmp_path / "code.jsonl", "-q").exit_code == 0
    assert (tmp_path / "code.jsonl").read_bytes() == gzip.decompress((folder / "code.jsonl.gz").read_bytes())
    other = bench("trace", "synth", folder / "code.synth.yaml", tmp_path / "other.jsonl", "--seed", "5", "-q")
    assert other.exit_code == 0
    assert (tmp_path / "other.jsonl").read_bytes() != (tmp_path / "code.jsonl").read_bytes()
    assert bench("trace", "synth", folder / "code.synth.yaml", tmp_path / "x.jsonl", "--set", "a=1").exit_code == 2


def test_doctor_knows_what_asks_for_a_package_and_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = (
        """triton<3.8,>=3.6; (platform_system == "Linux" and platform_machine == "x86_64") and extra == "engine\""""
    )
    assert parts(platform) == ("triton<3.8,>=3.6", "engine")
    assert parts("ray>=2.9 ; extra == 'ray'") == ("ray>=2.9", "ray") and parts("numpy>=1.26") == ("numpy>=1.26", "")
    assert {extra for _, extra in map(parts, metadata.requires("twinserve"))} - {"", "dev"} == set(USES)
    origins = {
        '{"url": "file:///a%20b/twinserve", "dir_info": {"editable": true}}': "pip install -e '/a b/twinserve[engine]'",
        '{"url": "file:///a/twinserve", "dir_info": {}}': "pip install '/a/twinserve[engine]'",
        None: "pip install 'twinserve[engine]'",
    }
    for told, command in origins.items():
        found = SimpleNamespace(read_text=lambda name, told=told: told)
        monkeypatch.setattr(metadata, "distribution", lambda name, found=found: found)
        assert install("engine") == command


def test_doctor_sees_this_installation() -> None:
    found = {f["what"]: f for f in json.loads(bench("doctor", "--json").stdout)}
    assert found["python"]["state"] == found["pydantic"]["state"] == found["packages"]["state"] == "ok"
    assert bench("doctor").exit_code == 0


def test_doctor_says_what_bench_serve_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from backends.server import extra

    for names, state, words in (([], "ok", "runs here"), (["uvicorn"], "note", "uvicorn not installed: pip install")):
        monkeypatch.setattr(extra, "missing", lambda names=names: names)
        (found,) = [f for f in json.loads(bench("doctor", "--json").stdout) if f["what"] == "bench serve"]
        assert found["state"] == state and words in json.dumps(found)


@pytest.mark.parametrize(
    ("have", "bounds", "good"),
    [
        ("2.11.0+cpu", ">=2.11,<2.14", True),
        ("2.14.0", ">=2.11,<2.14", False),
        ("2.9", ">=2.11", False),
        ("3", ">=2.1", True),
        ("1.0.3", "==1.0", True),
        ("10.2", ">9", True),
    ],
)
def test_versions_against_bounds(have: str, bounds: str, good: bool) -> None:
    assert _satisfies(have, bounds) is good


def test_a_folder_that_hides_a_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "__init__.py").touch()
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); sys.argv[1:1] = []\nfrom experiments.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "doctor"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2
    assert f"another 'reports' at {tmp_path / 'reports'} hides Twinserve's" in done.stdout + done.stderr


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="only Linux sets the size of a pipe")
def test_a_reader_that_goes_away_is_no_error() -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)  # far less than what is printed: the writer is still at it
    command = [*MAIN, "list", "models", "--json"]
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        os.close(writing)
        assert os.read(reading, 1) == b"["
        os.close(reading)
        _, stderr = running.communicate(timeout=60)
    assert (running.returncode, stderr) == (141, "")


def shell(command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A line of bash in which `"$@"` is `bench` with the arguments."""
    line = ["bash", "-c", f"set -o pipefail; {command}", "bash", *MAIN, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["list", "presets"], ["run", "FILE"]])
def test_a_reader_that_reads_nothing(arguments: list[str], workload: Path, tmp_path: Path) -> None:
    given = [str(workload) if word == "FILE" else word for word in arguments]
    given += ["--out", str(tmp_path / "out")] if "FILE" in arguments else []
    reading, writing = os.pipe()
    os.close(reading)
    command = [*MAIN, *given]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", [["list", "presets"], ["list", "gpus", "--json"], ["run"], ["run", "-q"]])
def test_closed_streams_are_no_error(closed: str, arguments: list[str], workload: Path, tmp_path: Path) -> None:
    given = [*arguments, workload, "--out", tmp_path / "out"] if arguments[0] == "run" else arguments
    done = shell(f'"$@" {closed}', *given)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", [["doctor"], ["list", "gpus"]])
def test_a_present_folder_that_is_gone(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    env_path = f"PYTHONPATH={ROOT}"
    done = shell(f'cd {tmp_path / "gone"} && rmdir ../gone && {env_path} "$@"', *command)
    assert done.returncode == (2 if command == ["doctor"] else 0), done.stderr
    assert "Traceback" not in done.stderr and ("cannot be used" in done.stdout) == (command == ["doctor"])


def test_ctrl_c_while_everything_is_still_imported() -> None:
    code = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from experiments.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code, "list", "gpus"], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_stdout_is_told() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*MAIN, "list", "gpus", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=False,
        )
    assert done.returncode == 2
    assert (
        "No space left on device" in done.stderr and "Traceback" not in done.stderr and "Exception" not in done.stderr
    )


def test_names_of_any_script_survive_a_c_locale(write: Callable[..., Path]) -> None:
    path = write(write().read_text().replace("name: small", "name: 聊天 🚀") + "错: 1\n", "聊.yaml")
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = process("run", path, env=env, cwd=ROOT)
    assert done.returncode == 2
    assert ".yaml:17: " in done.stderr and "\\u9519" in done.stderr and "Traceback" not in done.stderr


def test_progress_shows_nothing_where_there_is_no_terminal(
    workload: Path, runner: FakeRunner, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.cli.progress.PATIENCE", 0.0)
    monkeypatch.setattr("experiments.cli.progress.REDRAW", 0.0)
    with Progress("title") as progress:
        progress(1, 2, "half")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("[title]") as progress:
        progress(1, 2, "half")
        assert progress._bar is not None and progress._bar.tasks[0].completed == 1
    with Progress("title", enabled=False) as progress:
        progress(1, 2, "half")
        assert progress._bar is None


def test_ctrl_c_that_compiled_code_makes_another_error_of() -> None:
    code = """
import os, signal
from experiments.cli import doctor, main
def swallow():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass
    raise SystemError("returned NULL without setting an exception")
doctor.doctor = swallow
import sys
sys.argv = ["bench", "doctor"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60
    )
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")
