"""Sweeps: the grid of a workload's `sweep:` section, run point by point, several at once.

    OUT/sweep.json         axes, points with their summaries, the knee
    OUT/points.parquet     one row a point: swept values, status, every figure of the summary
    OUT/points/000/ …      a whole run folder each
    OUT/report.html        the curves

A sweep can be stopped and started again: a point whose fingerprint (workload, trace, seed, code) is already there is
not run a second time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from experiments.folder_lock import alone_in
from experiments.point import Outcome, PointTask, fingerprint
from experiments.schema import Workload
from experiments.sweep_warnings import lost_its_server
from experiments.workload_file import WorkloadErrors, point_workload
from workloads.errors import InputError, OutputError, TargetError

POINTS, SWEEP = "points", "sweep.json"
DONE, FAILED = "done", "failed"

OnPoint = Callable[[int, int, str], None]
Runner = Callable[[dict[int, PointTask]], Generator[tuple[int, Outcome], None, None]]
"""Runs tasks, by the number of their point, and gives each with what became of it, in the order in which they finish."""


@dataclass(slots=True)
class Point:
    """One point of the grid.

    Attributes:
        number: place in the grid, from 0.
        values: swept keys and what they are here.
        workload: the workload with these values.
        fingerprint: what its result depends on.
        folder: run folder, relative to the sweep's.
        status: `done`, `failed`, or "" while it has not run.   error: why it failed.
        summary: figures of the run.   gpus: how many it ran on.   config: dotted key → value of every setting.
    """

    number: int
    values: dict[str, Any]
    workload: Workload
    fingerprint: str
    folder: str = ""
    status: str = ""
    error: str = ""
    summary: dict = field(default_factory=dict)
    gpus: int = 1
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class SweepResult:
    """What a sweep found.

    Attributes:
        workload: with its sweep.   folder: of the sweep.   points: all of the grid.
        complete: False after Ctrl-C.   reused: points found finished.
    """

    workload: Workload
    folder: Path
    points: list[Point]
    complete: bool = False
    reused: int = 0

    @property
    def name(self) -> str:
        """Name of the workload."""
        return self.workload.name

    @property
    def axes(self) -> dict[str, list]:
        """The swept keys and their values."""
        return {key: list(axis) for key, axis in self.workload.sweep.items()}


def grid(workload: Workload) -> list[Point]:
    """Every point of the sweep, the last axis turning fastest.

    Raises:
        InputError: the workload has no sweep, or points are impossible (each named by the line of the file).
    """
    if not workload.sweep:
        raise InputError("the workload has no sweep", place=workload.place("sweep"), hint="add one, or use --over")
    points, errors = [], []
    for number, values in enumerate(itertools.product(*workload.sweep.values())):
        named = dict(zip(workload.sweep, values, strict=True))
        try:
            one = point_workload(workload, named)
        except InputError as error:
            errors.append(error)
            continue
        points.append(Point(number, named, one, fingerprint(one)))
    if errors:
        raise errors[0] if len(errors) == 1 else WorkloadErrors(errors)
    return points


def run_sweep(
    workload: Workload,
    out: Path,
    *,
    workers: int = 1,
    stretch: bool = True,
    overwrite: bool = False,
    ray: str | None = None,
    on_point: OnPoint = lambda done, total, name: None,
) -> SweepResult:
    """Run every point that is not there yet and write the sweep's files.

    Args:
        out: the sweep's folder; a sweep that is already there is continued.
        workers: processes; 1 runs in this one. Backends on the wall clock need 1.
        stretch: False takes every engine step by itself.
        overwrite: run finished points again.
        ray: run points on a Ray cluster: its address, or "local" for one on this machine. `workers` is the most at once
            then, 1 leaving it to the cluster.
        on_point: called with (points finished, points in all, name of the latest).

    Raises:
        InputError: impossible points, or every point failed.
        TargetError: no point reached the server.
        OutputError: `out` holds something else, another sweep is writing there, or it cannot be written.
    """
    if (workers > 1 or ray is not None) and workload.backend.name != "sim":
        many = "points on a cluster" if ray is not None else f"{workers} points at once"
        raise InputError(f"{many} would disturb each other on backend {workload.backend.name}")
    points = grid(workload)
    check_sweep_folder(out)
    with alone_in(out):
        _clean(out)  # what a killed sweep left half-written
        reused = _find_finished(points, out, overwrite)
        _name_folders(points)
        result = SweepResult(workload, out, points, reused=reused)
        _run_points(result, _runner(ray, workers), stretch, on_point)
    return result


def _runner(ray: str | None, workers: int) -> Runner:
    if ray is not None:
        from experiments.sweep_ray import on_ray

        return partial(on_ray, address=ray, most=workers if workers > 1 else None)
    from experiments.sweep_pool import in_processes

    return partial(in_processes, workers=workers)


def _run_points(result: SweepResult, run: Runner, stretch: bool, on_point: OnPoint) -> None:
    """Run what is not there yet, and write the sweep's files."""
    points, out = result.points, result.folder
    todo = [point for point in points if not point.status]
    tasks = {
        point.number: PointTask(point.workload.source, out / point.folder, point.fingerprint, stretch) for point in todo
    }
    by_number = {point.number: point for point in todo}
    unreached = 0
    on_point(len(points) - len(todo), len(points), "")
    try:
        with closing(run(tasks)) as outcomes:
            for number, outcome in outcomes:
                point = by_number[number]
                unreached += outcome.unreached
                point.status, point.error = (FAILED, outcome.error) if outcome.error else (DONE, "")
                point.summary, point.gpus, point.config = outcome.summary, outcome.gpus, outcome.config
                on_point(sum(bool(p.status) for p in points), len(points), short_name(point.values))
        result.complete = True
    except KeyboardInterrupt:
        _clean(out)
    if result.complete and all(point.status == FAILED for point in points):
        wrong = TargetError if unreached == len(points) else InputError
        raise wrong(f"every point failed; the first: {points[0].error}")
    from experiments.sweep_files import write_sweep

    write_sweep(result)


