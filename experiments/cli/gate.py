"""`bench gate`: fail when a run is worse than its baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli import options
from experiments.cli.gate_files import Outputs, check_paths

if TYPE_CHECKING:
    from reports.baseline import Baseline
    from reports.gate import GateResult
    from reports.subject import Subject


Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN|WORKLOAD…", show_default=False,
        help="Run folders, result files of other tools, or a workload file to run now.",
    ),
]  # fmt: skip
BaselineFile = Annotated[Path, typer.Option(metavar="FILE", show_default=False, help="The baseline, a JSON file.")]
Update = Annotated[bool, typer.Option("--update", help="Write the baseline instead of checking against it.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why the figures moved; kept in the baseline.")]
Exact = Annotated[
    bool | None,
    typer.Option("--exact/--no-exact", show_default=False, help="With --update: runs must be equal to the last bit."),
]
Speed = Annotated[
    bool | None,
    typer.Option("--speed/--no-speed", show_default=False, help="Hold the simulator's own speed too, as a ratio."),
]
OtherTarget = Annotated[
    bool, typer.Option("--other-target", help="Hold a run of another model or GPU against the baseline too.")
]
Repeat = Annotated[int, typer.Option(min=1, metavar="N", help="Run a workload N times, on a wall-clock backend.")]
Junit = Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")]
Github = Annotated[bool, typer.Option("--github", help="Print annotations for GitHub Actions.")]
Summary = Annotated[Path | None, typer.Option(metavar="FILE", help="Add a Markdown section to this file.")]
Points = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write points for github-action-benchmark, a file a direction.")
]
Bencher = Annotated[Path | None, typer.Option(metavar="FILE", help="Write Bencher Metric Format.")]


def gate(
    runs: Runs,
    baseline: BaselineFile,
    update: Update = False,
    reason: Reason = "",
    exact: Exact = None,
    speed: Speed = None,
    repeat: Repeat = 1,
    other_target: OtherTarget = False,
    junit: Junit = None,
    github: Github = False,
    summary: Summary = None,
    benchmark_action: Points = None,
    bencher: Bencher = None,
    settings: options.Set = None,
    backend: options.Backend = None,
    base_url: options.BaseUrl = None,
    seed: options.Seed = None,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fail when a run is worse than a baseline.

    The exit code is 1 then, 0 when every metric is within its tolerance, and 2 when the two cannot be compared: other traffic,
    another model or GPU (unless --other-target), a run that was cut short, a file that is wrong.

    Give a run folder, several folders of repeated runs (their scatter then counts, by a bootstrap interval), or a workload
    file, which is run first and leaves its folder when --out names one. Directions and tolerances are in the baseline and may
    be edited there.

    \b
    Examples:
      bench gate ci.yaml --baseline ci-baseline.json --update --reason "first baseline"
      bench gate ci.yaml --baseline ci-baseline.json
      bench gate ci.yaml --baseline ci-baseline.json --github --summary "$GITHUB_STEP_SUMMARY" --junit gate.xml
      bench gate runs/try-1 runs/try-2 runs/try-3 --baseline measured.json
      bench gate ci.yaml --backend torch --repeat 5 --baseline measured.json
      bench gate ci.yaml --base-url http://localhost:8000 --repeat 5 --baseline measured.json
      bench gate vllm-result.json --baseline measured.json
    """
    from workloads.errors import TwinserveError

    wanted = Outputs(junit, github, summary, benchmark_action, bencher)
    check_paths(runs, baseline, wanted)
    try:
        _check_options(update, reason, exact)
        expected = _expected(baseline, update)
        want_speed = _want_speed(speed, expected, baseline, update)
        against = None if update else (expected, baseline)
        how = Running(
            settings, backend, seed, repeat, out, overwrite, want_speed, against, other_target,
            intervals=bencher is not None, base_url=base_url,
        )  # fmt: skip
        subjects = [subject for path in runs for subject in _subjects(path, how)]
        if update:
            _update(subjects, baseline, reason, exact, json, quiet)
            return
        result = _result(subjects, baseline, want_speed, other_target)
    except TwinserveError as error:
        if not update:
            wanted.refused(str(runs[0]), str(baseline), str(error))
        raise
    written = wanted.write(result, [s.summary for s in subjects])
    _show(result, json, quiet)
    wanted.annotate(result, json)
    if not (json or quiet):
        for path in written:
            typer.echo(f"wrote {path}")
    raise typer.Exit(result.exit_code)


@dataclass(frozen=True, slots=True)
class Running:
    """How a workload is to be run, and the baseline that its first run is held against before it is run again.

    `other_target`: its model and GPU may differ.   `intervals`: figures are to have their intervals, which takes a moment.
    """

    settings: list[str] | None
    backend: str | None
    seed: int | None
    repeat: int
    out: Path | None
    overwrite: bool
    speed: bool
    against: tuple[Baseline, Path] | None
    other_target: bool = False
    intervals: bool = False
    base_url: str | None = None

    def touches(self) -> bool:
        """Whether anything was asked for that a finished run cannot have."""
        return (
            bool(self.settings or self.backend or self.base_url or self.repeat > 1)
            or self.seed is not None
            or self.out is not None
        )


