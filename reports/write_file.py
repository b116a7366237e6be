"""Files that are there whole or not at all."""

from __future__ import annotations

from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write a file; what was there stays until all of the new text is on disk. Devices and pipes are written to as they are.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, "utf-8")
        return
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(path.resolve() if path.is_symlink() else path)
    finally:
        temporary.unlink(missing_ok=True)
