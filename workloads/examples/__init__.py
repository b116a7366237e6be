"""Workloads that come with Twinserve: small traces, the specifications that made them, and files that run.

    bench run workloads/examples/chat-h100.yaml

The traces are synthetic, to the statistics of published ones; each `traces/NAME.synth.yaml` says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads.errors import InputError, Place
from workloads.traffic import Traffic

FOLDER = Path(__file__).parent
TRACES = ("chat", "code", "agents", "documents")


def trace_path(name: str) -> Path:
    """The file of a bundled trace."""
    return FOLDER / "traces" / f"{name}.jsonl.gz"


def synth_path(name: str) -> Path:
    """The specification that made a bundled trace."""
    return FOLDER / "traces" / f"{name}.synth.yaml"


def workload_paths() -> list[Path]:
    """The workload files that run."""
    return sorted(FOLDER.glob("*.yaml"))


def read_synth(path: str | Path) -> dict[str, Any]:
    """A `.synth.yaml` file: `name`, `seed` and the `synthetic` section.

    Raises:
        InputError: not readable, not YAML, or another key.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    from workloads.readers.files import read_text, stem
    from workloads.synthetic.fields import Section

    try:
        data = YAML(typ="safe", pure=True).load(read_text(path))
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = Place(str(path), mark.line + 1 if mark else None, mark.column + 1 if mark else None)
        raise InputError(f"not YAML: {error.problem}", place=place) from error
    try:
        section = Section(data, "file")
        found = {
            "name": str(section.value("name", stem(path))),
            "seed": section.whole("seed", 0),
            "synthetic": section.value("synthetic"),
        }
        section.done()
    except InputError as error:
        raise error.at(Place(str(path))) from None
    return found


def make(spec: Mapping[str, Any] | str | Path) -> Traffic:
    """The traffic of a `.synth.yaml` file, or of what `read_synth` gave for it."""
    from workloads.synthetic import synthesize

    base = Path() if isinstance(spec, Mapping) else Path(spec).parent
    found = spec if isinstance(spec, Mapping) else read_synth(spec)
    return synthesize(found["synthetic"], found["seed"], base=base, name=found["name"])
