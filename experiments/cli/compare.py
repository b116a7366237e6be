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
    _check_twice(paths)
    _check_names(name or [])
    _check_outputs(paths, out, markdown)
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
    _check_number(names, len(sweeps))
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

    file, number = _numbered(path)
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


def _numbered(path: Path) -> tuple[Path, int | None]:
    """A file and the number of the run in it that `#N` names."""
    head, mark, tail = str(path).rpartition("#")
    if mark and head and tail.isdecimal() and not path.exists():
        return Path(head), int(tail)
    return path, None


def _named(subjects: list[Subject], names: list[str]) -> list[Subject]:
    _check_number(names, len(subjects))
    return [s.named(names[i]) if i < len(names) else s for i, s in enumerate(subjects)]


def _check_twice(paths: list[Path]) -> None:
    """No run against itself; of a file with several, different ones may be."""
    from experiments.cli.paths import refuse_twice

    numbered = [_numbered(path) for path in paths]
    for number in {n or 1 for _, n in numbered}:
        refuse_twice(file for file, n in numbered if (n or 1) == number)


def _check_names(names: list[str]) -> None:
    """Names tell runs apart."""
    from reports.wording import clean
    from workloads.errors import InputError, Place

    told = [clean(name, 60).strip() for name in names]
    if not all(told):
        raise InputError("a name is empty", place=Place(key="--name"), hint="one name a run, in their order")
    if double := next((name for i, name in enumerate(told) if name in told[:i]), None):
        raise InputError(
            f"{double!r} is given twice", place=Place(key="--name"), hint="give each run a name of its own"
        )


def _check_outputs(paths: list[Path], out: Path | None, markdown: Path | None) -> None:
    """Nothing is written onto an input, into a folder that is one, or onto the other file."""
    from experiments.cli.paths import check_distinct, inside
    from experiments.cli.subjects import record_files
    from workloads.errors import InputError, Place

    written = [("--out", file) for file in (_page_files(out) if out is not None else ())]
    if markdown is not None and str(markdown) != "-":
        written.append(("--markdown", markdown))
    check_distinct(written)
    for path in (_numbered(path)[0] for path in paths):
        files = record_files(path)
        folder = path if path.is_dir() else path.parent if path.name in ("run.json", "sweep.json") else None
        for key, file in written:
            for each in files:
                check_distinct([("a run to compare", each), (key, file)])
            if folder is not None and inside(file, folder):
                raise InputError(
                    f"{file} lies in {folder}, which is compared", place=Place(key=key), hint="name another place"
                )


def _check_number(names: list[str], runs: int) -> None:
    from workloads.errors import InputError

    if len(names) > runs:
        raise InputError(f"--name is given {len(names)} times for {runs} runs", hint="one name a run, in their order")


def _page_files(out: Path) -> tuple[Path, Path]:
    """A file that ends in .html, or a folder with `report.html`; `compare.json` goes beside it."""
    if out.suffix.lower() in (".html", ".htm"):
        return out, out.with_suffix(".json")
    return out / REPORT, out / "compare.json"


def _write_page(out: Path, page: str, plain: dict) -> list[Path]:
    """Write the page and the data."""
    from reports import strict_json
    from reports.gate_output import write_text

    file, data = _page_files(out)
    write_text(file, page)
    write_text(data, strict_json.dumps(plain) + "\n")
    return [file, data]


def _write_markdown(target: Path, text: str) -> None:
    from reports.gate_output import write_text

    if str(target) == "-":
        typer.echo(text, nl=False)
    else:
        write_text(target, text)
