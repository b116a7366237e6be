"""Where results go: choosing the folder and finding out that it cannot be written before anything runs."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path

from workloads.errors import OutputError

RUNS, POINTS = Path("runs"), "points"
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


def claim_sweep_folder(name: str) -> Path:
    """Make the next free folder for a sweep, so that no other command started just now takes it too.

    Raises:
        OutputError: it cannot be made.
    """
    while True:
        folder = choose_folder(None, name)
        check_folder(folder)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            (folder / POINTS).mkdir()  # a run is moved onto nothing but an empty folder
        except FileExistsError:
            continue
        except OSError as error:
            raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
        return folder


def leave_unused(folder: Path) -> None:
    """Remove a claimed folder in which nothing was written."""
    with contextlib.suppress(OSError):
        (folder / POINTS).rmdir()
        folder.rmdir()


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
