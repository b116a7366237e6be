"""`bench report`: a run folder, shown and rendered again; results of other tools made into one; exports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli import options

if TYPE_CHECKING:
    from reports.run_data import RunData
    from reports.subject import Subject

TABLES, FIGURES, VLLM = ("csv", "parquet"), ("svg", "pdf", "png"), "vllm-json"
FORMATS = (*TABLES, VLLM, *FIGURES)
EXPORT, VLLM_FILE = "export", "vllm.json"


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", show_default=False, help="A run folder, or a result file of another tool.")
    ],
    export: Annotated[
        list[str] | None,
        typer.Option("--export", metavar="|".join(FORMATS), help="Write files for other programs. May be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", show_default=False,
            help="Folder for exports [default: RUN/export]; of another tool's results, the run folder to make.",
        ),
    ] = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:  # fmt: skip
    """Show a run again and renew its page; export it.

    Useful after an upgrade, or with a folder that somebody sent you. Metrics are computed anew from the recorded requests.

    A result file of vLLM, SGLang, guidellm, AIPerf or inference-perf that holds every request is shown too, and with --out
    becomes a run folder, for `bench compare`, `bench gate`, a page and exports.

    \b
    Examples:
      bench report runs/chat-1
      bench report runs/chat-1 --json | jq .summary.p99_ttft_ms
      bench report runs/chat-1 --export csv --export svg --out paper/
      bench report vllm-result.json --out runs/measured
    """
    from reports.metrics import summarize

    wanted = _formats(export)
    _check_out(run, out, wanted)
    subject = _subject(run)
    measured = subject is not None
    data = _data(subject, run)
    summary = summarize(data)
    if measured and out is not None and not wanted:
        from reports.run_folder import write_run

        write_run(data, out, overwrite=overwrite)
        run, measured = out, False
    elif not measured:
        _renew(run, data, summary)
    files = _export(data, summary, wanted, out or (run if run.is_dir() else run.parent) / EXPORT) if wanted else []
    if json:
        from experiments.cli.run import print_json
        from reports.run_folder import head_of

        print_json({**head_of(data, summary), "folder": str(run), "exported": [str(f) for f in files]})
    elif not quiet:
        _show(data, summary, None if measured else run, files)


def _formats(export: list[str] | None) -> list[str]:
    from workloads.errors import unknown_name

    for name in export or ():
        if name not in FORMATS:
            raise unknown_name("format", name, FORMATS)
    return list(dict.fromkeys(export or ()))


def _check_out(run: Path, out: Path | None, wanted: list[str]) -> None:
    """Exports go into no run folder and onto no input; a run folder that is made does not replace what it is made from.

    Raises:
        InputError: they would.
    """
    from experiments.cli.paths import check_apart, check_distinct
    from reports.run_folder import RUN
    from workloads.errors import InputError, Place

    if out is None:
        return
    check_apart("--out", out, run, "what is read", within=True, around=bool(wanted))
    if not wanted:
        return
    if (out / RUN).is_file():
        hint = f"such as {out / EXPORT}"
        raise InputError(
            f"{out} is a run folder, in which exports are not written", place=Place(key="--out"), hint=hint
        )
    if VLLM in wanted:
        check_distinct([("what is read", run), ("--out", out / VLLM_FILE)])


def _subject(path: Path) -> Subject | None:
    """What another tool measured; None for a run folder of ours.

    Raises:
        InputError: the file holds several runs.
    """
    from reports.imports import is_result, read_results
    from reports.run_folder import RUN
    from workloads.errors import InputError, Place

    if (path / RUN).is_file() or path.name == RUN or not is_result(path):
        return None
    found = read_results(path)
    if len(found) > 1:
        raise InputError(
            f"holds {len(found)} runs", place=Place(file=str(path)), hint="`bench compare` shows them beside each other"
        )
    return found[0]


def _data(subject: Subject | None, path: Path) -> RunData:
    from reports.run_folder import RUN, read_run
    from workloads.errors import InputError, Place

    if subject is None:
        return read_run(path.parent if path.name == RUN and path.is_file() else path)
    if subject.data is None:
        raise InputError(
            "holds a summary without requests, of which no report can be made", place=Place(file=str(path)),
            hint="save the requests too (vLLM: --save-detailed, SGLang: --output-details); compare and gate take it as it is",
        )  # fmt: skip
    return subject.data


def _renew(run: Path, data: RunData, summary: dict[str, Any]) -> None:
    from reports.html import render_report
    from reports.run_folder import REPORT, RUN
    from reports.write_file import replace_text
    from workloads.errors import OutputError

    page = (run.parent if run.name == RUN else run) / REPORT
    try:
        replace_text(page, render_report(data, summary))
    except OSError as error:
        raise OutputError(f"cannot write {page}: {error.strerror or error}") from error


def _export(data: RunData, summary: dict[str, Any], wanted: list[str], folder: Path) -> list[Path]:
    """Write every format asked for.

    Raises:
        OutputError: they cannot be written.
    """
    from reports.export import write_vllm_result
    from reports.export_tables import write_csv, write_parquet
    from workloads.errors import OutputError

    files: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if "csv" in wanted:
            files += write_csv(data, summary, folder)
        if "parquet" in wanted:
            files += write_parquet(data, folder)
        if VLLM in wanted:
            files.append(folder / VLLM_FILE)
            write_vllm_result(data, files[-1], summary, detailed=True)
        if figures := [name for name in wanted if name in FIGURES]:
            from reports.figures import export_run_figures

            files += export_run_figures(data, folder, figures)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
    return files


def _show(data: RunData, summary: dict[str, Any], out: Path | None, files: list[Path]) -> None:
    from experiments.cli.console import stdout
    from reports.console import print_summary

    print_summary(data, summary, stdout(), out=out)
    for note in dict.fromkeys(data.notes) if out is None else ():
        typer.echo(f"note: {note}")
    for file in files:
        typer.echo(f"wrote {file}")
