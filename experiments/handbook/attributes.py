"""What docstrings say of attributes: `Attributes:` sections as name → sentence."""

from __future__ import annotations

import inspect
import itertools
import re

_ENTRY = re.compile(r"(?:^|(?<=[.;:)`] )|(?<=   ))((?:[a-z_][a-z0-9_]*, )*[a-z_][a-z0-9_]*): ")


def attributes_of(thing: object) -> dict[str, str]:
    """Every attribute that the docstring of a class (or a text) describes.

    An entry is `name: text` or `one, other: text`; several may share a line. Continuation lines are indented.
    """
    text = thing if isinstance(thing, str) else inspect.getdoc(thing) or ""
    found: dict[str, str] = {}
    for block in _entries(text):
        cuts = [match for match in _ENTRY.finditer(block) if match.start() == 0 or _is_entry(block, match)]
        for match, after in itertools.zip_longest(cuts, cuts[1:]):
            meaning = block[match.end() : after.start() if after else len(block)].strip()
            for name in match.group(1).split(", "):
                found.setdefault(name, meaning)
    return found


def _is_entry(block: str, match: re.Match[str]) -> bool:
    """Whether words before a colon in the middle of a line are a name: after a full stop or a wide gap, nothing else."""
    return block[: match.start()].endswith((". ", "   ", "; "))


def _entries(text: str) -> list[str]:
    """The lines of the `Attributes:` section, continuation lines joined to theirs."""
    lines, inside, found = text.splitlines(), False, []
    for line in lines:
        if line.strip() == "Attributes:":
            inside = True
            continue
        if not inside:
            continue
        if line and not line.startswith("    "):
            break
        body = line[4:]
        if not body.strip():
            continue
        if body.startswith(" ") and found:
            found[-1] += " " + body.strip()
        else:
            found.append(body.rstrip())
    return found
