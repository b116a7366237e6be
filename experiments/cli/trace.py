"""`bench trace`: looking at traffic, converting it, making it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli import options

if TYPE_CHECKING:
    from workloads.traffic import Traffic

trace_app = typer.Typer(help="Look at traffic, convert it, make it.", no_args_is_help=True, rich_markup_mode=None)

Source = Annotated[
    Path, typer.Argument(metavar="TRACE", show_default=False, help="A trace file, or a bundled trace's name.")
]
Format = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Its format (`bench list traces`) [default: told from the file]."),
]
Start = Annotated[str | None, typer.Option(metavar="TIME", help="Where the window starts, such as 10min.")]
Duration = Annotated[str | None, typer.Option(metavar="TIME", help="How long the window is.")]
RateScale = Annotated[float, typer.Option(metavar="X", help="Arrivals so many times as fast.")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many requests.")]
ReaderOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="Tell the format's reader something. May be repeated."),
]
Figure = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw it too: .png, .svg or .pdf. An existing file is replaced.")
]
Target = Annotated[Path, typer.Argument(metavar="OUT", show_default=False, help="File to write: .jsonl or .jsonl.gz.")]


@trace_app.command()
def inspect(
    trace: Source,
    format: Format = None,
    start: Start = None,
    duration: Duration = None,
    rate_scale: RateScale = 1.0,
    limit: Limit = None,
    option: ReaderOptions = None,
    block_size: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens a block, for prefix sharing.")] = 16,
    figure: Figure = None,
    json: options.Json = False,
) -> None:
    """What is in a trace: rates, burstiness, lengths, prefix sharing. A workload file is taken too.

    \b
    Examples:
      bench trace inspect AzureLLMInferenceTrace_conv.csv
      bench trace inspect trace.jsonl --start 10min --duration 5min --json
      bench trace inspect workload.yaml --figure traffic.svg
    """
    from workloads.inspect import describe, histogram

    if trace.suffix in (".yaml", ".yml"):
        traffic = _specified(trace, None, None)
    else:
        traffic = _read(trace, format, start, duration, rate_scale, limit, option)
    facts = describe(traffic, block_size)
    if figure is not None:
        _draw(traffic, figure)
    if json:
        from experiments.cli.run import print_json

        print_json(facts)
        return
    for line in _lines(facts):
        typer.echo(line)
    for name in ("input_tokens", "output_tokens"):
        typer.echo(f"\n{name.replace('_', ' ')}")
        typer.echo(histogram(getattr(traffic, name)))


def _draw(traffic: Traffic, file: Path) -> None:
    """Arrivals, gaps and lengths as a picture."""
    from workloads.errors import InputError, OutputError, Place
    from workloads.inspect import figure

    if file.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"cannot draw {file.name}", place=Place(key="--figure"), hint="expected .png, .svg or .pdf")
    try:
        figure(traffic).savefig(file)
    except OSError as error:
        raise OutputError(f"cannot write {file}: {error.strerror or error}") from None


@trace_app.command()
def convert(
    trace: Source,
    out: Target,
    format: Format = None,
    start: Start = None,
    duration: Duration = None,
    rate_scale: RateScale = 1.0,
    limit: Limit = None,
    option: ReaderOptions = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a trace, or a window of it, in Twinserve's own format: one request a line.

    \b
    Examples:
      bench trace convert AzureLLMInferenceTrace_conv.csv.gz conv.jsonl.gz
      bench trace convert mooncake.jsonl part.jsonl --duration 10min --option spread=even
    """
    _write(_read(trace, format, start, duration, rate_scale, limit, option), out, overwrite, quiet)


