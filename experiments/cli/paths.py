"""Paths of one command that must differ, so that nothing it writes takes the place of what it reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from workloads.errors import InputError, Place


def check_distinct(paths: Iterable[tuple[str, Path | None]]) -> None:
    """Refuse two paths that are one file, through links too; None and devices such as /dev/null are passed over.

    Args:
        paths: what each is called (an option, or "the run"), and the path.

    Raises:
        InputError: naming both.
    """
    seen: list[tuple[str, Path]] = []
    for key, path in paths:
        if path is None or _device(path):
            continue
        for other, before in seen:
            if same(path, before):
                raise InputError(f"{path} is also {other}", place=Place(key=key), hint="name another file")
        seen.append((key, path))


def refuse_twice(runs: Iterable[Path]) -> None:
    """Refuse a run that is named twice, by whatever path; a run folder and its run.json or sweep.json are one.

    Raises:
        InputError: naming both paths.
    """
    seen: list[Path] = []
    for run in runs:
        place = run.parent if run.name in ("run.json", "sweep.json") else run
        for before in seen:
            if same(place, before):
                raise InputError(f"a run is named twice: {run}", hint="name different runs")
        seen.append(place)


def check_apart(key: str, out: Path, source: Path, what: str, *, within: bool = False, around: bool = False) -> None:
    """Refuse a folder to write that is a source, holds it (save with `around`) or lies in it (save with `within`).

    Args:
        key: the option that names `out`.   what: the source in words, such as "the model".

    Raises:
        InputError: saying how they meet.
    """
    if same(out, source):
        how = f"is {what}"
    elif inside(source, out) and not around:
        how = f"holds {what}, {source}"
    elif inside(out, source) and not within:
        how = f"lies in {what}, {source}"
    else:
        return
    raise InputError(f"{out} {how}", place=Place(key=key), hint="name a folder elsewhere")


def check_text(key: str, out: Path, text: str) -> None:
    """Refuse a folder to write that holds a text to read; the name of a built-in one is none of a file."""
    if _file(Path(text)):
        check_apart(key, out, Path(text), "the text to read", within=True)


def same(first: Path, second: Path) -> bool:
    """Whether two paths are one file or folder, there or not."""
    if _resolved(first) == _resolved(second):
        return True
    try:
        return first.samefile(second)  # hard links, and file systems that do not tell upper from lower case
    except (OSError, ValueError):
        return False


def inside(path: Path, folder: Path) -> bool:
    """Whether a path lies in a folder, at any depth."""
    return any(same(parent, folder) for parent in _resolved(path).parents)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name that cannot be: told by what opens it
        return path.absolute()


def _file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _device(path: Path) -> bool:
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except (OSError, ValueError):
        return False
