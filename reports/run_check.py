"""Whether what a run folder holds can be a run: the facts of run.json, and the columns against them and each other.

A folder may have been edited, cut off or mixed up on its way. Figures made from such a one would be nonsense that looks
like figures, so it is refused with the file and the key or column at fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reports.columns import REQUESTS, STEPS, TIMELINE, TOKENS, UNKNOWN_FROM_OUTSIDE, UNKNOWN_IN_SIMULATION
from reports.run_data import FINISHED, STATUSES, Requests, RunData, Timeline, TokenTimes
from workloads.errors import InputError, Place

SLACK = 1e-6  # seconds, and share of a time: room for rounding
MOST_ROWS = 1 << 31


def check_head(head: dict, file: Path) -> None:
    """Check the values in run.json that figures and pages are made from.

    Raises:
        InputError: naming the key, with what was expected there.
    """
    for key, value, good, expected in _facts(head):
        if not good(value):
            shown = "is missing" if value is None else f"is {str(value)[:60]!r}"
            raise InputError(f"{shown}; expected {expected}", place=Place(file=str(file), key=key))


def check_columns(data: RunData, folder: Path) -> None:
    """Check every column of a run.

    Raises:
        InputError: naming the file, the row and the column.
    """
    for table, found in (
        (REQUESTS, _bad_requests(data.requests)),
        (TOKENS, _bad_tokens(data.tokens, data.requests)),
        (STEPS, _bad_steps(data.tokens, data.requests.replica is not None)),
        (TIMELINE, _bad_timeline(data.timeline)),
    ):
        for column, bad, rule in found:
            if bad.any():
                message = f"row {int(bad.argmax())}: column {column} {rule}"
                raise InputError(message, place=Place(file=str(folder / table.file)))
    _check_end(data, folder)


def _facts(head: dict) -> Iterator[tuple[str, Any, Callable[[Any], bool], str]]:
    """(key, value, test, expectation) of everything to look at; a section before what is in it."""
    info = head["info"]
    yield "info.load", info.get("load"), lambda v: isinstance(v, dict), "a mapping"
    yield "info.load.mode", info["load"].get("mode"), lambda v: v in ("open", "closed"), "open or closed"
    concurrency = info["load"].get("concurrency")
    yield "info.load.concurrency", concurrency, _or_none(_whole(1)), "a positive whole number"
    yield "info.slo", info.get("slo"), lambda v: isinstance(v, dict), "a mapping"
    for key, limit in info["slo"].items():
        yield f"info.slo.{key}", limit, lambda v: _number(v) and v > 0, "a positive number of milliseconds"
    yield "info.end", info.get("end"), lambda v: _number(v) and v >= 0, "seconds, not negative"
    yield "info.complete", info.get("complete"), lambda v: isinstance(v, bool), "true or false"
    yield "info.seed", info.get("seed"), _or_none(_whole(0)), "a whole number, not negative"
    yield "info.gpus", info.get("gpus"), _or_none(_whole(1)), "a positive whole number"
    yield "info.max_num_seqs", info.get("max_num_seqs"), _or_none(_whole(1)), "a positive whole number"
    for key in ("kv_pool_tokens", "kv_block_tokens", "kv_bytes_per_token"):
        yield f"info.{key}", info.get(key), _or_none(lambda v: _number(v) and v >= 0), "a number, not negative"
    for key in ("name", "backend", "model"):
        yield f"info.{key}", info.get(key), _or_none(lambda v: isinstance(v, str)), "text"
    yield "timeline_width", head["timeline_width"], lambda v: _number(v) and v > 0, "a positive number of seconds"
    for key in ("warnings", "notes"):
        yield key, head[key], lambda v: all(isinstance(item, str) for item in v), "a list of sentences"
    yield "provenance", head["provenance"], lambda v: all(isinstance(item, dict) for item in v), "a list of mappings"
    yield "host", head.get("host"), _or_none(lambda v: isinstance(v, dict)), "a mapping"
    wall = (head.get("host") or {}).get("wall_seconds")
    yield "host.wall_seconds", wall, _or_none(lambda v: _number(v) and v >= 0), "a number of seconds"


def _bad_requests(r: Requests) -> Iterator[tuple[str, np.ndarray, str]]:
    """(column, bad rows, rule)."""
    known = np.array([status in STATUSES for status in r.status], bool)
    yield "status", ~known, f"is not one of {', '.join(STATUSES)}"
    yield "request", (r.request < 0) | (r.request >= MOST_ROWS), "is not a row of any traffic"
    again = np.ones(len(r), bool)
    again[np.unique(r.request, return_index=True)[1]] = False
    yield "request", again, "names a request a second time"
    for name in ("input_tokens", "max_tokens", "output_tokens", "target_tokens", "cached_tokens", "recomputed_tokens",
                 "preemptions", "turn"):  # fmt: skip
        yield name, getattr(r, name) < 0, "is negative"
    for name in ("scheduled", "sent", "queued", "admitted", "first_token", "finish"):
        times = getattr(r, name)
        yield name, np.isinf(times) | (times < 0), "is no time of a run"
    if r.replica is not None:
        yield "replica", r.replica < -1, "is no replica"
    done = r.status == FINISHED
    for name in ("sent", "first_token", "finish"):
        yield name, done & np.isnan(getattr(r, name)), "is empty although the request finished"
    yield "first_token", done & _before(r.first_token, r.sent), "is before the request was sent"
    yield "finish", done & _before(r.finish, r.first_token), "is before the first token"


def _bad_tokens(t: TokenTimes, r: Requests) -> Iterator[tuple[str, np.ndarray, str]]:
    yield "request", ~np.isin(t.request, r.request), "names a request that requests.parquet does not have"
    yield "start", ~np.isfinite(t.start) | (t.start < 0), "is no time of a run"
    used = t.steps > 0
    beyond = (t.first_step < 0) | (t.first_step + t.steps > len(t.step_ends))
    yield "steps", (t.steps < 0) | (used & beyond), "speaks of decode steps that steps.parquet does not have"


def _bad_steps(t: TokenTimes, several: bool) -> Iterator[tuple[str, np.ndarray, str]]:
    yield "step_ends", ~np.isfinite(t.step_ends) | (t.step_ends < 0), "is no time of a run"
    back = np.diff(t.step_ends, prepend=t.step_ends[:1]) < 0
    if several:  # replicas, one after another: no answer has steps of two
        inside = np.zeros(len(back) + 1, np.int64)
        more = t.steps > 1
        np.add.at(inside, t.first_step[more] + 1, 1)
        np.add.at(inside, (t.first_step + t.steps)[more], -1)
        back &= np.cumsum(inside)[: len(back)] > 0
    yield "step_ends", back, "is before the step in front of it"


def _bad_timeline(t: Timeline) -> Iterator[tuple[str, np.ndarray, str]]:
    yield "time", ~np.isfinite(t.time) | (t.time < 0), "is no time of a run"
    late = np.zeros(len(t.time), bool)
    late[1:] = np.diff(t.time) <= 0
    yield "time", late, "is not after the bucket in front of it"
    unknown = UNKNOWN_IN_SIMULATION if t.steps.any() else (*UNKNOWN_IN_SIMULATION, *UNKNOWN_FROM_OUTSIDE)
    for name in TIMELINE.columns:
        values = getattr(t, name)
        if name in unknown and np.isnan(values).all():
            continue
        yield name, ~np.isfinite(values) | (values < -SLACK), "is not a number of at least 0"


def _check_end(data: RunData, folder: Path) -> None:
    """The end of the run against the columns, and whether there is a timeline where something happened."""
    end, finish = data.info["end"], data.requests.finish
    last = max((float(times[-1]) for times in (np.sort(finish[np.isfinite(finish)]), data.timeline.time) if len(times)),
               default=0.0)  # fmt: skip
    if last > end + SLACK * (1 + end):
        message = f"is {end:g} s, but the columns go on until {last:g} s"
        raise InputError(message, place=Place(file=str(folder / "run.json"), key="info.end"))
    if not len(data.timeline.time) and data.info.get("backend") == "sim" and (data.requests.status == FINISHED).any():
        raise InputError("has no rows although requests finished", place=Place(file=str(folder / TIMELINE.file)))


def _before(earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Where one time is before another by more than rounding."""
    return earlier < later - SLACK * (1 + np.abs(later))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _or_none(good: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or good(value)
