"""`bench quality`: what quantization costs a model in quality."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import options
from experiments.cli.progress import Progress
from experiments.cli.quantize import Calibration, Group, Length, Samples, model_folder

if TYPE_CHECKING:
    from reports.quality import Quality


def quality(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", show_default=False, help="Folder or hub id, in 16 or 32 bits.")
    ],
    modes: Annotated[
        list[str] | None,
        typer.Option(
            "--modes",
            "--mode",
            metavar="NAMES",
            show_default=False,
            help="Modes of bench quantize, folders of quantized checkpoints, kv-DTYPE, or both as MODE+kv-DTYPE.",
        ),
    ] = None,
    data: Annotated[str, typer.Option(metavar="TEXT", help="Text to predict: a file, or python-docs.")] = "python-docs",
    calibration: Calibration = "python-docs",
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens to score, about.")] = 4096,
    window: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens of the sliding window.")] = 512,
    stride: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens by which it slides; these are scored.")] = 256,
    samples: Samples = 32,
    length: Length = 512,
    group: Group = 0,
    backend: Annotated[str, typer.Option(metavar="NAME", help="torch or triton.")] = "torch",
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda or auto.")] = "auto",
    dtype: Annotated[
        str, typer.Option(metavar="NAME", help="Of what is not quantized: bf16, fp16, fp32, auto.")
    ] = "auto",
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", show_default=False, help="Keep the checkpoints that are made here.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", show_default=False, help="Folder for JSON, table, figure."),
    ] = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure what quantization costs a model in quality.

    Each mode is made as bench quantize makes it, run by the engine on a sliding window over a text, and compared token by
    token with the model's own predictions: perplexity, KL divergence, top-1 agreement. Intervals of 95 % are from drawing
    whole windows again. Speed is this machine's.

    \b
    Examples:
      bench quality models/smollm2 --out quality
      bench quality models/smollm2 --modes int8,gptq-int4,fp8+kv-fp8-e4m3 --data my.txt --tokens 16384
      bench quality models/llama --modes models/llama-awq --device cuda --backend triton
    """
    from backends.extra import need_torch
    from workloads.folders import check_replaceable, whole_folder

    need_torch("bench quality")
    from experiments.quality import DEFAULT_MODES, Settings, measure_quality, parse_modes
    from experiments.quality_text import read_text
    from reports.quality import FILE

    if out is not None:
        check_replaceable(out, FILE, overwrite=overwrite)
    wanted = parse_modes(modes or DEFAULT_MODES)
    _check_places(
        out, keep, Path(model), [each.folder for each in wanted if each.folder is not None], (data, calibration)
    )
    _check(backend, device)
    texts = read_text(data, "evaluation"), read_text(calibration, "calibration")
    source = model_folder(model)
    settings = Settings(window, stride, tokens, samples, length, group, device, dtype, backend)
    with Progress("measuring", enabled=not (json or quiet)) as progress:
        found = measure_quality(source, wanted, *texts, settings, keep=keep, progress=progress)
    if out is not None:
        from reports.quality import write_quality
        from reports.quality_figure import draw

        with whole_folder(out, FILE, overwrite=overwrite) as partial:
            write_quality(found, partial)
            draw(found, partial / "quality.svg")
    _show(found, out, json, quiet)


def _check_places(
    out: Path | None, keep: Path | None, model: Path, checkpoints: list[Path], texts: tuple[str, str]
) -> None:
    """Nothing that is written takes the place of a model, a checkpoint, a text, or of what is kept."""
    from experiments.cli.paths import check_apart, check_text

    sources = [(model, "the model"), *((folder, "a checkpoint to measure") for folder in checkpoints)]
    for source, what in sources:
        if out is not None:
            check_apart("--out", out, source, what)
        if keep is not None:
            check_apart("--keep", keep, source, what, around=True)
    if out is not None:
        for text in texts:
            check_text("--out", out, text)
        if keep is not None:
            check_apart("--out", out, keep, "the folder of --keep", within=True)


def _check(backend: str, device: str) -> None:
    from workloads.errors import InputError, Place

    for key, value, known in (
        ("--backend", backend, ("torch", "triton")),
        ("--device", device, ("cpu", "cuda", "auto")),
    ):
        if value not in known:
            raise InputError(f"unknown {key[2:]} {value!r}", place=Place(key=key), hint=" or ".join(known))


def _show(found: Quality, out: Path | None, json: bool, quiet: bool) -> None:
    from reports.quality import SHORT_COLUMNS, as_json, short_cells

    if json:
        from experiments.cli.run import print_json

        print_json(as_json(found))
        return
    if quiet:
        return
    from rich.markup import escape
    from rich.table import Table

    from experiments.cli.console import stdout

    console = stdout()
    machine = found.machine
    console.print(
        f"{found.model} on {machine['device']} ({machine['backend']}, {machine['dtype']}): {found.tokens:,} tokens of "
        f"{found.text['name']}, windows of {found.window}, each token with at least {found.window - found.stride} before it",
        markup=False,
    )
    table = Table(box=None, pad_edge=False)
    for name in SHORT_COLUMNS:
        table.add_column(name, justify="left" if name == "mode" else "right", no_wrap=True)
    for row in found.rows:
        table.add_row(*(escape(cell) for cell in short_cells(row)))
    console.print(table)
    for notice in found.notices:
        console.print(f"note: {notice}", markup=False)
    if out is not None:
        console.print(f"{out}: quality.json, quality.md, quality.svg", markup=False)
