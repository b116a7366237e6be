"""Runs held against each other: differences with intervals, what was set otherwise, and whether they may be compared at all."""

from __future__ import annotations

from reports.compare.comparison import Comparison, Ratio, Row, compare
from reports.compare.sweeps import Sweep, SweepComparison, compare_sweeps, read_sweep

__all__ = ["Comparison", "Ratio", "Row", "Sweep", "SweepComparison", "compare", "compare_sweeps", "read_sweep"]
