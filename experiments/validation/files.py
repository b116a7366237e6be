"""What a validation leaves behind.

OUT/cells.parquet, cells.csv   one row a cell: what it is, measured, predicted, why left out, warnings
OUT/summary.json               errors overall and by group, exclusions, the worst cells with their configuration
OUT/figure.svg, report.html    predicted against measured; the page
OUT/points.jsonl               results of the simulations, by a digest of all that they depend on
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.validation.validate import Validation, exclusions
from reports.validation import summary
from workloads.errors import OutputError

POINTS = "points.jsonl"
_LISTS = ("warnings", "rules")
_APART = ("config", "facts", "sources")


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """A record with plain values only, as the columns of a file."""
    kept = {key: value for key, value in record.items() if key not in _APART}
    return {key: "; ".join(value) if key in _LISTS else value for key, value in kept.items()}


def report(found: Validation, records: Sequence[dict]) -> dict[str, Any]:
    """The summary as one JSON-ready dict."""
    counted: dict[str, Any] = {
        rule: {"cells": count, "reason": reason, "simulated": runnable}
        for (rule, reason, runnable), count in exclusions(found.cells).most_common()
    }
    sources: dict[str, int] = {}
    for record in records:
        for source in record["sources"]:
            sources[source] = sources.get(source, 0) + 1
    return {
        "complete": found.complete, "points": found.points, "known_points": found.known,
        "wall_seconds": round(found.seconds, 2), "notes": found.notes, "exclusions": counted, **summary(records),
        "fitted": {" ".join(map(str, group)): {kind: value} for group, (kind, value) in found.fitted.items()},
        "calibrated_on": sources,
    }  # fmt: skip


def write(found: Validation, records: Sequence[dict], out: Path, name: str) -> dict[str, Any]:
    """Write all files of a validation.

    Returns:
        The summary.

    Raises:
        OutputError: something cannot be written.
    """
    from reports.validation_figure import draw
    from reports.validation_page import render_validation

    result = report(found, records)
    rows = [flat(record) for record in records]
    try:
        out.mkdir(parents=True, exist_ok=True)
        with (out / "cells.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        _parquet(rows, out / "cells.parquet")
        (out / "summary.json").write_text(json.dumps(result, indent=1, allow_nan=False), encoding="utf-8")
        figure = draw([r for r in records if not r["excluded"]], out / "figure.svg")
        left = [(rule, each["cells"], each["reason"]) for rule, each in result["exclusions"].items()]
        facts = [
            ("cells", f"{len(records):,}"),
            ("simulations", f"{found.points:,}"),
            ("wall time", f"{found.seconds:,.0f} s"),
        ]
        page = render_validation(records, left, figure, name=name, facts=facts, notes=found.notes)
        (out / "report.html").write_text(page, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror or error}") from error
    return result


def _parquet(rows: Sequence[dict], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    columns = {key: [row[key] for row in rows] for key in rows[0]}
    for key in ("log_ratio", "predicted"):
        columns[key] = pa.array(columns[key], pa.float64())
    parquet.write_table(pa.table(columns), path)
