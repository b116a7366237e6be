"""Lets the tests of executors use what the tests of the engine share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))
