"""Run folders that were damaged: told by file and key or column, never turned into figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import empty_timeline, make_requests, make_run, simulated_run

from reports.columns import REQUESTS, STEPS, TIMELINE, TOKENS, write_table
from reports.metrics import summarize
from reports.run_data import RunData
from reports.run_folder import read_run, write_run
from workloads.errors import InputError


@pytest.fixture
def run() -> RunData:
    return simulated_run(60, 12, seed=4)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("info", {}, "info.load: is missing; expected a mapping"),
        ("info.end", None, "info.end: is missing; expected seconds"),
        ("info.end", -5, "info.end: is '-5'"),
        ("info.end", 0.1, "info.end: is 0.1 s, but the columns go on until"),
        ("info.end", True, "info.end"),
        ("info.slo", {"ttft_ms": "a"}, "info.slo.ttft_ms: is 'a'; expected a positive number"),
        ("info.slo", [], "info.slo"),
        ("info.load", {"mode": "half"}, "info.load.mode: is 'half'; expected open or closed"),
        ("info.load", {"mode": "closed", "concurrency": "x"}, "info.load.concurrency"),
        ("info.seed", "x", "info.seed"),
        ("info.seed", -1, "info.seed"),
        ("info.complete", 3, "info.complete"),
        ("info.kv_pool_tokens", [], "info.kv_pool_tokens"),
        ("info.max_num_seqs", "x", "info.max_num_seqs"),
        ("info.name", 3, "info.name"),
        ("timeline_width", -1.0, "timeline_width"),
        ("warnings", [3], "warnings"),
        ("provenance", ["x"], "provenance"),
        ("host", [1], "host"),
        ("host", {"wall_seconds": "x"}, "host.wall_seconds"),
    ],
)
def test_a_wrong_value_in_run_json(key: str, value: object, says: str, run: RunData, tmp_path: Path) -> None:
    file = write_run(run, tmp_path / "r", report=False) / "run.json"
    head = json.loads(file.read_text("utf-8"))
    *sections, last = key.split(".")
    inner = head
    for section in sections:
        inner = inner[section]
    inner[last] = value
    file.write_text(json.dumps(head), "utf-8")
    with pytest.raises(InputError) as caught:
        read_run(tmp_path / "r")
    assert str(caught.value).startswith(f"{file}: ") and says in str(caught.value)


def spoil(name: str, value: object, row: int = 3) -> Callable[[object], None]:
    def change(columns: object) -> None:
        getattr(columns, name)[row] = value

    return change


@pytest.mark.parametrize(
    ("table", "change", "says"),
    [
        (REQUESTS, spoil("status", "lost"), "row 3: column status is not one of finished"),
        (REQUESTS, spoil("finish", np.nan, slice(None)), "column finish is empty although the request finished"),
        (REQUESTS, spoil("first_token", np.inf), "row 3: column first_token is no time"),
        (REQUESTS, spoil("finish", 0.0), "row 3: column finish is before the first token"),
        (REQUESTS, spoil("first_token", 0.0), "row 3: column first_token is before the request was sent"),
        (REQUESTS, spoil("request", 2), "row 3: column request names a request a second time"),
        (REQUESTS, spoil("request", 1 << 60), "row 3: column request is not a row"),
        (REQUESTS, spoil("output_tokens", -1), "row 3: column output_tokens is negative"),
        (TOKENS, spoil("request", 999), "row 3: column request names a request that requests.parquet does not have"),
        (TOKENS, spoil("start", np.nan), "row 3: column start"),
        (TOKENS, spoil("steps", 1 << 40), "row 3: column steps speaks of decode steps"),
        (STEPS, spoil("step_ends", 0.0), "row 3: column step_ends is before the step in front"),
        (TIMELINE, spoil("time", 0.0), "row 3: column time is not after"),
        (TIMELINE, spoil("running", -4.0), "row 3: column running is not a number of at least 0"),
        (TIMELINE, spoil("busy", np.nan), "row 3: column busy"),
    ],
)
def test_a_wrong_value_in_a_column(
    table: object, change: Callable[[object], None], says: str, run: RunData, tmp_path: Path
) -> None:
    out = write_run(run, tmp_path / "r", report=False)
    part = run.requests if table is REQUESTS else run.timeline if table is TIMELINE else run.tokens
    change(part)
    write_table(table, part, out)
    with pytest.raises(InputError) as caught:
        read_run(out)
    assert str(caught.value).startswith(f"{out / table.file}: ") and says in str(caught.value)


def test_tokens_without_requests_and_requests_without_a_timeline(run: RunData, tmp_path: Path) -> None:
    out = write_run(run, tmp_path / "r", report=False)
    write_table(TIMELINE, empty_timeline(), out)
    with pytest.raises(InputError, match=r"timeline\.parquet: has no rows although requests finished"):
        read_run(out)
    write_table(REQUESTS, make_requests(0), out)
    with pytest.raises(InputError, match=r"tokens\.parquet: row 0: column request names a request"):
        read_run(out)


def test_reasons_are_plain_text() -> None:
    refused = make_requests(2, status="refused", reason=["too long", ""])
    reasons = summarize(make_run(refused))["refused_reasons"]
    assert reasons == {"too long": 1, "no reason given": 1} and {type(reason) for reason in reasons} == {str}
