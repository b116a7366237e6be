from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import make_requests, make_run, simulated_run

from reports import run_folder
from reports.columns import REQUESTS, TABLES, TIMELINE, UNKNOWN_IN_SIMULATION
from reports.metrics import summarize
from reports.run_data import Requests, RunData, Timeline, TokenTimes
from reports.run_folder import check_free, read_head, read_run, write_run
from workloads.errors import InputError, OutputError

FILES = {"run.json", "requests.parquet", "tokens.parquet", "steps.parquet", "timeline.parquet", "report.html"}


@pytest.fixture(scope="module")
def run() -> RunData:
    return simulated_run(150, 12, pool=20_000, refuse=0.05)


def columns_equal(a: object, b: object) -> None:
    for field in dataclasses.fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            assert x.dtype == y.dtype, field.name
            np.testing.assert_array_equal(x, y)
        else:
            assert x == y, field.name


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def nothing_else(folder: Path, *names: str) -> bool:
    return sorted(p.name for p in folder.iterdir()) == sorted(names)


def test_every_column_of_a_run_is_in_a_file():
    assert tuple(REQUESTS.columns) == Requests.__slots__
    assert set(TIMELINE.columns) | {"width"} == set(Timeline.__slots__)
    stored = {name for table in TABLES[1:3] for name in table.columns}
    assert stored == set(TokenTimes.__slots__)


def test_what_is_written_is_read_back(run, tmp_path):
    out = write_run(run, tmp_path / "deep" / "run")
    assert {p.name for p in out.iterdir()} == FILES
    back = read_run(out)
    for part in ("requests", "tokens", "timeline"):
        columns_equal(getattr(run, part), getattr(back, part))
    assert (back.info, back.config, back.notes) == (run.info, run.config, run.notes)
    assert (back.provenance, back.warnings, back.host) == (run.provenance, run.warnings, run.host)
    assert summarize(back) == summarize(run) == read_head(out)["summary"]
    assert nothing_else(tmp_path / "deep", "run")


def test_an_empty_run_survives(tmp_path):
    write_run(make_run(make_requests(0)), tmp_path / "r")
    assert len(read_run(tmp_path / "r").requests) == 0


def test_same_run_same_bytes(tmp_path):
    folders = []
    for i, host in enumerate(({"wall_seconds": 1.0}, {"wall_seconds": 2.0})):
        again = simulated_run(150, 12, seed=3)
        again.host = host
        folders.append(write_run(again, tmp_path / str(i)))
    a, b = map(digests, folders)
    assert {n for n in FILES if a[n] != b[n]} == {"run.json", "report.html"}
    first, second = (json.loads((f / "run.json").read_text()) for f in folders)
    assert first.pop("host") != second.pop("host")
    assert json.dumps(first) == json.dumps(second)


def test_bytes_do_not_depend_on_the_process(tmp_path):
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from synthetic_runs import simulated_run\nfrom reports.run_folder import write_run\n"
        "write_run(simulated_run(60, 12, seed=5), sys.argv[1])"
    )
    here = Path(__file__).parent
    command = [sys.executable, "-c", code, str(tmp_path / "there"), str(here), str(here.parents[1])]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    write_run(simulated_run(60, 12, seed=5), tmp_path / "here")
    assert digests(tmp_path / "here") == digests(tmp_path / "there")


def test_json_is_strict(run, tmp_path):
    odd = dataclasses.replace(run, info={**run.info, "bad": float("nan"), "worse": [float("inf")], "np": np.int64(3)})
    text = (write_run(odd, tmp_path / "r") / "run.json").read_text()
    head = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in run.json"))
    assert (head["info"]["bad"], head["info"]["worse"], head["info"]["np"]) == (None, [None], 3)


def test_odd_text_survives(tmp_path):
    r = make_requests(2, status="refused", reason=["日本語 <script>\n", "lone \ud800 surrogate"])
    data = make_run(r, name="😀 \ud800")
    back = read_run(write_run(data, tmp_path / "r"))
    assert back.requests.reason[0] == "日本語 <script>\n"
    assert back.requests.reason[1] == "lone ? surrogate"


