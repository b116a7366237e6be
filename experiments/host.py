"""What a run keeps of the machine that it was made on, apart from what can be repeated."""

from __future__ import annotations

import platform
import time
from importlib.metadata import version
from typing import Any

import numpy as np


def host_facts(wall_seconds: float) -> dict[str, Any]:
    """Machine, versions and date; `wall_seconds` is what the run took."""
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "twinserve": version("twinserve"),
        "wall_seconds": wall_seconds,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
