"""`bench sweep`: every point of a grid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import options
from experiments.cli.output import check_folder, claim_sweep_folder, leave_unused
from experiments.cli.progress import Progress

if TYPE_CHECKING:
    from experiments.schema import Workload
    from experiments.sweep import SweepResult

INTERRUPTED, NOTHING_FINISHED = 130, 3
# Figures of a point, the most wanted first: a narrow window has room for the first few.
COLUMNS = (
    ("output tok/s", "output_throughput"), ("p95 TTFT ms", "p95_ttft_ms"), ("p50 TPOT ms", "median_tpot_ms"),
    ("req/s", "request_throughput"), ("p50 TTFT ms", "median_ttft_ms"), ("p95 TPOT ms", "p95_tpot_ms"),
)  # fmt: skip


def sweep(
    file: options.File,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUES", help="Sweep a key, such as load.concurrency='1..64 log2'. May be repeated."),
    ] = None,
    out: options.Out = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Points at once [default: all cores].")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Run points on a Ray cluster: ray://HOST:10001, HOST:6379, auto, or local."
        ),
    ] = None,
    figures: Annotated[
        list[str] | None,
        typer.Option(metavar="svg|pdf|png", help="Also write every figure to DIR/figures. May be repeated."),
    ] = None,
    backend: options.Backend = None,
    gpu: options.Gpu = None,
    load: options.Load = None,
    base_url: options.BaseUrl = None,
    seed: options.Seed = None,
    settings: options.Set = None,
    step: options.Step = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Run points again that are already there.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a grid of workloads and draw curves.

    The grid is the `sweep:` section of the file, with what --over adds to it.

    VALUES are a list [1,2,4], values with commas between (vllm,sglang), a range (1..8, 32..256 step 32), a log range
    (1..256 log2) or {from: 1, to: 64, points: 7, scale: log}. points.parquet has one row a point: every setting, every figure.

    A sweep that was stopped, even killed, goes on where it was when it is started again with the same --out. A point that
    cannot be run (a model that does not fit) is marked as failed; the others go on.

    \b
    Examples:
      bench sweep workload.yaml
      bench sweep workload.yaml --over load.concurrency='1..256 log2' --out runs/curve
      bench sweep workload.yaml --over traffic.trace.rate_scale='{log: [0.5, 8, 9]}' --over engine.preset=vllm,sglang
      bench sweep workload.yaml --over load.concurrency='1..64 log2' --figures svg --figures pdf
      bench sweep workload.yaml --ray ray://head:10001
      bench sweep workload.yaml --backend torch --set model=./my-model --over load.concurrency=1,2,4
      bench sweep workload.yaml --base-url http://localhost:8000 --set load.mode=closed --over load.concurrency=1,4,16
    """
    kinds = _figure_kinds(figures)
    workload = options.load(
        file, settings, over=over, backend=backend, gpu=gpu, seed=seed, weights=load, base_url=base_url
    )
    run_and_show(
        workload, out, workers=workers, step=step, overwrite=overwrite, json=json, quiet=quiet, ray=ray, figures=kinds
    )


def _figure_kinds(figures: list[str] | None) -> tuple[str, ...]:
    """What `--figures` asked for, without doubles.

    Raises:
        InputError: there is no such kind.
    """
    from reports.html.sweep_export import KINDS
    from workloads.errors import Place, unknown_name

    asked = tuple(dict.fromkeys(part.strip().lower() for text in figures or [] for part in text.split(",")))
    for kind in asked:
        if kind not in KINDS:
            raise unknown_name("kind of figure", kind, KINDS, place=Place(key="--figures"))
    return asked