def test_a_run_is_not_overwritten_unasked(run, tmp_path):
    out = write_run(run, tmp_path / "r")
    before = digests(out)
    with pytest.raises(OutputError, match="already holds a run"):
        write_run(run, out)
    assert digests(out) == before
    write_run(simulated_run(20, 5), out, overwrite=True)
    assert len(read_run(out).requests) == 20
    assert nothing_else(tmp_path, "r")


def test_foreign_folders_and_files_are_never_replaced(run, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match="not a run"):
        write_run(run, tmp_path / "home", overwrite=True)
    assert (tmp_path / "home" / "thesis.tex").read_text() == "years of work"
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="it is a file"):
        write_run(run, tmp_path / "file", overwrite=True)
    (tmp_path / "empty").mkdir()
    write_run(run, tmp_path / "empty")
    check_free(tmp_path / "new")


@pytest.mark.parametrize("failing", ["steps.parquet", "run.json", "report.html"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_midway_leaves_nothing_and_keeps_the_older_run(run, tmp_path, monkeypatch, failing, error):
    out = write_run(simulated_run(20, 5), tmp_path / "r")
    before = digests(out)
    real_table, real_text = run_folder.write_table, Path.write_text

    def table(spec, source, folder):
        if spec.file == failing:
            (folder / failing).write_bytes(b"half")
            raise error
        real_table(spec, source, folder)

    def text(self, *args, **kwargs):
        if self.name == failing:
            self.write_bytes(b"half")
            raise error
        return real_text(self, *args, **kwargs)

    monkeypatch.setattr(run_folder, "write_table", table)
    monkeypatch.setattr(Path, "write_text", text)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else OutputError
    with pytest.raises(expected) as caught:
        write_run(run, out, overwrite=True)
    if expected is OutputError:
        assert str(out) in str(caught.value)
        assert "No space left" in str(caught.value)
    assert digests(out) == before
    with pytest.raises(expected):
        write_run(run, tmp_path / "new")
    assert nothing_else(tmp_path, "r")


def test_a_failing_rename_brings_the_older_run_back(run, tmp_path, monkeypatch):
    out = write_run(simulated_run(20, 5), tmp_path / "r")
    before = digests(out)
    real = Path.rename

    def rename(self, target):
        if self.name.endswith(".partial"):
            raise PermissionError(13, "Permission denied")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OutputError, match="Permission denied"):
        write_run(run, out, overwrite=True)
    assert digests(out) == before
    assert nothing_else(tmp_path, "r")


def test_a_place_that_is_a_loop_of_links(run, tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OutputError, match="cannot write the run to"):
        write_run(run, tmp_path / "a")


def test_a_place_that_cannot_be_made(run, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot write the run to"):
        write_run(run, tmp_path / "file" / "run")


@pytest.mark.parametrize("name", ["requests.parquet", "tokens.parquet", "steps.parquet", "timeline.parquet"])
def test_a_missing_or_broken_column_file_is_named(run, tmp_path, name):
    out = write_run(run, tmp_path / "r", report=False)
    (out / name).write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match=name):
        read_run(out)
    (out / name).unlink()
    with pytest.raises(InputError, match=name):
        read_run(out)


def test_a_missing_column_is_named(run, tmp_path):
    import pyarrow.parquet as pq

    out = write_run(run, tmp_path / "r")
    table = pq.read_table(out / "requests.parquet").drop_columns(["queued", "turn"])
    pq.write_table(table, out / "requests.parquet")
    with pytest.raises(InputError, match=r"requests\.parquet: lacks the columns turn, queued"):
        read_run(out)


def older(out: Path, version: int, *absent: str) -> Path:
    """The run as a version wrote it whose timeline lacked these columns."""
    import pyarrow.parquet as pq

    timeline = pq.read_table(out / "timeline.parquet").drop_columns(list(absent))
    pq.write_table(timeline, out / "timeline.parquet")
    head = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**head, "schema_version": version}))
    return out


@pytest.mark.parametrize("absent", [UNKNOWN_IN_SIMULATION, UNKNOWN_IN_SIMULATION[:1], ()])
def test_runs_of_before_a_column_came_are_read_and_lack_nothing_else(run, tmp_path, absent):
    back = read_run(older(write_run(run, tmp_path / "r"), 1, *absent))
    assert all(np.isnan(getattr(back.timeline, name)).all() for name in absent)
    assert all(getattr(back.timeline, name).shape == back.timeline.time.shape for name in TIMELINE.columns)
    columns_equal(run.requests, back.requests)
    np.testing.assert_array_equal(back.timeline.busy, run.timeline.busy)
    assert summarize(back) == summarize(run)
    again = write_run(back, tmp_path / "again")  # its page is drawn, and it is a run of this version from now on
    assert read_head(again)["schema_version"] == run_folder.SCHEMA_VERSION
    columns_equal(read_run(again).timeline, back.timeline)