@trace_app.command()
def synth(
    file: options.File,
    out: Target,
    seed: options.Seed = None,
    settings: options.Set = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Write the traffic of a workload file as a trace.

    Others can then replay exactly these requests. A `.synth.yaml` specification, as the bundled traces have, is taken
    too.

    \b
    Examples:
      bench trace synth workload.yaml requests.jsonl
      bench trace synth workload.yaml busy.jsonl --set traffic.synthetic.arrivals.rate=30 --seed 7
    """
    _write(_specified(file, seed, settings), out, overwrite, quiet)


def _of_workload(workload: Any) -> Traffic:
    """The traffic of a workload, before any limit is declared for it."""
    from experiments.traffic import make_traffic

    return make_traffic(workload)


def _specified(file: Path, seed: int | None, settings: list[str] | None) -> Traffic:
    """The traffic of a workload file, or of a `.synth.yaml` specification as the bundled traces have."""
    if not file.name.endswith(".synth.yaml"):
        return _of_workload(options.load(file, settings, seed=seed))
    from workloads.errors import InputError, Place
    from workloads.examples import make, read_synth

    if settings:
        place = Place(file=str(file))
        raise InputError("--set changes workload files, not a specification", place=place, hint="edit a copy")
    return make(file if seed is None else {**read_synth(file), "seed": seed})


def _read(
    trace: Path, format: str | None, start: str | None, duration: str | None, rate_scale: float, limit: int | None,
    option: list[str] | None,
) -> Traffic:  # fmt: skip
    from experiments.trace_path import find_trace
    from experiments.workload_file import parse_override
    from workloads.errors import InputError
    from workloads.readers import read_trace

    given = {}
    for text in option or ():
        try:
            override = parse_override(text)
        except InputError as error:
            raise InputError(error.message, hint="such as --option block_size=512") from None
        given[".".join(map(str, override.path))] = override.value
    return read_trace(
        find_trace(str(trace), Path()),
        format,
        start=start,
        duration=duration,
        rate_scale=rate_scale,
        limit=limit,
        **given,
    )


def _write(traffic: Traffic, out: Path, overwrite: bool, quiet: bool) -> None:
    from workloads.errors import InputError, OutputError
    from workloads.write import write_jsonl

    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise InputError(f"{out} should end in .jsonl or .jsonl.gz", hint="the only format that is written")
    if out.exists() and not overwrite:
        raise OutputError(f"{out} exists already (name another file, or --overwrite)")
    write_jsonl(traffic, out)
    if not quiet:
        for note in traffic.notes:
            typer.echo(note)
        typer.echo(f"wrote {len(traffic):,} requests to {out}")


def _lines(facts: dict) -> list[str]:
    from reports.wording import clean, number, seconds, share

    lines = [clean(facts["name"], 100)]
    sessions = f" in {facts['sessions']:,} sessions" if facts["sessions"] else ""
    lines.append(f"requests        {facts['requests']:,}{sessions} over {seconds(facts['duration_s'])}")
    if facts["turns"]:
        lines.append(f"turns           mean {number(facts['turns']['mean'])}, at most {facts['turns']['max']}")
    rate, peak = number(facts["rate_per_s"]), number(facts["peak_minute_per_s"])
    lines.append(f"rate            {rate} a second, {peak} in the busiest minute")
    gaps, minutes = number(facts["gap_cv"]), number(facts["minute_cv"])
    lines.append(f"burstiness      CV of gaps {gaps} (Poisson: 1), of counts a minute {minutes}")
    for key in ("input_tokens", "output_tokens"):
        law = facts[key]
        figures = ", ".join(f"{name} {number(law[name])}" for name in ("mean", "p50", "p95", "p99", "max"))
        lines.append(f"{key.replace('_', ' '):15} {figures}")
    lines.append(f"declared        {share(facts['declared_share'])} of the requests say max_tokens")
    prefix = facts["prefix"]
    lines.append(
        f"shared prefixes {share(prefix['token_share'])} of the input tokens, {share(prefix['request_share'])} of the "
        f"requests, in blocks of {prefix['block_size']} with an endless cache"
    )
    return [*lines, *(f"note: {clean(note)}" for note in facts["notes"])]
