"""The experiments by name, in the order in which they are listed."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from experiments.claims.base import Result
from workloads.errors import unknown_name


class Experiment(Protocol):
    """A module of this folder: what it is called, what it runs, and `run`.

    Attributes:
        NAME, TITLE: for `bench experiment`.   WORKLOAD: the YAML that it starts from, "" where there is none.
    """

    NAME: str
    TITLE: str
    WORKLOAD: str

    def run(self, small: bool = False) -> Result:
        """Run it; `small` is quick and rough."""
        ...


MODULES = {
    "batching": "batching",
    "kv-waste": "kv_waste",
    "beam-search": "beams",
    "chunked-prefill": "chunked",
    "prefix-caching": "prefix",
    "quantization": "quantization",
    "sizing": "sizing",
    "operating-point": "operating_point",
    "parallelism": "parallel",
    "engines": "engines",
    "memory-limits": "memory_limits",
    "lengths": "lengths",
    "scaling-signals": "scaling",
    "speculation": "speculation",
    "scheduler-plugin": "plugin",
}


def find(name: str) -> Experiment:
    """An experiment by name.

    Raises:
        InputError: no such experiment, with the nearest names.
    """
    if name not in MODULES:
        raise unknown_name("experiment", name, MODULES)
    return import_module(f"experiments.claims.{MODULES[name]}")


def notebook(name: str) -> str:
    """File name of an experiment's notebook in `experiments/notebooks`."""
    return f"{list(MODULES).index(name) + 1:02d}-{name}.ipynb"
