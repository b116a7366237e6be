"""The commands that README.md shows with their output: found, run again, compared, renewed.

python tests/readme_commands.py        renews every output in README.md
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
TRACES = ROOT.parent / "shared" / "traces"
ELLIPSIS = "…"
_BLOCK = re.compile(r"^```\n(\$ .*?)^```$", re.MULTILINE | re.DOTALL)
_SPEED = re.compile(r"made in [^.]*(\.\d+[^.]*)*\)\.")  # of the machine, not of the run


@dataclass(frozen=True, slots=True)
class Command:
    """A command line and the output shown below it, without trailing blanks."""

    line: str
    shown: str


def blocks(text: str) -> list[list[Command]]:
    """Every block of the page that begins with a prompt, as its commands."""
    found = []
    for block in _BLOCK.findall(text):
        parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
        found.append([Command(*(part.partition("\n")[::2])) for part in parts])
    return found


def run(line: str, folder: Path) -> str:
    """Output of a command in a folder that has the examples and the recorded hour, without trailing blanks."""
    for name, target in (("workloads", ROOT / "workloads"), ("AzureLLMInferenceTrace_conv.csv.gz", None)):
        link = folder / name
        if not link.exists():
            link.symlink_to(target or TRACES / name)
    (folder / "azure.yaml").write_text(_yaml_about("an hour of conversations"), "utf-8")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return "\n".join(text.rstrip() for text in done.stdout.splitlines()) + "\n"


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


def renew() -> None:
    """Put what the commands print now in place of what README.md shows."""
    text = README.read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for commands in blocks(text):
            for command in commands:
                printed = run(command.line, Path(folder))
                old, new = f"$ {command.line}\n{command.shown}", f"$ {command.line}\n{_elided(command.shown, printed)}"
                if not agrees(command.shown, printed):
                    text = text.replace(old, new)
                    print(f"renewed: {command.line}")
    README.write_text(text, "utf-8")


def _elided(shown: str, printed: str) -> str:
    """What was printed, left out where it was left out before: lines are matched by how they begin."""
    if ELLIPSIS not in shown.splitlines():
        return printed
    lines, at, kept = printed.splitlines(), 0, []
    for line in shown.splitlines():
        if line == ELLIPSIS:
            kept.append(line)
            continue
        start = re.split(r"[\d,.]{2,}", line)[0][:20]
        place = next((i for i in range(at, len(lines)) if lines[i].startswith(start)), None)
        if place is not None:
            kept.append(lines[place])
            at = place + 1
    return "\n".join(kept) + "\n"


def _yaml_about(name: str) -> str:
    return next(text for text in re.findall(r"```yaml\n(.*?)```", README.read_text("utf-8"), re.DOTALL) if name in text)


if __name__ == "__main__":
    renew()
