"""Running workloads from Python: what `bench run` does, without a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.schema import Workload
from experiments.workload_file import load_workload

if TYPE_CHECKING:
    from reports.run_data import RunData

__all__ = ["load_workload", "run"]


def run(
    workload: Workload | str | Path, overrides: Iterable[str] = (), *, out: str | Path | None = None,
    overwrite: bool = False, stretch: bool = True,
) -> RunData:  # fmt: skip
    """Run a workload.

    Args:
        workload: a workload file, or one that `load_workload` has read.
        overrides: `key=value` texts that change keys of the file, as `--set` does; for a file only.
        out: folder to write the run to, with its report and the ranges of its figures; None keeps it in memory, without.
        overwrite: replace a run that is already in `out`.
        stretch: take equal decode steps at once; the results are the same without, only later.

    Returns:
        The run. `summarize` gives its figures; after Ctrl-C it is cut short and `info["complete"]` is False.

    Raises:
        InputError: the workload cannot be used; says where and why. A workload with a sweep is for `bench sweep`.
        OutputError: `out` cannot be written; told before the run where that can be known.
    """
    from experiments import runner
    from experiments.intervals import add_spread
    from reports.metrics import summarize
    from reports.run_folder import check_free, write_run

    overrides = list(overrides)
    if not isinstance(workload, Workload):
        workload = load_workload(workload, overrides)
    elif overrides:
        raise TypeError("overrides change a file; give its path, or load it with the overrides")
    if workload.sweep:
        raise workload.error("sweep", "this runs one point, not a sweep", "remove the sweep: sweep=null")
    if out is not None:
        check_free(Path(out), overwrite=overwrite)
    resolved = runner.resolve(workload)
    data = runner.run(resolved, stretch=stretch)
    if out is not None:
        summary = summarize(data)
        add_spread(resolved, data, summary)
        write_run(data, Path(out), overwrite=overwrite, summary=summary)
    return data
