"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Have a file written; what was there stays until all of the new one is on disk.

    Args:
        write: writes the file at the path that it is given.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """`replace_file` with a text. Links stay links; devices and pipes are written to as they are.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, "utf-8")
    else:
        replace_file(path.resolve() if path.is_symlink() else path, lambda part: part.write_text(text, "utf-8"))
