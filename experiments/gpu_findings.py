"""What a check of a GPU has found, written as it comes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(slots=True)
class Findings:
    """What was found so far, printed and kept in `NAME.json` and `NAME.md` of a folder.

    Attributes:
        name: of these files.
        facts: of the machine. sections: title → rows. left_out: what there was no time for, or what failed and how.
        end: value of `time.monotonic()` after which nothing new is begun.
    """

    folder: Path
    facts: Row
    end: float
    sections: dict[str, list[Row]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    wrong: bool = False
    name: str = "results"

    def add(self, title: str, row: Row) -> None:
        """One more row."""
        self.sections.setdefault(title, []).append(row)
        print(f"{title}: " + ", ".join(f"{name} {_shown(value)}" for name, value in row.items()), flush=True)
        self.write()

    def part(self, title: str, work: Callable[[], object], least: float = 20.0) -> None:
        """Do some work if there are `least` seconds left for it. A failure is noted, and the rest goes on."""
        if time.monotonic() + least > self.end:
            self.miss(f"{title}: no time left")
            return
        try:
            work()
        except Exception as error:  # compilers and drivers raise what they like, and time on a card is too dear to stop
            self.wrong = True
            self.miss(f"{title}: {type(error).__name__}: {error}")

    def miss(self, words: str) -> None:
        """Note what was not done."""
        self.left_out.append(words)
        print(f"left out: {words}", flush=True)
        self.write()

    def write(self) -> None:
        """Both files as they stand."""
        whole = {"facts": self.facts, "sections": self.sections, "left_out": self.left_out}
        (self.folder / f"{self.name}.json").write_text(json.dumps(_plain(whole), indent=1) + "\n", "utf-8")
        (self.folder / f"{self.name}.md").write_text(self.page(), "utf-8")

    def take(self, name: str) -> None:
        """Join what another process left in `NAME.json` of the same folder, and remove its files."""
        try:
            found = json.loads((self.folder / f"{name}.json").read_text("utf-8"))
        except (OSError, ValueError):
            self.left_out.append(f"{name}: left no results that can be read")
            self.wrong = True
        else:
            self.facts = found["facts"] | self.facts
            for title, rows in found["sections"].items():
                self.sections.setdefault(title, []).extend(rows)
            self.left_out += found["left_out"]
        for file in (self.folder / f"{name}.json", self.folder / f"{name}.md"):
            file.unlink(missing_ok=True)
        self.write()

    def page(self) -> str:
        """All of it in Markdown."""
        lines = [f"# What {self.facts.get('card', 'this machine')} does", ""]
        lines += [f"* {name}: {value}" for name, value in self.facts.items()]
        for title, rows in self.sections.items():
            names = list(rows[0])
            lines += ["", f"## {title}", "", "| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
            lines += ["| " + " | ".join(_shown(row.get(name)) for name in names) + " |" for row in rows]
        if self.left_out:
            lines += ["", "## Left out", "", *(f"* {each}" for each in self.left_out)]
        return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)


def _plain(value: Any) -> Any:
    """Without NaN and infinity, which JSON has not."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
