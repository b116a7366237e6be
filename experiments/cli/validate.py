"""`bench validate`: the simulator held against measured tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli import options
from experiments.cli.output import check_folder
from experiments.cli.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130
DEFAULT_OUT = Path("runs/validation")
_SHOWN = 25  # groups of a table on the console


def validate(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH…", show_default=False, help="Measured tables, folders of runs, result files."),
    ],
    source: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this source or table. May be repeated.")
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this metric. May be repeated.")] = None,
    subset: Annotated[
        int, typer.Option(min=0, metavar="N", help="At most N measurements, spread over the tables.")
    ] = 0,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Simulations at once.")] = 2,
    fit_deployment: Annotated[
        bool, typer.Option("--fit-deployment", help="Fit one figure a deployment on half of its points.")
    ] = False,
    operators: Annotated[
        bool, typer.Option("--operators", help="PATHs are kernel times: hold the prices of operators against them.")
    ] = False,
    refit: Annotated[bool, typer.Option(help="With --operators: also fit each group to one half of its rows.")] = True,
    skip_excluded: Annotated[
        bool, typer.Option("--skip-excluded", help="Do not simulate cells that a rule leaves out.")
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for cells, figure, page and known results.")
    ] = DEFAULT_OUT,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Simulate what somebody measured, and tell how far off it is.

    A table has one measured value a row (columns source, engine, model, gpu, tp, isl, osl, concurrency_or_rate, metric,
    value, load_kind, …); each row's protocol is reproduced: static batches, offline runs, closed and open loops, single
    phases. Folders of whole runs and result files of serving benchmarks work as well.

    Simulations are kept in the folder and not repeated while neither the cell nor the simulator changed; Ctrl-C keeps
    what is done.

    \b
    Examples:
      bench validate measured/*.csv
      bench validate measured --source trtllm-perf-docs-ifb --out runs/trtllm
      bench validate measured --metric tpot_ms --subset 200
      bench validate measured --source silicon --fit-deployment --json | jq .groups.engine
      bench validate --operators kernel-times/
    """
    if operators:
        _operators(paths, out, refit=refit, json=json, quiet=quiet)
        return
    from experiments.validation.cells import record
    from experiments.validation.files import POINTS, write
    from experiments.validation.pool import Store
    from experiments.validation.validate import choose, read_rows
    from experiments.validation.validate import validate as run_validation

    check_folder(out)
    rows = choose(read_rows(paths), sources=source or (), metrics=metric or (), subset=subset)
    with Progress("validating", enabled=not (json or quiet)) as progress:
        found = run_validation(
            rows,
            jobs=jobs,
            store=Store(out / POINTS),
            progress=progress,
            everything=not skip_excluded,
            fit=fit_deployment,
        )
    records = [record(cell) for cell in found.cells]
    if not found.complete:
        found.notes.append("interrupted: only cells that were simulated before have errors")
    result = write(found, records, out, ", ".join(path.name for path in paths[:4]))
    _tell(records, result, out, json, quiet)
    if not found.complete:
        typer.echo(f"interrupted; what is done is kept in {out}; the same command goes on from there", err=True)
        raise typer.Exit(INTERRUPTED)


def _operators(paths: list[Path], out: Path, *, refit: bool, json: bool, quiet: bool) -> None:
    from experiments.validation_ops import show

    with Progress("validating operators", enabled=not (json or quiet)) as progress:
        rows, found = show.run(paths, out, refit=refit, tell=lambda words: progress(0, 1, words))
    if json:
        from experiments.cli.run import print_json

        groups = show.records(found)
        print_json(
            {"groups": groups, "left_out": dict(rows.skipped), "impossible": rows.impossible, "folder": str(out)}
        )
    elif not quiet:
        from experiments.cli.console import stdout

        show.show(rows, found, out, stdout())


def _tell(records: list[dict], result: dict[str, Any], out: Path, json: bool, quiet: bool) -> None:
    if json:
        from experiments.cli.run import print_json

        print_json({**result, "folder": str(out)})
    elif not quiet:
        from experiments.cli.console import stdout

        _show(records, result, out, stdout())


def _show(records: list[dict], result: dict[str, Any], out: Path, console: Console) -> None:
    from rich.text import Text

    from reports.validation import GROUPS, by, errors, kept, worst
    from reports.validation_page import describe, row_of
    from reports.wording import number

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style), soft_wrap=True)

    say(
        f"{len(records):,} measured values, {result['points']:,} simulations ({result['known_points']:,} known), "
        f"{result['wall_seconds']:,.0f} s"
    )
    for rule, each in result["exclusions"].items():
        simulated = "simulated, not counted" if each["simulated"] else "not simulated"
        say(f"  left out: {each['cells']:,} cells, {rule}: {each['reason']} ({simulated})", "dim")
    counted = kept(records)
    overall = [("counted", errors(counted)), ("with what rules leave out", errors(records))]
    overall += [(role, errors([r for r in records if r["role"] == role])) for role in ("fitted", "held out")]
    _table(console, "all", [(name, row_of(e)) for name, e in overall if e is not None])
    for key in GROUPS:
        rows = [(str(name), row_of(e)) for name, e in by(counted, key).items()]
        _table(console, key, rows[:_SHOWN])
    failed: dict[str, int] = {}
    for r in counted:
        if r["error"]:
            failed[r["error"][:140]] = failed.get(r["error"][:140], 0) + 1
    for error, count in sorted(failed.items(), key=lambda item: -item[1])[:8]:
        say(f"  no prediction for {count:,}: {error}", "red")
    warned = result["warned"]
    say(
        f"Warned: {warned['share']:.1%} of the cells; of {warned['far']:,} off by more than 3x, "
        f"{warned['caught']:,} were warned of."
    )
    shares = {name: share for name, share in result["inside"].items() if share is not None}
    if shares:
        apart = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if name != "all")
        say(f"Inside the prediction's 80 % interval: {shares['all']:.0%} of the cells ({apart}).")
    say(f"Measurements beyond what the hardware allows: {result['implausible']:,} (not counted).")
    say("Worst:")
    for r in worst(counted, 5):
        say(f"  {describe(r)}: measured {number(r['measured'])}, predicted {number(r['predicted'])}")
    say("Calibrated on: " + "; ".join(sorted({s.split(":")[0] for s in result["calibrated_on"]})[:12]), "dim")
    for note in result["notes"]:
        say(note)
    say(f"Files: {out}   (open {out / 'report.html'})")


def _table(console: Console, title: str, rows: list[tuple[str, list[str]]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from reports.validation_page import HEADS
    from reports.wording import clean

    table = Table(title=Text(title, "bold"), title_justify="left")
    table.add_column(title, overflow="fold")
    for head in HEADS:
        table.add_column(head, justify="right")
    for name, values in rows:
        table.add_row(Text(clean(name, 60)), *values)
    if rows:
        console.print(table)
