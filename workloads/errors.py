"""The exceptions of Twinserve: one small tree, at the bottom of the house so that every floor can raise them.

`InputError` is a user's mistake and says where it is and how to mend it; the command line turns it into one
message and exit code 2. Nothing here is ever raised for a fault of our own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


class TwinserveError(Exception):
    """Base of everything that Twinserve raises on purpose."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a user's input something is wrong. Every part is optional."""

    file: str | None = None
    line: int | None = None
    column: str | int | None = None
    key: str | None = None

    def __str__(self) -> str:
        head = self.file or ""
        if self.line is not None:
            head += f":{self.line}" if head else f"line {self.line}"
        if self.column is not None:
            head += f", column {self.column}"
        return ": ".join(part for part in (head, self.key) if part)


class InputError(TwinserveError):
    """Input that cannot be used: a bad key, value, file or combination.

    Args:
        message: what is wrong, and what was expected.
        place: where it is.
        hint: how to mend it (a nearest valid name, a command, a limit).
    """

    exit_code = 2

    def __init__(self, message: str, *, place: Place | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place or Place()
        self.hint = hint

    def __str__(self) -> str:
        where = str(self.place)
        text = f"{where}: {self.message}" if where else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def at(self, place: Place) -> InputError:
        """The same error, placed where the caller knows better; parts already known are kept."""
        own = self.place
        merged = Place(
            own.file or place.file,
            own.line if own.line is not None else place.line,
            own.column if own.column is not None else place.column,
            own.key or place.key,
        )
        return type(self)(self.message, place=merged, hint=self.hint)


class OutputError(TwinserveError):
    """Results cannot be written (disk full, no permission, the folder exists)."""

    exit_code = 2


class TargetError(TwinserveError):
    """The thing under test could not be reached, or every request failed."""

    exit_code = 3


def unknown_name(kind: str, name: str, known: Iterable[str], *, place: Place | None = None) -> InputError:
    """An `InputError` for a name that is not in a registry, with the nearest valid names as its hint."""
    names = sorted(known)
    close = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=3, cutoff=0.5)
    nearest = [n for n in names if n.lower() in close]
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"known: {', '.join(names)}"
    return InputError(f"unknown {kind} {name!r}", place=place, hint=hint)
