"""`bench gate`: fail when a run is worse than its baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import options

if TYPE_CHECKING:
    from reports.run_data import RunData


def gate(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|WORKLOAD…", show_default=False, help="Run folders, or a workload file to run now."),
    ],
    baseline: Annotated[Path, typer.Option(metavar="FILE", show_default=False, help="The baseline, a JSON file.")],
    update: Annotated[
        bool, typer.Option("--update", help="Write the baseline instead of checking against it.")
    ] = False,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why the figures moved; kept in the baseline.")] = "",
    settings: options.Set = None,
    seed: options.Seed = None,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fail when a run is worse than a baseline.

    The exit code is 1 then, and 0 when every metric is within its tolerance.

    Give a run folder, several folders of repeated runs (their scatter then counts), or a workload file, which is run
    first and leaves its folder when --out names one. Tolerances are in the baseline and may be edited there.

    \b
    Examples:
      bench gate ci.yaml --baseline ci-baseline.json --update --reason "first baseline"
      bench gate ci.yaml --baseline ci-baseline.json
      bench gate runs/try-1 runs/try-2 runs/try-3 --baseline measured.json
    """
    from workloads.errors import InputError

    if update and not reason.strip():
        raise InputError("--update needs a reason", hint='such as --reason "new attention kernel"')
    if reason and not update:
        raise InputError("--reason belongs to --update", hint="add --update or leave it out")
    if not update:
        from reports.baseline import read_baseline

        read_baseline(baseline)  # a long run should not end at a baseline that cannot be read
    data = [_run(path, settings, seed, out, overwrite) for path in runs]
    if update:
        _update(data, baseline, reason, json, quiet)
        return
    from reports.gate import gate as check

    result = check(data, baseline)
    if json:
        from dataclasses import asdict

        from experiments.cli.run import print_json

        print_json({"passed": result.passed, **asdict(result)})
    elif not quiet:
        from experiments.cli.console import stdout
        from reports.console import print_gate

        print_gate(result, stdout())
    raise typer.Exit(result.exit_code)


def _run(path: Path, settings: list[str] | None, seed: int | None, out: Path | None, overwrite: bool) -> RunData:
    """A run folder read back, or a workload file run now."""
    from reports.run_folder import RUN, read_run
    from workloads.errors import InputError, Place

    if path.is_dir() or path.name == RUN:
        if settings or seed is not None or out is not None:
            place = Place(file=str(path))
            raise InputError("is a finished run, which options cannot change", place=place, hint="name a workload file")
        return read_run(path if path.is_dir() else path.parent)
    from experiments.cli.run import finish, run_one

    workload = options.load(path, settings, seed=seed)
    if workload.sweep:
        raise workload.error("sweep", "a gate looks at one run, not at a sweep", "remove the sweep: --set sweep=null")
    if out is None:
        data = _run_only(workload)
    else:
        data = run_one(workload, out, overwrite=overwrite, show=False)[1]
    finish(data)
    return data


def _run_only(workload: object) -> RunData:
    from experiments import runner

    return runner.run(runner.resolve(workload))


def _update(data: list[RunData], baseline: Path, reason: str, json: bool, quiet: bool) -> None:
    from reports.gate import update_baseline

    written = update_baseline(data, baseline, reason)
    if json:
        from experiments.cli.run import print_json

        print_json({"baseline": str(baseline), "reason": reason, "metrics": list(written.metrics)})
    elif not quiet:
        typer.echo(f"wrote {baseline}: {len(written.metrics)} metrics of {len(data)} run{'s' * (len(data) > 1)}")