def run_and_show(
    workload: Workload,
    out: Path | None,
    *,
    workers: int | None,
    step: bool,
    overwrite: bool,
    json: bool,
    quiet: bool,
    ray: str | None = None,
    figures: tuple[str, ...] = (),
) -> None:
    """Run a sweep, print what it found, end with its exit code.

    Raises:
        typer.Exit: 130 after Ctrl-C; finished points are kept. 3 when no request of any point finished.
    """
    from experiments.sweep import check_sweep_folder, run_sweep

    if out is not None:
        check_sweep_folder(out)
        check_folder(out)
    folder = claim_sweep_folder(workload.name) if out is None else out
    show = not (json or quiet)
    try:
        with Progress(workload.name, enabled=show) as progress:
            most = workers or (1 if ray is not None else default_workers(workload))
            result = run_sweep(
                workload, folder, workers=most, stretch=not step, overwrite=overwrite, ray=ray, on_point=progress
            )
    finally:
        if out is None:
            leave_unused(folder)
    if figures:
        from experiments.sweep_files import write_figures

        write_figures(result, figures)
    if json:
        from experiments.cli.run import print_json
        from experiments.sweep_files import sweep_json

        print_json({**sweep_json(result), "folder": str(folder)})
    elif not quiet:
        _show(result)
    if not result.complete:
        done = sum(bool(point.status) for point in result.points)
        typer.echo(
            f"interrupted; {done} of {len(result.points)} points are kept in {folder}; the same command with "
            f"--out {folder} goes on from there",
            err=True,
        )
        raise typer.Exit(INTERRUPTED)
    if not any(point.summary.get("completed", 1) for point in result.points if point.summary):
        typer.echo("error: no request of any point finished", err=True)
        raise typer.Exit(NOTHING_FINISHED)


def default_workers(workload: Workload) -> int:
    """As many points at once as there are cores, in simulation; one where time is real."""
    import os

    if workload.backend.name != "sim":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _show(result: SweepResult) -> None:
    from rich.table import Table
    from rich.text import Text

    from experiments.cli.console import stdout
    from experiments.sweep import short_name
    from experiments.sweep_files import knee_sentences, saturation_sentences
    from experiments.sweep_warnings import sweep_warnings
    from reports.wording import clean, naming, number, short_keys

    console = stdout()
    named = [naming(values, 60) for values in result.axes.values()]
    names = [
        [say(value) for say, value in zip(named, point.values.values(), strict=True)] for point in result.points
    ]
    titles = list(short_keys(result.axes).values())
    room = console.width - sum(max(map(len, column)) + 3 for column in zip(titles, *names, strict=True)) - 1
    columns = COLUMNS[: max(1, sum(room >= 15 * (i + 1) for i in range(len(COLUMNS))))]
    table = Table(title=Text(clean(result.name, 80), "bold"), title_justify="left")
    for title, values in zip(titles, result.axes.values(), strict=True):
        numbers = all(isinstance(value, int | float) for value in values)
        table.add_column(Text(title), justify="right" if numbers else "left", overflow="fold")
    for title, _ in columns:
        table.add_column(Text(title), justify="right")
    for point, cells in zip(result.points, names, strict=True):
        row = [Text(cell) for cell in cells]
        if point.summary:
            row += [Text(number(point.summary.get(key))) for _, key in columns]
        else:
            row.append(Text("failed", "red") if point.error else Text("not run", "dim"))
        table.add_row(*row)
    console.print(table)
    for point in result.points:
        if point.error:
            console.print(Text(f"failed: {short_name(point.values)}: {clean(point.error)}", "red"), soft_wrap=True)
    for warning in sweep_warnings(result):
        console.print(Text(f"warning: {clean(warning)}", "yellow"), soft_wrap=True)
    for sentence in knee_sentences(result):
        console.print(Text(f"Knee: {sentence}"))
    for sentence in saturation_sentences(result):
        console.print(Text(sentence, "red" if "Overloaded" in sentence else "yellow"), soft_wrap=True)
    if result.reused:
        console.print(Text(f"{result.reused} of {len(result.points)} points were there already"))
    console.print(Text(f"Files: {result.folder}   (open {result.folder / 'report.html'})"), soft_wrap=True)
