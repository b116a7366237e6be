"""`bench quantize`: a quantized checkpoint from a plain one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import options
from experiments.cli.progress import Progress

if TYPE_CHECKING:
    from backends.quantization.make.checkpoint import Made

Calibration = Annotated[
    str, typer.Option("--calibration", metavar="TEXT", help="Text to learn from: a file, or python-docs.")
]
Samples = Annotated[int, typer.Option("--samples", min=1, metavar="N", help="Sequences of the text to learn from.")]
Length = Annotated[int, typer.Option("--length", min=16, metavar="N", help="Tokens of each.")]
Group = Annotated[
    int, typer.Option("--group", min=-1, metavar="N", help="Columns a scale; -1: a row; 0: the largest that fits.")
]


def quantize(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", show_default=False, help="Folder or hub id, in 16 or 32 bits.")
    ],
    mode: Annotated[str, typer.Option("--mode", metavar="NAME", show_default=False, help="See the list above.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", show_default=False, help="Folder to write.")],
    calibration: Calibration = "python-docs",
    samples: Samples = 64,
    length: Length = 512,
    group: Group = 0,
    asymmetric: Annotated[bool, typer.Option("--asymmetric", help="gptq, rtn: zeros of their own for groups.")] = False,
    act_order: Annotated[bool, typer.Option("--act-order", help="gptq: columns of large inputs first.")] = False,
    sparse: Annotated[
        float, typer.Option("--sparse", min=0.0, max=10.0, metavar="PERCENT", help="squeezellm: weights kept apart.")
    ] = 0.0,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a quantized copy of a model.

    It goes one layer at a time, and has the layout that serving engines read.

    Modes: int8, int8-w8a16, gptq-int4, gptq-int8, gptq-int3, awq-int4, squeezellm-4bit, squeezellm-3bit, fp8, fp8-dynamic,
    fp8-channel, fp8-block, nvfp4, nvfp4-a16, mxfp4, and rtn-int4 to compare with. gptq, awq, squeezellm, fp8 and nvfp4 learn
    from text.

    \b
    Examples:
      bench quantize models/smollm2 --mode gptq-int4 -o models/smollm2-gptq
      bench quantize models/smollm2 --mode squeezellm-3bit --sparse 0.45 --calibration my.txt -o models/small
      bench run workload.yaml --backend torch --set model=models/smollm2-gptq
    """
    from backends.extra import need_torch
    from experiments.cli.paths import check_apart, check_text
    from workloads.folders import check_replaceable

    need_torch("bench quantize")
    from backends.quantization.make.checkpoint import quantize_checkpoint
    from backends.quantization.make.recipes import CALIBRATED, Recipe, find_mode

    name = find_mode(mode)
    _check_options(name, asymmetric, act_order, sparse)
    source = model_folder(model)
    check_apart("--out", out, source, "the model")
    check_text("--out", out, calibration)
    check_replaceable(out, "config.json", overwrite=overwrite)
    ids = _ids(source, calibration, samples, length) if name in CALIBRATED else None
    recipe = Recipe(name, group, not asymmetric, act_order, sparse / 100)
    with Progress(f"quantizing to {name}", enabled=not (json or quiet)) as progress:
        made = quantize_checkpoint(source, out, recipe, ids, overwrite=overwrite, progress=progress)
    _show(made, out, json, quiet)


def model_folder(model: str) -> Path:
    """The folder of a model with its weights.

    Raises:
        InputError: there is none.
    """
    from backends.weights.source import find_source
    from workloads.errors import InputError, Place

    source = find_source(model)
    if not isinstance(source, Path) or not source.is_dir():
        raise InputError(f"{model} has no weights", place=Place(key="MODEL"), hint="give a folder with *.safetensors")
    return source


def _check_options(name: str, asymmetric: bool, act_order: bool, sparse: float) -> None:
    """No option without an effect."""
    from workloads.errors import InputError, Place

    rules = (
        ("--asymmetric", asymmetric, ("gptq", "rtn"), "gptq and rtn"), ("--act-order", act_order, ("gptq",), "gptq"),
        ("--sparse", sparse > 0, ("squeezellm",), "squeezellm"),
    )  # fmt: skip
    for option, given, modes, words in rules:
        if given and not name.startswith(modes):
            raise InputError(f"has no effect on {name}", place=Place(key=option), hint=f"it is of {words}")


def _ids(source: Path, calibration: str, samples: int, length: int) -> object:
    import torch

    from backends.weights.tokenizer import Tokenizer
    from experiments.quality_text import read_text, sequences

    text = read_text(calibration, "calibration")
    return torch.tensor(sequences(Tokenizer(source), text, samples, length))


def _show(made: Made, out: Path, json: bool, quiet: bool) -> None:
    told = {
        "folder": str(out), "mode": made.recipe.mode, "group": made.recipe.group if made.recipe.grouped else None,
        "layers": made.layers, "bits_per_weight": made.bits_per_weight, "bytes": made.bytes, "bytes_before": made.plain_bytes,
        "objective_vs_nearest": made.gain, "worst_objective_vs_nearest": made.worst,
        "notes": list(made.notes),
    }  # fmt: skip
    if json:
        from experiments.cli.run import print_json

        print_json(told)
    elif not quiet:
        group = f", groups of {made.recipe.group}" if made.recipe.grouped and made.recipe.group > 0 else ""
        typer.echo(
            f"{out}: {made.recipe.mode}{group}, {made.layers} layers at {made.bits_per_weight:.2f} bits a weight, "
            f"{made.bytes / 1e6:,.1f} MB (was {made.plain_bytes / 1e6:,.1f} MB)"
        )
        if made.gain is not None:
            typer.echo(
                f"its objective is {made.gain:.2f} of that of rounding to nearest (mean of layers; the worst {made.worst:.2f})"
            )
        for note in made.notes:
            typer.echo(f"note: {note}")
