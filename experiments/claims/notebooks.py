"""The notebooks of `experiments/notebooks`: executed without a browser, renewed in place.

    python -m experiments.claims.notebooks                renew every notebook's outputs by a full run
    python -m experiments.claims.notebooks batching       … of one
    python -m experiments.claims.notebooks --check        run them small and leave the files alone

They need `pip install 'twinserve[notebooks]'`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.claims.registry import MODULES, notebook
from workloads.errors import InputError

if TYPE_CHECKING:
    from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
PARAMETERS = "parameters"  # tag of the cell that `small` is set in, as papermill has it
MOST_SECONDS = 300


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


def tidy(read: Any) -> None:
    """Take out what differs from run to run without meaning anything: execution times, and names of machines."""
    for cell in read.cells:
        cell.metadata.pop("execution", None)
    read.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


def main() -> None:
    """Renew or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments; all of them if none is named")
    parser.add_argument("--check", action="store_true", help="run them small and leave the files alone")
    chosen = parser.parse_args()
    for name in chosen.names:
        if name not in MODULES:
            parser.error(f"unknown experiment {name!r}; known: {', '.join(MODULES)}")
    try:
        for name in chosen.names or MODULES:
            path = FOLDER / notebook(name)
            found = execute(path, small=chosen.check)
            if not chosen.check:
                import nbformat

                tidy(found)
                nbformat.write(found, path)
            print(f"{path.name}: {path.stat().st_size:,} bytes", flush=True)
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
