"""Texts to calibrate with and to measure on: a file, or what Python itself ships."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workloads.errors import InputError, Place

if TYPE_CHECKING:
    from backends.weights.tokenizer import Tokenizer

BUILT_IN = "python-docs"
"""The reference texts behind Python's `help()`, in every installation of Python (module `pydoc_data.topics`, PSF licence)."""
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Text:
    """A text: where it is from in words, its characters, and a hash by which it is known again."""

    about: str
    content: str

    @property
    def sha256(self) -> str:
        """Of the content in UTF-8."""
        return hashlib.sha256(self.content.encode("utf-8", "surrogatepass")).hexdigest()


def read_text(name: str, purpose: str) -> Text:
    """A text by the name of a file, or the built-in one.

    Args:
        purpose: `calibration` or `evaluation`: of the built-in text each gets every other topic, so that they do not meet.

    Raises:
        InputError: no such file, not text, empty, or too large to be meant.
    """
    if name == BUILT_IN:
        return _python_docs(purpose)
    path, place = Path(name).expanduser(), Place(str(name))
    try:
        if path.is_dir():
            raise InputError("is a folder, expected a text file", place=place)
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"is larger than {_MOST_BYTES >> 20} MiB", place=place, hint="take a part of it")
        content = path.read_text("utf-8")
    except FileNotFoundError:
        raise InputError(
            "there is no such file", place=place, hint=f"{BUILT_IN} is a text that is always here"
        ) from None
    except UnicodeDecodeError:
        raise InputError("is not text in UTF-8", place=place) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", place=place) from None
    if not content.strip():
        raise InputError("is empty", place=place)
    return Text(path.name, content)


def _python_docs(purpose: str) -> Text:
    from pydoc_data.topics import topics

    names = sorted(topics)[1 if purpose == "evaluation" else 0 :: 2]
    about = f"reference topics of Python {platform.python_version()} (pydoc_data.topics), {purpose} half"
    return Text(about, "\n".join(topics[name].strip() + "\n" for name in names))


def sequences(tokenizer: Tokenizer, text: Text, count: int, length: int) -> list[list[int]]:
    """Up to `count` sequences of `length` tokens, evenly spread over the text.

    Raises:
        InputError: the text has less than one.
    """
    ids = tokenizer.plain(text.content)
    if len(ids) < length:
        raise InputError(
            f"{text.about} has {len(ids):,} tokens, too few for one sequence of {length:,}", place=Place(key="--calibration"),
            hint=f"--length {max(len(ids) // 2, 1)}, or a longer text",
        )  # fmt: skip
    count = min(count, len(ids) // length)
    step = (len(ids) - length) / max(count - 1, 1)
    starts = [round(number * step) for number in range(count)]
    return [ids[start : start + length] for start in starts]


@dataclass(frozen=True, slots=True)
class Window:
    """Token ids of a window; those from number `first` on are scored, each by the tokens before it."""

    ids: list[int]
    first: int


def windows(ids: list[int], length: int, stride: int, most: int) -> list[Window]:
    """A sliding window: each goes on by `stride` tokens and scores those alone, so that each has context before it.

    Args:
        most: tokens to score in all, about.

    Raises:
        InputError: a window of less than two tokens, or a text of less than two windows.
    """
    if not 1 <= stride < length:
        raise InputError(
            f"--stride {stride} must be at least 1 and below --window {length}", place=Place(key="--stride")
        )
    found: list[Window] = []
    scored = 0
    for start in range(0, len(ids) - length + 1, stride):
        if scored >= most:
            break
        found.append(Window(ids[start : start + length], length - stride))
        scored += stride
    if len(found) < 2:
        raise InputError(
            f"the text has {len(ids):,} tokens, too few for two windows of {length:,}", place=Place(key="--window"),
            hint="take a longer text or a shorter window",
        )  # fmt: skip
    return found
