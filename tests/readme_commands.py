"""The commands that README.md and docs/tour.md show with their output: found, run again, compared, renewed; and the errors
that README.md takes from docs/validation.md.

python tests/readme_commands.py        renews all of it
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = (README, ROOT / "docs" / "tour.md")
VALIDATION = ROOT / "docs" / "validation.md"
TRACES = ROOT.parent / "shared" / "traces"
RECORDED = "AzureLLMInferenceTrace_conv.csv.gz"
ELLIPSIS = "…"
_BLOCK = re.compile(r"^```\n(\$ .*?)^```$", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n((?:(?!^```).)*?)^```\n\n^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^```\w+\n# ([\w-]+\.\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ERRORS = re.compile(r"(<!-- errors -->\n)(.*?)(<!-- /errors -->)", re.DOTALL)
_SPEED = re.compile(r"made in [^.]*(\.\d+[^.]*)*\)\.")  # of the machine, not of the run


@dataclass(frozen=True, slots=True)
class Command:
    """A command line and the output shown below it, without trailing blanks."""

    line: str
    shown: str


def blocks(text: str) -> list[list[Command]]:
    """Every block of a page that begins with a prompt, as its commands."""
    found = []
    for block in _BLOCK.findall(text):
        parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
        found.append([Command(*(part.partition("\n")[::2])) for part in parts])
    return found


def scripts(text: str) -> list[tuple[str, str]]:
    """Every Python example of a page that is followed by what it prints: code and output."""
    return _PYTHON.findall(text)


def needs_recording(line: str) -> bool:
    """Whether a command reads the recorded hour, which a plain clone does not carry."""
    return any(RECORDED in text for name, text in _files().items() if name in line)


def run(line: str, folder: Path) -> str:
    """Output of a command in a folder that has the examples, the pages' files and the recorded hour, without trailing
    blanks.

    Raises:
        RuntimeError: it failed; what it said then is nothing to show.
    """
    for name, target in (("workloads", ROOT / "workloads"), (RECORDED, TRACES / RECORDED)):
        link = folder / name
        if not link.exists() and target.exists():
            link.symlink_to(target)
    for name, text in _files().items():
        (folder / name).write_text(text, "utf-8")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{line}: exit code {done.returncode}\n{done.stdout}")
    return "\n".join(text.rstrip() for text in done.stdout.splitlines()) + "\n"


def run_script(code: str) -> str:
    """What a Python example prints, run at the top of the repository.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{code}\n{done.stderr}")
    return done.stdout


def _files() -> dict[str, str]:
    """The files that the pages show, by the name in their first line."""
    return {name: text for page in PAGES for name, text in _FILE.findall(page.read_text("utf-8"))}


def with_errors(text: str) -> str:
    """A page with its table of errors as docs/validation.md has it now: rows and columns that it names, by their names."""

    def table(match: re.Match[str]) -> str:
        rows = [_cells(line) for line in match[2].splitlines()]
        known = _groups(VALIDATION.read_text("utf-8"))
        kept = [[name, *(known[name][title] for title in rows[0][1:])] for name, *_ in rows[2:]]
        return match[1] + "".join(f"| {' | '.join(row)} |\n" for row in [*rows[:2], *kept]) + match[3]

    return _ERRORS.sub(table, text)


def _groups(text: str) -> dict[str, dict[str, str]]:
    """The rows of the table of errors by their names, `heading: row`."""
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| group |"))
    titles, found, heading = _cells(lines[head]), {}, ""
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = _cells(line)
        name = name.strip("*")
        if any(cells):
            found[heading + name] = dict(zip(titles[1:], cells, strict=True))
        else:
            heading = f"{name}: "
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def agrees(shown: str, printed: str) -> bool:
    """Whether what is shown was printed: all of it, or the parts around lines that are only an ellipsis."""
    shown, printed = _SPEED.sub("made", shown), _SPEED.sub("made", printed)
    parts = [part.strip("\n") for part in re.split(rf"^{ELLIPSIS}$", shown, flags=re.MULTILINE)]
    if len(parts) == 1:
        return parts[0] == printed.strip("\n")
    at = 0
    for part in parts:
        at = printed.find(part, at)
        if at < 0:
            return False
    return True


def renew(page: Path) -> None:
    """Put what the commands and examples print now in place of what a page shows."""
    text = page.read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for commands in blocks(text):
            for command in commands:
                printed = run(command.line, Path(folder))
                old, new = f"$ {command.line}\n{command.shown}", f"$ {command.line}\n{_elided(command.shown, printed)}"
                if not agrees(command.shown, printed):
                    text = text.replace(old, new)
                    print(f"renewed in {page.name}: {command.line}")
    for code, shown in scripts(text):
        printed = run_script(code)
        if printed != shown:
            text = text.replace(f"{code}```\n\n```\n{shown}```", f"{code}```\n\n```\n{printed}```")
            print(f"renewed in {page.name}: {code.splitlines()[0]}")
    page.write_text(with_errors(text), "utf-8")


def _elided(shown: str, printed: str) -> str:
    """What was printed, left out where it was left out before: lines are matched by what they say beside their figures, or
    else by what stands before the first. Lines that came between two are left out too, visibly."""
    if ELLIPSIS not in shown.splitlines():
        return printed
    lines, at, kept = printed.splitlines(), 0, []
    for line in shown.splitlines():
        if line == ELLIPSIS:
            kept.append(line)
            continue
        words = _words(line)
        for told in (words, words.partition(" 0")[0][:30] or words):
            place = next((i for i in range(at, len(lines)) if _said(lines[i], told)), None)
            if place is not None:
                if place > at and kept and kept[-1] != ELLIPSIS:
                    kept.append(ELLIPSIS)
                kept.append(lines[place])
                at = place + 1
                break
    return "\n".join(kept) + "\n"


def _said(line: str, told: str) -> bool:
    words = _words(line)
    return words.startswith(told) if told else not words


def _words(line: str) -> str:
    return " ".join(re.sub(r"(?<![\w.])\d[\d.,]*", "0", line).split())


if __name__ == "__main__":
    for each in PAGES:
        renew(each)
