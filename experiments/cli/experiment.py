"""`bench experiment`: published claims about serving, tried again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import options
from experiments.cli.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.claims.base import Result
    from experiments.claims.registry import Experiment
    from experiments.claims.target import Target

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
    from experiments.claims.target import ASKED, MODELLED
    from experiments.registries import REAL, REMOTE

    rows = [
        {
            "name": name,
            "title": find(name).TITLE,
            "notebook": f"experiments/notebooks/{notebook(name)}",
            "backends": ["sim"] if name in MODELLED else ["sim", *REAL, *([REMOTE] if name in ASKED else [])],
        }
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
    table.add_column("runs on", overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["title"], " ".join(row["backends"]))
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
    backend: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run on torch, triton or http, for real [default: simulate].")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="DIR", show_default=False, help="With --backend, the model [default: the source's]."),
    ] = None,
    load: options.Load = None,
    base_url: options.BaseUrl = None,
    requests: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="With --backend, at most so many of each run.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="With --backend, override a key of every run. May be repeated."
        ),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run experiments and say what became of each claim.

    Every claim is taken apart into checks with our figure beside the published one: all met, it holds; some, it holds in
    part; none, it does not hold. The notebooks in experiments/notebooks run the same code.

    A verdict is a result, not a failure: the exit code is 0 whatever it says.

    With --backend the same traffic and policies run on a real model here, on the wall clock, with as many tokens of KV as the
    source's GPU had room for; with --backend http, on a server, if traffic and load are all that changes. The verdict is then
    on this machine and model. What needs a kind of GPU, or is arithmetic, is refused.

    \b
    Examples:
      bench experiment run batching
      bench experiment run kv-waste sizing --out runs/claims
      bench experiment run all --small --json | jq '.[].verdicts[] | {claim, verdict}'
      bench experiment run batching --backend torch --model ./my-model --small --requests 100
      bench experiment run operating-point --backend http --base-url http://localhost:8000 --small --requests 100
    """
    from experiments.claims.registry import MODULES, find
    from experiments.claims.write import RESULT, print_result, write_result
    from experiments.cli.console import stdout
    from experiments.cli.output import check_folder
    from workloads.folders import check_replaceable

    chosen = list(MODULES) if ALL in names else list(dict.fromkeys(names))
    found = [find(name) for name in chosen]
    target = _target(found, backend, model, load, requests, settings, base_url)
    if out is not None:
        for name in chosen:
            check_replaceable(out / name, RESULT, overwrite=overwrite)
        check_folder(out)
    results: list[Result] = []
    with Progress("experiments", enabled=not (json or quiet)) as progress:
        for number, experiment in enumerate(found):
            progress(number, len(found), experiment.NAME)
            result = _once(target, experiment, small, lambda what, n=number: progress(n, len(found), what))
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


def _target(
    found: list[Experiment],
    backend: str | None,
    model: str | None,
    load: str | None,
    requests: int | None,
    settings: list[str] | None,
    base_url: str | None = None,
) -> Target | None:
    """The real engine that was asked for, before anything runs.

    Raises:
        InputError: options of a real engine without one, an unknown backend, or experiments that cannot run there.
    """
    from experiments.claims.target import Target, check_target
    from experiments.registries import REMOTE, WALL
    from experiments.workload_file import parse_override
    from workloads.errors import InputError, Place, unknown_name

    if backend is None and base_url is not None:
        backend = REMOTE
    if backend is None or backend == "sim":
        given = {"--model": model, "--load": load, "--base-url": base_url, "--requests": requests, "--set": settings}
        if key := next((key for key, value in given.items() if value), None):
            raise InputError("is for a real model", place=Place(key=key), hint=f"such as --backend torch {key} …")
        return None
    if backend not in WALL:
        raise unknown_name("backend", backend, ["sim", *WALL], place=Place(key="--backend"))
    if (backend == REMOTE) != (base_url is not None):
        what = "backend http needs the address of a server" if base_url is None else f"backend {backend} asks no server"
        raise InputError(
            what, place=Place(key="--base-url"), hint="such as --backend http --base-url http://localhost:8000"
        )
    target = Target(
        backend, model, load, requests, [parse_override(text) for text in settings or []], base_url=base_url
    )
    for experiment in found:
        check_target(target, experiment)
    return target


def _once(target: Target | None, experiment: Experiment, small: bool, tell: Callable[[str], None]) -> Result:
    if target is None:
        return experiment.run(small)
    from dataclasses import replace

    from experiments.claims.target import run_on

    own = replace(target, tell=lambda what: tell(f"{experiment.NAME}, {what}"), ran={}, unserved=(0, 0), runs=0)
    return run_on(own, experiment, small)