def _check_options(update: bool, reason: str, exact: bool | None) -> None:
    from workloads.errors import InputError

    for given, name in ((reason, "--reason"), (exact is not None, "--exact")):
        if given and not update:
            raise InputError(f"{name} belongs to --update", hint="add --update or leave it out")


def _expected(baseline: Path, update: bool) -> Baseline | None:
    """The baseline, read before anything runs: a long run should not end at one that cannot be read."""
    from reports.baseline import read_baseline

    return read_baseline(baseline) if not update or baseline.exists() else None


def _want_speed(speed: bool | None, expected: Baseline | None, baseline: Path, update: bool) -> bool:
    """Whether the simulator's speed is to be measured: as asked, else as the baseline has it."""
    from reports.baseline import SPEED
    from workloads.errors import InputError, Place

    held = expected is not None and SPEED in expected.metrics
    if speed and not held and not update:
        raise InputError(
            f"has no {SPEED}", place=Place(file=str(baseline), key="metrics"),
            hint="update it with --speed, or leave the option out",
        )  # fmt: skip
    return held if speed is None else speed


def _subjects(path: Path, how: Running) -> list[Subject]:
    """What a path holds, or what a run of it gives."""
    from experiments.cli.subjects import read_subjects
    from workloads.errors import InputError, Place

    found = read_subjects(path, intervals=how.intervals)
    if found is None:
        return _run(path, how)
    if how.touches():
        place = Place(file=str(path))
        raise InputError("is a finished run, which options cannot change", place=place, hint="name a workload file")
    return found


def _run(path: Path, how: Running) -> list[Subject]:
    """Run a workload now, as often as asked."""
    from experiments.registries import WALL
    from reports.baseline import SPEED
    from reports.gate import check_target, check_traffic
    from reports.metrics import summarize
    from reports.subject import Subject
    from workloads.errors import InputError

    workload = options.load(path, how.settings, backend=how.backend, seed=how.seed, base_url=how.base_url)
    if workload.sweep:
        raise workload.error("sweep", "a gate looks at one run, not at a sweep", "remove the sweep: --set sweep=null")
    real = workload.backend.name in WALL
    if how.repeat > 1 and not real:
        raise InputError(
            f"--repeat {how.repeat}: a run on backend {workload.backend.name} gives the same figures every time",
            hint="--repeat is for wall-clock backends",
        )
    found: list[Subject] = []
    for number in range(how.repeat):
        run, measure = _once(workload, how, number)
        subject = Subject.of(run, summary=summarize(run, with_intervals=how.intervals))
        if how.against and not number:
            check_traffic(subject, *how.against)
            if not how.other_target:
                check_target(subject, *how.against)
        if how.speed and not real:
            subject = subject.with_figures(**{SPEED: measure()})
        found.append(subject)
    return found


def _once(workload: Any, how: Running, number: int) -> tuple[Any, Callable[[], float]]:
    """One run, in a folder of its own where --out names one; and what measures the simulator on the same workload."""
    from experiments import runner
    from experiments.cli.gate_speed import speed_ratio
    from experiments.cli.run import finish, run_one

    if how.out is None:
        resolved = runner.resolve(workload)
        data = runner.run(resolved)
    else:
        folder = how.out if how.repeat == 1 else how.out / f"run-{number + 1}"
        data = run_one(workload, folder, overwrite=how.overwrite, show=False)[1]
        resolved = runner.resolve(workload) if how.speed else None
    finish(data)
    return data, lambda: speed_ratio(resolved)


def _result(subjects: list[Subject], baseline: Path, speed: bool, other_target: bool) -> GateResult:
    from reports.baseline import SPEED
    from reports.gate import gate as check

    told = speed and all(SPEED in subject.summary for subject in subjects)
    return check(subjects, baseline, skip=() if told else (SPEED,), other_target=other_target)


def _show(result: GateResult, json: bool, quiet: bool) -> None:
    if json:
        from experiments.cli.run import print_json

        print_json(result.plain())
    elif not quiet:
        from experiments.cli.console import stdout
        from reports.console import print_gate

        print_gate(result, stdout())


def _update(subjects: list[Subject], baseline: Path, reason: str, exact: bool | None, json: bool, quiet: bool) -> None:
    from reports.gate import update_baseline

    written = update_baseline(subjects, baseline, reason, exact=exact)
    for s in subjects:
        if s.summary.get("failed"):
            failed = f"{s.summary['failed']:,} of {s.summary['requests']:,} requests failed in {s.name}"
            typer.echo(f"warning: {failed}; against this baseline as many may", err=True)
    if json:
        from experiments.cli.run import print_json

        print_json({"baseline": str(baseline), "reason": written.reason, "metrics": list(written.metrics)})
    elif not quiet:
        several = "s" * (len(subjects) > 1)
        typer.echo(f"wrote {baseline}: {len(written.metrics)} metrics of {len(subjects)} run{several}")
        for name, (before, after) in (written.history[-1]["changes"] if written.history else {}).items():
            typer.echo(f"  {name}: {before:.6g} -> {after:.6g}")
        if not written.reason:
            typer.echo('no reason is kept in it: --reason "…" says why the figures moved')
