"""Folders that are complete or absent."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workloads.errors import OutputError


def check_replaceable(folder: Path, holds: str, *, overwrite: bool) -> None:
    """Refuse a folder that is there already, save an empty one and, with `overwrite`, one of the kind that has a file `holds`.

    Raises:
        OutputError: saying which.
    """
    try:
        taken = folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    except OSError as error:
        raise OutputError(f"cannot read {folder}: {error.strerror or error}") from None
    if taken and not overwrite:
        raise OutputError(f"{folder} is there already; --overwrite replaces it")
    if taken and not (folder / holds).is_file():
        raise OutputError(
            f"{folder} has no {holds}, so it is something else, and --overwrite leaves it alone; name another"
        )


@contextmanager
def whole_folder(folder: Path, holds: str, *, overwrite: bool = False) -> Iterator[Path]:
    """Within, a folder to write to, which takes the place of `folder` at the end, or vanishes if something went wrong.

    Args:
        holds: name of a file that every folder of this kind has; only such a one is ever replaced.

    Raises:
        OutputError: the folder is there already and is not to be replaced, or cannot be written.
    """
    check_replaceable(folder, holds, overwrite=overwrite)
    # a name that nobody else has: only what was made here is ever removed
    partial = folder.with_name(f".{folder.name[:60]}.{secrets.token_hex(6)}.partial")
    made = False
    try:
        partial.mkdir(parents=True)
        made = True
        yield partial
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from None
    finally:
        if made:
            shutil.rmtree(partial, ignore_errors=True)
