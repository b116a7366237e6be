"""Opening a trace file, plain or gzipped, with a user's mistakes told as such."""

from __future__ import annotations

import difflib
import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

from workloads.errors import InputError, Place


def existing(path: str | Path) -> Path:
    """`path` as a `Path`, or an `InputError` that names what lies near it."""
    path = Path(path)
    try:
        path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise InputError(
                f"is a link to {path.readlink()}, which does not exist", place=Place(str(path)), hint="mend the link"
            ) from None
        parent = path.parent
        names = sorted(p.name for p in parent.iterdir()) if parent.is_dir() else []
        near = difflib.get_close_matches(path.name, names, n=2, cutoff=0.6)
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        else:
            hint = "check the path" if names else f"the folder {parent} does not exist or is empty"
        raise InputError("no such file", place=Place(str(path)), hint=hint) from None
    except (OSError, ValueError) as error:  # a loop of links, a file in place of a folder, no permission, a null byte
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read: {why}", place=Place(str(path)), hint="check the path") from None
    return path


def read_text(path: str | Path) -> str:
    """The whole file as text, unzipped if it is gzip, without a byte-order mark.

    Raises:
        InputError: missing, a folder, damaged gzip, or not UTF-8.
    """
    path = existing(path)
    place = Place(str(path))
    if path.is_dir():
        raise InputError("is a folder, a file was expected", place=place)
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"damaged gzip file: {error}", place=place, hint="fetch or write it again") from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=place) from error
    return decoded(data, str(path))


def decoded(data: bytes, name: str) -> str:
    """The text of a file called `name`, without a byte-order mark.

    Raises:
        InputError: not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(
            f"not UTF-8 at byte {error.start}", place=Place(name, line), hint="save the file as UTF-8"
        ) from error


def distinct_columns(header: Iterable[str] | None, file: str) -> None:
    """A header may name a column once only: of two nobody knows which is meant. Columns without a name, as spreadsheets leave
    them behind, may be many.

    Raises:
        InputError: naming the column and its places.
    """
    seen: dict[str, int] = {}
    for number, name in enumerate((name.strip() for name in header or ()), 1):
        if name and name in seen:
            raise InputError(
                f"the column {name!r} is there twice (columns {seen[name]} and {number})", place=Place(file, 1),
                hint="remove or rename one",
            )  # fmt: skip
        seen[name] = number


def stem(path: str | Path) -> str:
    """File name without its endings: what a trace is called in reports."""
    name = Path(path).name
    for ending in (".gz", ".tar", ".csv", ".jsonl", ".json"):
        name = name.removesuffix(ending)
    return name
