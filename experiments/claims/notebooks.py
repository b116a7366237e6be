"""The notebooks of `experiments/notebooks`: executed without a browser, renewed in place.

    python -m experiments.claims.notebooks                renew every notebook's outputs by a full run
    python -m experiments.claims.notebooks batching       … of one
    python -m experiments.claims.notebooks --check        run them small and leave the files alone
    python -m experiments.claims.notebooks --diff         run them in full, leave the files alone, and tell which verdicts
                                                          are others now; exit code 1 where any is

They need `pip install 'twinserve[notebooks]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.claims.registry import MODULES, notebook
from workloads.errors import InputError

if TYPE_CHECKING:
    from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
PARAMETERS = "parameters"  # tag of the cell that `small` is set in, as papermill has it
MOST_SECONDS = 300
_VERDICT = re.compile(r"<b>Claim\.</b> (.*?)<br>.*?<b>Verdict: (.*?)\.</b>", re.DOTALL)


def execute(path: Path, *, small: bool) -> NotebookNode:
    """Run a notebook in a kernel of its own, from its first cell to its last.

    Args:
        small: put `small = True` into the cell tagged `parameters`.

    Returns:
        The notebook with its outputs; `small` in it is as it was.

    Raises:
        InputError: there is none, it cannot be read, or the packages are missing.
        nbclient.exceptions.CellExecutionError: a cell raised.
    """
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError as error:
        raise InputError("notebooks need nbclient and ipykernel", hint="pip install 'twinserve[notebooks]'") from error
    try:
        read = nbformat.read(path, as_version=4)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    cell = next((each for each in read.cells if PARAMETERS in each.metadata.get("tags", ())), None)
    if cell is None:
        raise InputError(f"{path} has no cell tagged {PARAMETERS}")
    written = cell.source
    if small:
        cell.source = "small = True"
    place = {"metadata": {"path": str(FOLDER)}}
    client = NotebookClient(
        read, timeout=MOST_SECONDS, startup_timeout=MOST_SECONDS, kernel_name="python3", resources=place
    )
    client.execute(env=_environment())
    cell.source = written
    return read


def _environment() -> dict[str, str]:
    """The kernel finds the project as this process does, installed or not."""
    home = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}


@dataclass(frozen=True, slots=True)
class Told:
    """A verdict as a notebook tells it."""

    claim: str
    verdict: str


def read_notebook(name: str) -> dict[str, Any]:
    """An experiment's committed notebook as JSON.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    path = FOLDER / notebook(name)
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def outputs(read: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a notebook's cells displayed, by kind of content."""
    for cell in read["cells"]:
        for output in cell.get("outputs", ()):
            if "data" in output:
                yield output["data"]


def text_of(value: str | Sequence[str]) -> str:
    """A text of a notebook, which may be kept as a list of lines."""
    return value if isinstance(value, str) else "".join(value)


def verdicts(read: Mapping[str, Any]) -> list[Told]:
    """The verdicts that a notebook displays, in order."""
    found = []
    for data in outputs(read):
        for claim, verdict in _VERDICT.findall(text_of(data.get("text/html", ""))):
            found.append(Told(unescape(claim), verdict))
    return found


def changes(name: str, read: Mapping[str, Any]) -> list[str]:
    """Sentences on verdicts in which a notebook that was run differs from the committed one."""
    before = {told.claim: told.verdict for told in verdicts(read_notebook(name))}
    now = {told.claim: told.verdict for told in verdicts(read)}
    found = [
        f"{name}: {claim}: {before[claim]}, now {verdict}"
        for claim, verdict in now.items()
        if claim in before and before[claim] != verdict
    ]
    found += [f"{name}: new: {claim}: {verdict}" for claim, verdict in now.items() if claim not in before]
    return found + [f"{name}: gone: {claim}" for claim in before if claim not in now]


def tidy(read: Any) -> None:
    """Take out what differs from run to run without meaning anything: execution times, names of machines, and in how many pieces
    a stream came."""
    for cell in read.cells:
        cell.metadata.pop("execution", None)
        whole: list[Any] = []
        for output in cell.get("outputs", ()):
            last = whole[-1] if whole else None
            if last is not None and output.output_type == last.output_type == "stream" and output.name == last.name:
                last.text += output.text
            else:
                whole.append(output)
        if whole:
            cell.outputs = whole
    read.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


def main() -> None:
    """Renew, check or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments; all of them if none is named")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="run them small and leave the files alone")
    how.add_argument("--diff", action="store_true", help="run them in full and tell which verdicts changed")
    chosen = parser.parse_args()
    for name in chosen.names:
        if name not in MODULES:
            parser.error(f"unknown experiment {name!r}; known: {', '.join(MODULES)}")
    found: list[str] = []
    try:
        for name in chosen.names or MODULES:
            path = FOLDER / notebook(name)
            read = execute(path, small=chosen.check)
            if chosen.diff:
                found += changes(name, read)
            elif not chosen.check:
                import nbformat

                tidy(read)
                nbformat.write(read, path)
            print(f"{path.name}: {path.stat().st_size:,} bytes", flush=True)
    except InputError as error:
        sys.exit(f"error: {error}")
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
