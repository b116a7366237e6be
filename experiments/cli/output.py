"""Where results go: choosing the folder and finding out that it cannot be written before anything runs."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path

from workloads.errors import OutputError

RUNS = Path("runs")
MOST_BYTES = 80


def slug(name: str) -> str:
    """A name as part of a folder name: letters, digits, `.`, `_` and `-`, at most 80 bytes, never hidden or empty."""
    words = re.sub(r"[^\w.-]+", "-", name).strip("-._")
    while len(words.encode()) > MOST_BYTES:
        words = words[:-1]
    return words.rstrip("-._") or "run"


def choose_folder(out: Path | None, name: str) -> Path:
    """The folder a run goes to: `out`, or the next free `runs/<name>-<n>`."""
    if out is not None:
        return out
    base, number = slug(name), 1
    while (folder := RUNS / f"{base}-{number}").exists():
        number += 1
    return folder


def check_folder(folder: Path) -> None:
    """Say before a long run that its folder cannot be made.

    Raises:
        OutputError: the nearest folder that exists is a file, or cannot be written to.
    """
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder.lstat()  # names that the system cannot have are told by it
        parent = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
        parent = parent if parent != folder.absolute() else parent.parent
        if not parent.is_dir():
            raise OutputError(f"cannot write to {folder}: {parent} is a file")
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
    except ValueError as error:
        raise OutputError(f"cannot write to {folder!r}: {error}") from error
