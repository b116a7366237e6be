"""Errors of predictions against measured values: by group, with what was left out and what was warned of.

An error is the log ratio ln(predicted / measured); |log ratio| × 100 is read as per cent. A record is one cell, a flat dict
as `experiments.validation.cells.record` makes it: this module needs `log_ratio`, `excluded`, `warnings` and the keys that
are grouped by.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CLOSE, FAR = 1.25, 3.0
GROUPS = ("source", "engine", "gpu", "model", "quantity")


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of a group of cells.

    Attributes:
        cells: how many have an error at all.
        median, mean, p95: of |ln(predicted / measured)|. bias: median of ln(predicted / measured).
        close: share within a factor of 1.25. far: cells off by more than a factor of 3.
        rank: mean Spearman correlation inside tables (and quantities) of at least five cells, or None.
    """

    cells: int
    median: float
    mean: float
    p95: float
    bias: float
    close: float
    far: int
    rank: float | None

    def plain(self) -> dict[str, Any]:
        """JSON-ready."""
        return {name: getattr(self, name) for name in self.__slots__}


def errors(records: Iterable[dict]) -> Errors | None:
    """Errors of the records that have one; None where none has."""
    scored = [r for r in records if r["log_ratio"] is not None]
    if not scored:
        return None
    ratios = np.array([r["log_ratio"] for r in scored])
    sizes = np.abs(ratios)
    return Errors(
        len(scored), float(np.median(sizes)), float(sizes.mean()), float(np.percentile(sizes, 95)),
        float(np.median(ratios)), float((sizes <= math.log(CLOSE)).mean()), int((sizes > math.log(FAR)).sum()),
        rank_correlation(scored),
    )  # fmt: skip


def kept(records: Iterable[dict]) -> list[dict]:
    """Records that no rule leaves out and whose measurement is possible."""
    return [r for r in records if not r["excluded"] and not r["implausible"]]


def by(records: Iterable[dict], key: str | Callable[[dict], Any]) -> dict[Any, Errors]:
    """Errors of each group, the largest first."""
    groups: dict[Any, list[dict]] = defaultdict(list)
    for r in records:
        groups[r[key] if isinstance(key, str) else key(r)].append(r)
    found = {name: errors(members) for name, members in groups.items()}
    scored = {name: e for name, e in found.items() if e is not None}
    return dict(sorted(scored.items(), key=lambda item: (-item[1].cells, str(item[0]))))


def rank_correlation(records: Sequence[dict]) -> float | None:
    """Mean over (table, quantity) of the correlation of ranks, weighted by cells; tables of five and more."""
    tables: dict[tuple, list[dict]] = defaultdict(list)
    for r in records:
        tables[(r["table_id"], r["quantity"])].append(r)
    total = weight = 0.0
    for members in tables.values():
        if len(members) < 5:
            continue
        first, second = (_ranks([r[key] for r in members]) for key in ("measured", "predicted"))
        if first.std() == 0 or second.std() == 0:
            continue
        total += len(members) * float(np.corrcoef(first, second)[0, 1])
        weight += len(members)
    return total / weight if weight else None


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks from 0, ties sharing their mean."""
    array = np.asarray(values, float)
    _, place, counts = np.unique(array, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts + 1) / 2)[place]


@dataclass(frozen=True, slots=True)
class Warned:
    """How well warnings tell what is off.

    Attributes:
        share: of cells that carry a warning. far: cells off by more than a factor of 3. caught: of those, warned of.
    """

    share: float
    far: int
    caught: int


def warned(records: Iterable[dict]) -> Warned:
    """Warned cells among those with an error, and the far ones they catch."""
    scored = [r for r in records if r["log_ratio"] is not None]
    far = [r for r in scored if abs(r["log_ratio"]) > math.log(FAR)]
    share = sum(bool(r["warnings"]) for r in scored) / len(scored) if scored else 0.0
    return Warned(share, len(far), sum(bool(r["warnings"]) for r in far))


def inside(records: Iterable[dict]) -> float | None:
    """Share of the cells with an interval whose measured value lies in it; 80 % if the intervals are right."""
    known = [r for r in records if r.get("low") is not None]
    return sum(r["low"] <= r["measured"] <= r["high"] for r in known) / len(known) if known else None


def worst(records: Iterable[dict], count: int = 10) -> list[dict]:
    """The records that are farthest off, the worst first."""
    scored = [r for r in records if r["log_ratio"] is not None]
    return sorted(scored, key=lambda r: -abs(r["log_ratio"]))[:count]


def summary(records: Sequence[dict]) -> dict[str, Any]:
    """Everything about the cells as one JSON-ready dict: overall with and without exclusions, by group, warnings, worst."""
    counted = kept(records)
    overall, everything = errors(counted), errors(records)
    found = warned(counted)
    return {
        "cells": len(records),
        "kept": len(counted),
        "failed": sum(bool(r["error"]) for r in counted),
        "overall": overall and overall.plain(),
        "with_excluded": everything and everything.plain(),
        "groups": {
            key: {str(name): e.plain() for name, e in by(counted, key).items()} for key in GROUPS
        },
        "warned": {"share": found.share, "far": found.far, "caught": found.caught},
        "inside": {"all": inside(counted)} | {
            name: inside(r for r in counted if r["quantity"] == name) for name in sorted({r["quantity"] for r in counted})
        },
        "implausible": sum(bool(r["implausible"]) for r in records),
        "worst": [
            {key: r[key] for key in ("file", "line", "metric", "measured", "predicted", "log_ratio", "warnings", "config")}
            for r in worst(counted)
        ],
    }  # fmt: skip