def check_sweep_folder(out: Path) -> None:
    """Say before anything runs that a sweep cannot go to `out`.

    Raises:
        OutputError: it is a file, or a folder with something else in it.
    """
    try:
        if not out.exists() or (out / SWEEP).is_file() or (out / POINTS).is_dir():
            return
        if not out.is_dir():
            raise OutputError(f"cannot write the sweep to {out}: it is a file (name a folder)")
        if any(out.iterdir()):
            raise OutputError(
                f"cannot write the sweep to {out}: it holds something that is not a sweep (name a new folder)"
            )
    except OSError as error:
        raise OutputError(f"cannot write the sweep to {out}: {error.strerror or error}") from error


def short_name(values: dict[str, Any]) -> str:
    """`load.concurrency 8, engine.preset vllm` as `concurrency 8, preset vllm`."""
    from reports.wording import settings_told

    return settings_told(values)


def _find_finished(points: list[Point], out: Path, overwrite: bool) -> int:
    """Take over what an earlier sweep in `out` finished; how many points that are."""
    if overwrite:
        return 0
    from reports.fingerprint import settings
    from reports.run_folder import read_head

    there: dict[str, tuple[str, dict]] = {}
    for folder in sorted((out / POINTS).glob("[0-9]*")):
        try:
            head = read_head(folder)
        except InputError:
            continue
        mark = head["info"].get("point_fingerprint")
        if mark and head["info"].get("complete") and not lost_its_server(head["summary"]):
            there[mark] = (f"{POINTS}/{folder.name}", head)
    reused = 0
    for point in points:
        if point.fingerprint in there:
            point.folder, head = there[point.fingerprint]
            point.status, point.summary, point.gpus = DONE, head["summary"], head["info"]["gpus"]
            point.config = settings(head["config"])
            reused += 1
    return reused


def _name_folders(points: list[Point]) -> None:
    """Give each point without a folder its number's, or the next free one where an older point has it."""
    taken = {point.folder for point in points if point.folder}
    for point in points:
        number = point.number
        while not point.folder:
            name = f"{POINTS}/{number:03d}"
            if name not in taken:
                point.folder = name
            number = number + 1 if number >= len(points) else max(number + 1, len(points))
        taken.add(point.folder)


def _clean(out: Path) -> None:
    """Remove what terminated workers, or a sweep that was killed, left half-written."""
    import shutil

    for leftover in (out / POINTS).glob(".*.partial"):
        shutil.rmtree(leftover, ignore_errors=True)
    for leftover in out.glob(".*.partial"):  # tables and pages
        leftover.unlink(missing_ok=True)
