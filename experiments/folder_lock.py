"""One writer in a folder at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from workloads.errors import OutputError


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Within, no other process that asks may write to `folder`, which is made when it is missing.

    The lock is on the folder itself and goes with the process, however that ends. Systems without `flock`, and file
    systems that know no locks, go unguarded.

    Raises:
        OutputError: another process is at it, or the folder cannot be made.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    try:
        made = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"another sweep is writing to {folder} (wait for it, or name another folder)"
                raise OutputError(message) from None
        yield
    finally:
        os.close(handle)
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()  # nothing was written
