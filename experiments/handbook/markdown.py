"""Tables and cells of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def cell(text: Any) -> str:
    """A text that cannot break out of its cell or become a tag; code spans stay."""
    parts = str(text).replace("\n", " ").replace("|", "\\|").split("`")
    for place in range(0, len(parts), 2):  # outside of code
        parts[place] = parts[place].replace("<", "&lt;").replace(">", "&gt;")
    return "`".join(parts)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Lines of a table."""
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(cell(each) for each in row) + " |"
