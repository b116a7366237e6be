"""Runs that commands take by path: run folders of ours, and what other tools measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.subject import Subject


def record_files(path: Path) -> list[Path]:
    """What a run is read from: of a run folder its run.json, itself and its tables, else the path alone."""
    from reports.columns import TABLES
    from reports.run_folder import RUN

    folder = path if path.is_dir() else path.parent if path.name == RUN else None
    if folder is None or not (folder / RUN).is_file():
        return [path]
    return [folder / RUN, folder, *(folder / table.file for table in TABLES)]


def read_subjects(path: Path, *, intervals: bool = False) -> list[Subject] | None:
    """The runs of a path; None where it is neither a run folder nor a result file, and so perhaps a workload.

    Args:
        intervals: also work out the intervals of its figures.

    Raises:
        InputError: something in it is missing or broken.
    """
    from reports.imports import is_result, read_results
    from reports.run_folder import RUN, read_run
    from reports.subject import Subject

    folder = path if path.is_dir() else path.parent if path.name == RUN else None
    if folder is not None and ((folder / RUN).is_file() or not is_result(path)):
        from reports.metrics import summarize

        data = read_run(folder)
        return [Subject.of(data, str(path), summarize(data, with_intervals=intervals))]
    return read_results(path) if is_result(path) else None
