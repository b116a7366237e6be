"""Files with one JSON object a line, as columns."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.errors import InputError, Place, unknown_name
from workloads.readers.columns import Rows, real_numbers, whole_numbers
from workloads.readers.files import read_text


@dataclass(slots=True)
class Objects:
    """The objects of a file; `lines[i]` is where object `i` stands."""

    file: str
    objects: list[dict[str, Any]]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.objects)

    @property
    def rows(self) -> Rows:
        """Where the rows came from."""
        return Rows(self.file, self.lines.__getitem__)

    def values(self, name: str, default: Any = ...) -> list:
        """Field `name` of every object; without a default it must be there."""
        if default is not ...:
            return [o.get(name, default) for o in self.objects]
        try:
            return [o[name] for o in self.objects]
        except KeyError:
            row = next(i for i, o in enumerate(self.objects) if name not in o)
            error = unknown_name("field", name, self.objects[row])
            raise self.rows.error(row, name, "is missing", error.hint) from None

    def whole(self, name: str, default: Any = ..., minimum: int | None = 1) -> np.ndarray:
        """A field of whole numbers, int64."""
        return whole_numbers(self.rows, name, self.values(name, default), minimum)

    def real(self, name: str, default: Any = ..., minimum: float | None = 0.0) -> np.ndarray:
        """A field of finite numbers, float64."""
        return real_numbers(self.rows, name, self.values(name, default), minimum)

    def unknown(self, known: Iterable[str]) -> list[str]:
        """Fields that are not in `known`.

        Raises:
            InputError: one of them is so near to a known one that it must be a slip.
        """
        known = list(known)
        strange = sorted(set().union(*self.objects) - set(known))
        for name in strange:
            if near := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
                row = next(i for i, o in enumerate(self.objects) if name in o)
                raise self.rows.error(row, name, "unknown field", f"did you mean {near[0]}?")
        return strange


def read_objects(path: Path) -> Objects:
    """All objects of a file, plain or gzipped; blank lines are skipped.

    Raises:
        InputError: empty, or a line that is not a JSON object.
    """
    texts, lines = [], []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line and not line.isspace():
            texts.append(line)
            lines.append(number)
    if not texts:
        raise InputError("the file is empty", place=Place(str(path)), hint="expected one JSON object a line")
    try:
        objects = json.loads(f"[{','.join(texts)}]")
    except json.JSONDecodeError:
        objects = [_parse(path, line, text) for line, text in zip(lines, texts, strict=True)]
    if len(objects) != len(texts):  # a line with two values, joined with commas, would pass unseen
        objects = [_parse(path, line, text) for line, text in zip(lines, texts, strict=True)]
    for line, item in zip(lines, objects, strict=True):
        if not isinstance(item, dict):
            raise InputError(f"expected an object {{…}}, not {str(item)[:40]!r}", place=Place(str(path), line))
    return Objects(str(path), objects, lines)


def _parse(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"not JSON: {error.msg}",
            place=Place(str(path), line, error.colno),
            hint="the line is malformed or the file was cut short",
        ) from error
