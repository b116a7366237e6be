"""Measured tables made in the test, and a cost model whose times can be worked out by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from experiments.validation.table import COLUMNS, Row, read_table
from sim.cost.base import DecodeLine, OperatorCost, StepShape
from sim.cost.host import FrontEnd, Host

PREFILL, DECODE = 0.1, 0.01
"""Seconds of a step with any prompt in it, and of one without."""

BASE = {
    "source": "made", "source_date": "2025-06", "engine": "vLLM", "engine_version": "0.9.0", "model": "Llama-3.1-8B",
    "weight_dtype": "bf16", "kv_dtype": "bf16", "gpu": "H100-SXM-80GB", "n_gpu": "1", "tp": "1", "pp": "1", "isl": "100",
    "osl": "11", "concurrency_or_rate": "batch=4", "metric": "output_tokens_per_s", "value": "220",
    "load_kind": "static_batch", "table_id": "made-1",
}  # fmt: skip


class FlatCost:
    """Every step with a prompt takes PREFILL seconds, every other one DECODE, whatever is in it."""

    notes: tuple = ()
    provenance = ({"what": "steps", "value": DECODE, "source": "made for the test"},)

    def __init__(self) -> None:
        self.front_end = FrontEnd(0.05, 0.0, 0.0, "made for the test")
        self.host = Host.none()

    def step_seconds(self, shape: StepShape) -> float:
        return PREFILL if shape.chunks else DECODE

    def decode_line(self, rows: int, context: int) -> DecodeLine:
        return DecodeLine(0, 1 << 60, DECODE, 0.0)

    def explain(self, shape: StepShape) -> list[OperatorCost]:
        return []


@pytest.fixture
def flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations are priced by `FlatCost`."""
    import sim.cost
    import sim.cost.build

    for module in (sim.cost, sim.cost.build):
        monkeypatch.setattr(module, "build_cost", lambda *args, **kwargs: FlatCost())


@pytest.fixture
def table(tmp_path: Path):
    """`table({"tp": "2"}, {…}, name="a.csv")` writes a table, a row for each mapping over BASE; returns its path."""

    def write(*rows: dict[str, str], name: str = "made.csv", columns: tuple[str, ...] = COLUMNS) -> Path:
        path = tmp_path / name
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore", restval="")
            writer.writeheader()
            writer.writerows({**BASE, **row} for row in rows)
        return path

    return write


@pytest.fixture
def row(table):
    """`row(tp="2")` is one measured row."""

    def read(**changes: str) -> Row:
        return read_table(table(changes, name="one.csv"))[0]

    return read