def test_a_version_must_have_the_columns_that_it_brought(run, tmp_path):
    out = write_run(run, tmp_path / "r", report=False)
    with pytest.raises(InputError, match=r"timeline\.parquet: lacks the columns device_seconds, host_seconds"):
        read_run(older(out, 2, *UNKNOWN_IN_SIMULATION))
    with pytest.raises(InputError, match=r"timeline\.parquet: lacks the column busy"):
        read_run(older(out, 1, "busy"))


def test_a_broken_head_is_named(run, tmp_path):
    with pytest.raises(InputError, match="no such run folder"):
        read_run(tmp_path / "none")
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match=r"run\.json is missing"):
        read_run(tmp_path / "other")
    file = write_run(run, tmp_path / "r") / "run.json"
    head = json.loads(file.read_text())
    for broken, message in (
        ("{", "not readable JSON"),
        ("[]", "schema_version None"),
        (json.dumps({**head, "schema_version": 0}), "run the workload again"),
        (json.dumps({**head, "schema_version": 99}), "upgrade Twinserve"),
        (json.dumps({**head, "schema_version": True}), "schema_version True, this version reads 1 to 2"),
        (json.dumps({**head, "schema_version": "1"}), "schema_version '1'"),
        (json.dumps({k: v for k, v in head.items() if k != "config"}), "config"),
        ('{"schema_version": NaN}', "NaN"),
    ):
        file.write_text(broken)
        with pytest.raises(InputError, match=message):
            read_run(tmp_path / "r")


def test_tokens_beyond_the_steps_are_refused(run, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = write_run(run, tmp_path / "r")
    pq.write_table(pa.table({"step_ends": [1.0]}), out / "steps.parquet")
    with pytest.raises(InputError, match=r"tokens\.parquet.*steps\.parquet"):
        read_run(out)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ("9" * 5000, "a number of 5000 digits is too large"),
        ("9" * 400, "a number of 400 digits is too large"),
        ("1e400", "1e400 is too large a number"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 300 + "]" * 300, "nested too deeply"),
    ],
)
def test_numbers_and_nesting_beyond_measure(tmp_path, number, said):
    (tmp_path / "run.json").write_text(f'{{"schema_version": {number}}}', "utf-8")
    with pytest.raises(InputError, match=rf"run\.json: is not readable JSON \(.*{said}"):
        read_head(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b"{not json", "is not JSON"),
        ("a.json", b"\xff\xfe", "it is not UTF-8"),
        ("a.json", b"{}", "neither a run folder nor a result file"),
        ("a.txt", b"x", "neither a run folder nor a result file"),
    ],
)
def test_a_file_that_is_no_run_says_what_is_wrong_with_it(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}: .*({said})"):
        read_run(tmp_path / name)
    with pytest.raises(InputError, match="no such run folder"):
        read_run(tmp_path / "none.json")


def test_heavy_packages_stay_out_until_needed():
    code = (
        "import sys, reports.run_folder, reports.console, reports.html, reports.gate, reports.export\n"
        "heavy = {'pandas', 'matplotlib', 'torch', 'scipy', 'pyarrow'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or None)"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


def test_a_sweep_is_told_from_a_folder_of_another_kind(tmp_path):
    with pytest.raises(InputError, match=r"run\.json is missing$"):
        read_run(tmp_path)
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(InputError, match=r"a sweep: its runs are in .*points"):
        read_run(tmp_path)


def test_a_run_shows_itself_in_one_line(run):
    told = repr(run)
    assert len(told) < 200 and "\n" not in told and "array" not in told
    assert (
        repr(str(run.info["name"])) in told
        and f"Requests: 150, {(run.requests.status == 'finished').sum()} finished" in told
    )
    assert all(len(repr(part)) < 100 for part in (run.requests, run.tokens, run.timeline))
