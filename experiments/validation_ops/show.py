"""`bench validate --operators`: what operator prices are off by, on the console and as a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.validation_ops.report import GroupErrors, validate_operators
from sim.cost.fit import Errors
from workloads.errors import OutputError

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.validation_ops.rows import Rows

FILE = "operators.csv"
_SHOWN = 12


def run(
    paths: Iterable[Path], out: Path, *, refit: bool, tell: Callable[[str], None]
) -> tuple[Rows, list[GroupErrors]]:
    """Validate, and write a row a group to `operators.csv` in the folder.

    Raises:
        InputError: nothing to read, or a wrong value. OutputError: the folder cannot be written.
    """
    rows, found = validate_operators(paths, refit=refit, tell=tell)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with (out / FILE).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(records(found)[0]))
            writer.writeheader()
            writer.writerows(records(found))
    except OSError as error:
        raise OutputError(f"cannot write {out / FILE}: {error.strerror}") from None
    return rows, found


def records(found: Iterable[GroupErrors]) -> list[dict[str, Any]]:
    """A flat record a group."""
    return [
        {
            **each.group._asdict(), "rows": each.rows, **_flat("shipped", each.shipped), **_flat("refitted", each.refitted),
            **_flat("table", each.table), "constants": each.source,
        }
        for each in found
    ]  # fmt: skip


def _flat(name: str, errors: Errors | None) -> dict[str, Any]:
    return {
        f"{name}_{part}": round(getattr(errors, part), 5) if errors is not None else ""
        for part in ("median", "mean", "p95", "bias")
    }


def show(rows: Rows, found: list[GroupErrors], out: Path, console: Console) -> None:
    """Print a table: median / mean / 95th percentile of |log(predicted / measured)| on the half held out."""
    from rich.table import Table
    from rich.text import Text

    table = Table("operator", "engine", "GPU", "kind", "rows", "as shipped", "refitted", "table", "from", box=None)
    for each in found:
        g = each.group
        table.add_row(
            g.op, g.engine, g.gpu, g.kind, f"{each.rows:,}", _three(each.shipped), _three(each.refitted), _three(each.table),
            Text(g.source, "dim"),
        )  # fmt: skip
    console.print(table)
    console.print(
        "median / mean / 95th percentile of |log(predicted / measured)| in per cent, on the half of each group's rows that\n"
        "nothing was fitted to; refitted: the same form fitted to the other half; table: that half as a measured table"
    )
    for reason, count in rows.skipped.most_common():
        console.print(Text(f"  left out: {count:,} {reason}", "dim"))
    for sentence in rows.impossible[:_SHOWN]:
        console.print(Text(f"  impossible: {sentence}", "dim"), soft_wrap=True)
    if len(rows.impossible) > _SHOWN:
        console.print(Text(f"  … and {len(rows.impossible) - _SHOWN} more", "dim"))
    console.print(f"written to {out / FILE}")


def _three(errors: Errors | None) -> str:
    return f"{100 * errors.median:.1f} / {100 * errors.mean:.1f} / {100 * errors.p95:.0f}" if errors else ""
