"""The project's own speed: `make bench` measures it, `make test` only sees that the measurements still work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "experiments"))  # for `simulate`


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --benchmark-only leave out everything here but what is called smoke."""
    if config.getoption("benchmark_only"):
        return
    left_out = [item for item in items if item.path.parent == HERE and "smoke" not in item.name]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was measured beside the time: requests, steps and tokens a second, and what the load was like."""
    session = getattr(config, "_benchmarksession", None)
    told = [(bench.name, bench.extra_info) for bench in getattr(session, "benchmarks", ()) if bench.extra_info]
    if not told or not config.getoption("benchmark_only"):
        return
    terminalreporter.section("what the simulator did")
    for name, figures in told:
        words = ", ".join(f"{key.replace('_', ' ')} {value:,}" for key, value in figures.items())
        terminalreporter.write_line(f"{name.removeprefix('test_')}: {words}")
