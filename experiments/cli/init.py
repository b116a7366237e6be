"""`bench init`: a workload file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli import options


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("workload.yaml"),
    quiet: options.Quiet = False,
) -> None:
    """Write a commented workload file.

    It runs as it is. An existing file is never replaced.

    \b
    Examples:
      bench init
      bench init experiments/chat.yaml && bench run experiments/chat.yaml
    """
    from workloads.errors import OutputError

    template = Path(__file__).with_name("template.yaml")
    text = template.read_text("utf-8")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise OutputError(f"{file} exists already (name another file: bench init other.yaml)") from None
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot write {file}: {getattr(error, 'strerror', None) or error}") from error
    if not quiet:
        typer.echo(f"wrote {file}; try: bench run {file}")
