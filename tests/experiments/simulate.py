"""Runs workloads given as nested values, for tests that look at figures."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from typing import Any

from experiments import runner
from experiments.workload_file import Source, build_workload
from reports.metrics import summarize
from reports.run_data import RunData

CHAT = {
    "name": "chat",
    "model": "meta-llama/Meta-Llama-3-8B",
    "backend": {"gpu": "h100-sxm"},
    "traffic": {
        "max_tokens": "context",
        "synthetic": {
            "requests": 300,
            "arrivals": {"process": "poisson", "rate": 20},
            "input_tokens": {"distribution": "lognormal", "mean": 500, "std": 500, "high": 4000},
            "output_tokens": {"distribution": "lognormal", "mean": 200, "std": 200, "high": 1000},
        },
    },
}


def workload(changes: dict[str, Any] | None = None, base: dict | None = None):
    """`base` with dotted keys changed, in their order."""
    tree = json.loads(json.dumps(CHAT if base is None else base))
    for key, value in (changes or {}).items():
        *sections, last = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = copy.deepcopy(value)
    text = re.sub(r'"(\d+)":', r"\1:", json.dumps(tree))  # YAML's keys may be numbers, as those of a mix are
    return build_workload(Source(text, "test.yaml"))


def run(changes: dict[str, Any] | None = None, base: dict | None = None, **options) -> RunData:
    """Run a workload and keep everything."""
    return runner.run(runner.resolve(workload(changes, base)), **options)


def figures(changes: dict[str, Any] | None = None, base: dict | None = None) -> dict:
    """The summary of a run; equal workloads are run once."""
    return _figures(json.dumps([changes or {}, base or CHAT], sort_keys=True))


@cache
def _figures(key: str) -> dict:
    changes, base = json.loads(key)
    return summarize(run(changes, base), with_intervals=False)
