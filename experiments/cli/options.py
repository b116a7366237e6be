"""Options that several commands share, and how they become overrides of a workload file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.schema import Workload
    from experiments.workload_file import Override

File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A workload file, YAML or JSON.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as engine.kv.dtype=fp8. May be repeated."),
]
Backend = Annotated[str | None, typer.Option(metavar="NAME", help="Override backend.name.")]
Gpu = Annotated[str | None, typer.Option(metavar="NAME", help="Override backend.gpu (`bench list gpus`).")]
Load = Annotated[
    str | None,
    typer.Option("--load", metavar="auto|dummy", help="Override backend.load: dummy makes up a real model's weights."),
]
BaseUrl = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="Ask the server at this address (backend http)."),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Override seed.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="DIR", show_default=False, help="Folder to write [default: runs/<name>-<n>]."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run that is already in the folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Step = Annotated[
    bool, typer.Option("--step", help="Take every engine step by itself (slower; the results are the same).")
]
_AXIS = "such as --over load.concurrency=1,2,4"


def load(
    file: Path,
    settings: list[str] | None = None,
    *,
    backend: str | None = None,
    gpu: str | None = None,
    seed: int | None = None,
    weights: str | None = None,
    base_url: str | None = None,
    over: list[str] | None = None,
) -> Workload:
    """The workload of a file with the command line's overrides on it; the named options win over `--set`.

    Args:
        over: axes of the sweep, `key=values` each.
    """
    from experiments.workload_file import load_workload

    return load_workload(
        file, overrides(settings, backend=backend, gpu=gpu, seed=seed, weights=weights, base_url=base_url, over=over)
    )


def overrides(
    settings: list[str] | None = None,
    *,
    backend: str | None = None,
    gpu: str | None = None,
    seed: int | None = None,
    weights: str | None = None,
    base_url: str | None = None,
    over: list[str] | None = None,
) -> list[Override]:
    """What the command line sets, in the order in which it counts; see `load`. An address of a server means backend http."""
    from experiments.workload_file import Override, parse_override
    from workloads.errors import Place

    asked = "--backend"
    if base_url is not None and backend is None:
        named = any(text.replace(" ", "").startswith("backend.name=") for text in settings or [])
        backend, asked = (None if named else "http"), "--base-url"
    named = (
        (("backend", "name"), asked, backend),
        (("backend", "gpu"), "--gpu", gpu),
        (("backend", "load"), "--load", weights),
        (("backend", "base_url"), "--base-url", base_url),
        (("seed",), "--seed", seed),
    )
    found = [parse_override(text) for text in settings or []]
    found += _axes(over or [])
    for path, option, value in named:
        if value is not None:
            found.append(Override(path, value, Place(file=option, key=".".join(path))))
    return found


def _axes(over: list[str]) -> Iterator[Override]:
    """`load.concurrency=1..8` and the like as overrides of `sweep`, with what is wrong told under `--over`.

    Raises:
        InputError: one is malformed, or given twice.
    """
    from experiments.workload_file import Override, parse_override
    from workloads.errors import InputError, Place

    seen = set()
    for text in over:
        key, equals, values = (part.strip() for part in text.partition("="))
        place = Place(file="--over", key=key or None)
        if not (equals and key and values):
            raise InputError(f"expected KEY=VALUES, got {text[:80]!r}", place=Place(file="--over"), hint=_AXIS)
        if key in seen:
            raise InputError("given twice", place=place, hint="put all its values into one")
        seen.add(key)
        try:
            found = parse_override(f"sweep.{text}")
        except InputError as error:
            raise InputError(error.message, place=place, hint=error.hint) from None
        yield Override(found.path, found.value, place)
