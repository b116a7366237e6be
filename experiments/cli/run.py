"""`bench run`: one workload, or its sweep where it has one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli import options
from experiments.cli.output import check_folder, choose_folder
from experiments.cli.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.schema import Workload
    from reports.run_data import RunData

INTERRUPTED, NOTHING_FINISHED = 130, 3


def run(
    file: options.File,
    out: options.Out = None,
    backend: options.Backend = None,
    gpu: options.Gpu = None,
    load: options.Load = None,
    base_url: options.BaseUrl = None,
    seed: options.Seed = None,
    settings: options.Set = None,
    step: options.Step = False,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Run it 16 more times with drawn errors: exact intervals, slower.")
    ] = False,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a workload and leave its report.

    The folder holds every request, the run over time, a summary and a page for people.

    A workload with a `sweep:` section runs every point of it. Ctrl-C keeps what is done.

    \b
    Examples:
      bench run workload.yaml
      bench run workload.yaml --out runs/base --overwrite
      bench run workload.yaml --gpu a100-sxm-80gb --set load.concurrency=32
      bench run workload.yaml --set 'engine.scheduler={name: static, max_num_seqs: 8}'
      bench run workload.yaml --json | jq .summary.output_throughput
      bench run workload.yaml --backend torch --set model=./my-model
      bench run workload.yaml --backend torch --load dummy
      bench run workload.yaml --base-url http://localhost:8000
    """
    workload = options.load(file, settings, backend=backend, gpu=gpu, seed=seed, weights=load, base_url=base_url)
    draws = _draws(workload, intervals)
    if workload.sweep:
        from experiments.cli.sweep import run_and_show

        run_and_show(workload, out, workers=None, step=step, overwrite=overwrite, json=json, quiet=quiet)
        return
    folder, data, summary = run_one(
        workload, out, step=step, overwrite=overwrite, show=not (json or quiet), draws=draws
    )
    if json:
        print_json({**_head(data, summary), "folder": str(folder)})
    elif not quiet:
        _show(data, summary, folder)
    finish(data)


def _draws(workload: Workload, intervals: bool) -> int:
    """How many runs with drawn errors there are to be.

    Raises:
        InputError: they were asked for where there are none.
    """
    if not intervals:
        return 0
    from experiments.intervals import DRAWS
    from experiments.registries import WALL
    from workloads.errors import InputError

    if workload.sweep:
        raise InputError("--intervals is for one run", hint="the points of a sweep have quick ones, without asking")
    if workload.backend.name in WALL:
        raise InputError(f"backend {workload.backend.name} has no cost model whose errors could be drawn")
    return DRAWS


INTERRUPTED_RANGES = "interrupted"


def run_one(
    workload: Any,
    out: Path | None,
    *,
    step: bool = False,
    overwrite: bool = False,
    show: bool = True,
    draws: int = 0,
) -> tuple[Path, RunData, dict]:
    """Run a workload and write its folder.

    Args:
        out: the folder; None takes the next free one under `runs/`.
        show: print the plan before, and a progress bar on a terminal.
        draws: runs with drawn errors of the cost model; 0 for the two quick ones (see `experiments.intervals`).

    Returns:
        The folder, the run and its summary.

    Raises:
        InputError, OutputError: before anything runs, where that can be known.
    """
    from experiments import runner
    from reports.metrics import summarize
    from reports.run_folder import FolderTaken, check_free, write_run

    folder = choose_folder(out, workload.name)
    if out is not None:
        check_free(folder, overwrite=overwrite)
    check_folder(folder)
    resolved = _resolve(workload, show)
    if show:
        from experiments.cli.console import stdout
        from reports.plan import print_plan

        print_plan(resolved.info, resolved.config, stdout())
    with Progress(workload.name, enabled=show) as progress:
        data = runner.run(resolved, stretch=not step, progress=progress)
    summary = summarize(data)
    _spread(resolved, data, summary, draws, show)
    while True:
        try:
            return write_run(data, folder, overwrite=overwrite and out is not None, summary=summary), data, summary
        except FolderTaken:  # another run has taken it meanwhile
            if out is not None:
                raise
            folder = choose_folder(None, workload.name)


def _resolve(workload: Workload, show: bool) -> Any:
    """Resolve a workload, with a progress bar where a model is read."""
    from experiments import runner
    from experiments.registries import REAL, REMOTE

    if workload.backend.name == REMOTE:
        with Progress("asking the server", enabled=show):
            return runner.resolve(workload)
    if workload.backend.name not in REAL:
        return runner.resolve(workload)
    with Progress("loading the model", enabled=show) as progress:
        return runner.resolve(workload, progress)


def _spread(resolved: Any, data: RunData, summary: dict, draws: int, show: bool) -> None:
    """Find out what the cost model's errors do to the run; after Ctrl-C the run is kept without."""
    from experiments.intervals import add_spread

    try:
        with Progress("what errors of the cost model do", enabled=show) as progress:
            add_spread(resolved, data, summary, draws=draws, tell=lambda done, total: progress(done, total, "runs"))
    except KeyboardInterrupt:
        data.host["ranges"] = INTERRUPTED_RANGES


def finish(data: RunData) -> None:
    """End the command with the code that the run deserves.

    Raises:
        typer.Exit: 130 after Ctrl-C, 3 when no request finished.
    """
    if not data.info.get("complete", True):
        typer.echo("interrupted; what was done is kept", err=True)
        raise typer.Exit(INTERRUPTED)
    if data.host.get("ranges") == INTERRUPTED_RANGES:
        typer.echo("interrupted; the run is whole and kept, without the ranges of its figures", err=True)
        raise typer.Exit(INTERRUPTED)
    status = list(data.requests.status)
    if status and "finished" not in status:
        reasons: dict[str, int] = {}
        for reason in data.requests.reason:
            reasons[reason] = reasons.get(reason, 0) + 1
        common = max(reasons, key=lambda r: reasons[r])
        typer.echo(f"error: no request finished; most often: {common or status[0]}", err=True)
        raise typer.Exit(NOTHING_FINISHED)


def print_json(value: Any) -> None:
    """Strict JSON on stdout, in ASCII where stdout is not UTF-8."""
    import json
    import sys

    from reports import strict_json

    text = strict_json.dumps(value)
    if "utf" not in (sys.stdout.encoding or "").lower():
        text = json.dumps(strict_json.plain(value), indent=2, allow_nan=False)
    print(text)


def _head(data: RunData, summary: dict) -> dict:
    from reports.run_folder import head_of

    return head_of(data, summary)


def _show(data: RunData, summary: dict, folder: Path) -> None:
    from experiments.cli.console import stdout
    from reports.console import print_summary

    console = stdout()
    print_summary(data, summary, console, out=folder)
    for sample in data.host.get("answers", ())[:1]:
        _show_answer(sample, console)


def _show_answer(sample: dict[str, str], console: Console) -> None:
    """One question and what the model said to it."""
    from rich.text import Text

    from reports.wording import clean, encodable

    for label, key in (("asked", "prompt"), ("said", "answer")):
        text = encodable(clean(sample[key], 400), console.encoding)
        console.print(Text(f"{label:<7}", "dim") + Text(text), highlight=False, soft_wrap=not console.is_terminal)
