"""What the tests of this floor share."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from workloads.traffic import Traffic

COLUMNS = ("arrival", "input_tokens", "output_tokens", "max_tokens", "parent", "think", "priority", "n")


@pytest.fixture
def recorded():
    """The folder of recorded traces; skips where there is none."""
    folder = Path(__file__).parents[2].parent / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip(f"no recorded traces at {folder}")
    return folder


@pytest.fixture
def file(tmp_path):
    """Makes a file with some text: `file("a.csv", "…")`; gzipped where the name ends in .gz."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


@pytest.fixture
def same():
    """Asserts that two traffics are equal in every column and span."""

    def check(a: Traffic, b: Traffic) -> None:
        for name in COLUMNS:
            left, right = getattr(a, name), getattr(b, name)
            assert left.dtype == right.dtype, name
            np.testing.assert_array_equal(left, right, err_msg=name)
        assert [a.request(i).prompt for i in range(len(a))] == [b.request(i).prompt for i in range(len(b))]

    return check
