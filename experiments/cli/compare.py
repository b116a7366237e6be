"""`bench compare`: runs, results of other tools, or sweeps held against each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli import options

if TYPE_CHECKING:
    from reports.subject import Subject

REPORT = "report.html"


def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="A B…", show_default=False, help="Run folders, sweeps, or result files of other tools."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE|DIR", show_default=False, help="Write a page, and the data beside it."
        ),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Write the table as Markdown; - prints it.")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", metavar="TEXT", help="What to call the runs, in their order.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare although the traffic differs.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Hold runs against the first: differences with intervals.

    Also tells what was set otherwise. Takes run folders, whole sweeps, and result files of vLLM, SGLang, guidellm, AIPerf and
    inference-perf. A file with several runs is named with the run's number: results.jsonl#2.

    Runs of different traffic are refused, with what differs (exit code 2), unless --force is given. Intervals are of the ratio,
    95 %, by a bootstrap over blocks of successive requests; with the same traffic requests are held against themselves.

    \b
    Examples:
      bench compare runs/base runs/fp8
      bench compare runs/base runs/fp8 runs/int4 --out fp8.html
      bench compare runs/chat vllm-result.json --name simulated --name measured
      bench compare runs/sweep-a runs/sweep-b --out sweeps.html
      bench compare runs/base runs/fp8 --markdown - >> "$GITHUB_STEP_SUMMARY"
    """
    from workloads.errors import InputError

    sweeps = [_is_sweep(path) for path in paths]
    if any(sweeps) and not all(sweeps):
        raise InputError(
            f"{paths[sweeps.index(True)]} is a sweep and {paths[sweeps.index(False)]} is not",
            hint="compare sweeps with sweeps, and a point of a sweep (…/points/NAME) with a run",
        )
    if len(set(map(str, paths))) < len(paths):
        raise InputError("a run is named twice", hint="name different runs")
    result, page, text, show = (_of_sweeps if all(sweeps) else _of_runs)(paths, name or [], force)
    if out is not None:
        written = _write_page(out, page(), result.plain())
    if markdown is not None:
        _write_markdown(markdown, text())
    if json:
        from experiments.cli.run import print_json

        print_json(result.plain())
    elif not quiet and str(markdown) != "-":
        show()
        if out is not None:
            typer.echo(f"Files: {', '.join(map(str, written))}")


def _is_sweep(path: Path) -> bool:
    from reports.compare.sweeps import SWEEP

    return (path / SWEEP).is_file() if path.is_dir() else path.name == SWEEP and path.is_file()


def _of_runs(paths: list[Path], names: list[str], force: bool) -> tuple[Any, Any, Any, Any]:
    from experiments.cli.console import stdout
    from reports.compare import compare as held
    from reports.compare.console import print_comparison
    from reports.compare.text import markdown

    subjects = _named([s for path in paths for s in _subjects(path, alone=len(paths) == 1)], names)
    result = held(subjects, force=force)

    def page() -> str:
        from reports.html.compare_page import render_comparison

        return render_comparison(result)

    return result, page, lambda: markdown(result), lambda: print_comparison(result, stdout())


def _of_sweeps(paths: list[Path], names: list[str], force: bool) -> tuple[Any, Any, Any, Any]:
    from dataclasses import replace

    from experiments.cli.console import stdout
    from reports.compare import compare_sweeps, read_sweep
    from reports.compare.console import print_sweeps
    from reports.compare.text import markdown_sweeps
    from reports.wording import clean

    sweeps = [read_sweep(path if path.is_dir() else path.parent) for path in paths]
    _check_names(names, len(sweeps))
    sweeps = [replace(s, name=clean(names[i], 60)) if i < len(names) else s for i, s in enumerate(sweeps)]
    result = compare_sweeps(sweeps, force=force)

    def page() -> str:
        from reports.html.compare_page import render_sweep_comparison

        return render_sweep_comparison(result)

    return result, page, lambda: markdown_sweeps(result), lambda: print_sweeps(result, stdout())


def _subjects(path: Path, *, alone: bool) -> list[Subject]:
    """The run of a path; of a file with several, the one that `#N` names, or all where it is the only path."""
    from experiments.cli.subjects import read_subjects
    from workloads.errors import InputError, Place

    file, number = path, None
    head, mark, tail = str(path).rpartition("#")
    if mark and tail.isdigit() and not path.exists():
        file, number = Path(head), int(tail)
    found = read_subjects(file)
    if found is None:
        from reports.imports import read_results

        found = read_results(file)  # says what it is not
    if number is not None:
        if not 1 <= number <= len(found):
            raise InputError(f"has {len(found)} runs, there is no #{number}", place=Place(file=str(file)))
        return [found[number - 1]]
    if len(found) > 1 and not alone:
        listed = ", ".join(f"{file.name}#{i} {s.name}" for i, s in enumerate(found[:6], 1))
        raise InputError(f"holds {len(found)} runs", place=Place(file=str(file)), hint=f"name one: {listed}")
    return found


def _named(subjects: list[Subject], names: list[str]) -> list[Subject]:
    _check_names(names, len(subjects))
    return [s.named(names[i]) if i < len(names) else s for i, s in enumerate(subjects)]


def _check_names(names: list[str], runs: int) -> None:
    from workloads.errors import InputError

    if len(names) > runs:
        raise InputError(f"--name is given {len(names)} times for {runs} runs", hint="one name a run, in their order")


def _write_page(out: Path, page: str, plain: dict) -> list[Path]:
    """A file that ends in .html, or a folder with `report.html`; `compare.json` goes beside it."""
    from reports import strict_json
    from reports.gate_output import write_text

    file = out if out.suffix.lower() in (".html", ".htm") else out / REPORT
    data = file.with_suffix(".json") if file is out else out / "compare.json"
    write_text(file, page)
    write_text(data, strict_json.dumps(plain) + "\n")
    return [file, data]


def _write_markdown(target: Path, text: str) -> None:
    from reports.gate_output import write_text

    if str(target) == "-":
        typer.echo(text, nl=False)
    else:
        write_text(target, text)
