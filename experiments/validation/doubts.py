"""Warnings on cells: where a prediction should not be leaned on, told from what is simulated, never from its error."""

from __future__ import annotations

from collections.abc import Iterable

from experiments.validation.cells import Cell


def doubt(cells: Iterable[Cell]) -> None:
    """Add to the warnings of cells what the measured value itself gives reason to doubt."""
    for cell in cells:
        if cell.implausible and cell.implausible not in cell.warnings:
            cell.warnings.append(f"the measurement is not plausible: {cell.implausible}")
