"""`bench experiment`: published claims about serving, tried again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import options
from experiments.cli.progress import Progress

if TYPE_CHECKING:
    from experiments.claims.base import Result

ALL = "all"
experiment_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Try published claims about serving again."
)


@experiment_app.command("list")
def list_(json: options.Json = False) -> None:
    """The experiments there are.

    \b
    Examples:
      bench experiment list
    """
    from experiments.claims.registry import MODULES, find, notebook

    rows = [
        {"name": name, "title": find(name).TITLE, "notebook": f"experiments/notebooks/{notebook(name)}"}
        for name in MODULES
    ]
    if json:
        from experiments.cli.run import print_json

        print_json(rows)
        return
    from rich.table import Table

    from experiments.cli.console import stdout

    table = Table(box=None, pad_edge=False)
    table.add_column("name")
    table.add_column("about", overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["title"])
    stdout().print(table)


@experiment_app.command("run")
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False, help="Names of `list`, or all.")],
    small: Annotated[bool, typer.Option("--small", help="Fewer requests: quicker, and rougher.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", show_default=False, help="Write result.json, report.md and figures."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace results that are already there.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run experiments and say what became of each claim.

    Every claim is taken apart into checks with our figure beside the published one: all met, it holds; some, it holds in
    part; none, it does not hold. The notebooks in experiments/notebooks run the same code.

    A verdict is a result, not a failure: the exit code is 0 whatever it says.

    \b
    Examples:
      bench experiment run batching
      bench experiment run kv-waste sizing --out runs/claims
      bench experiment run all --small --json | jq '.[].verdicts[] | {claim, verdict}'
    """
    from experiments.claims.registry import MODULES, find
    from experiments.claims.write import RESULT, print_result, write_result
    from experiments.cli.console import stdout
    from experiments.cli.output import check_folder
    from workloads.folders import check_replaceable

    chosen = list(MODULES) if ALL in names else list(dict.fromkeys(names))
    found = [find(name) for name in chosen]
    if out is not None:
        for name in chosen:
            check_replaceable(out / name, RESULT, overwrite=overwrite)
        check_folder(out)
    results: list[Result] = []
    with Progress("experiments", enabled=not (json or quiet)) as progress:
        for number, experiment in enumerate(found):
            progress(number, len(found), experiment.NAME)
            result = experiment.run(small)
            results.append(result)
            if out is not None:
                write_result(result, out / result.name, overwrite=overwrite)
            if not (json or quiet):
                print_result(result, stdout())
    if json:
        from experiments.cli.run import print_json

        print_json([result.plain() for result in results])
    elif out is not None and not quiet:
        typer.echo(f"Files: {out}")
