"""What a reader of a sweep must know of its points: requests that failed, and loops too short to say anything of their middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.wording import alike

if TYPE_CHECKING:
    from experiments.sweep import Point, SweepResult

FEWEST_A_CLIENT = 3
"""Requests a client of a closed loop: with fewer, most of the run is filling up and running empty."""
_TOLD = 3
LOST = ("connect", "cut")
"""Ways in which requests fail whose server is gone."""


def sweep_warnings(result: SweepResult) -> list[str]:
    """A sentence for each point that lost requests, the worst first, and one for all whose closed loop is short."""
    from experiments.sweep import short_name

    ran = [point for point in result.points if point.summary]
    losers = sorted((p for p in ran if p.summary.get("failed")), key=_share_lost, reverse=True)
    warnings = []
    for point in losers[:_TOLD]:
        s = point.summary
        reasons = alike(s.get("failed_reasons") or {}, 200, 1)
        common = f" (most often {reasons[0][0]})" if reasons else ""
        warnings.append(f"{short_name(point.values)}: {s['failed']:,} of {s['requests']:,} requests failed{common}")
    if len(losers) > _TOLD:
        warnings.append(f"{len(losers) - _TOLD} more points have requests that failed")
    if short := [point for point in ran if _short(point)]:
        few = min(short, key=lambda point: point.summary["requests"] / point.workload.load.concurrency)
        each = few.summary["requests"] / few.workload.load.concurrency
        others = f", and {len(short) - 1} more points like it" if len(short) > 1 else ""
        warnings.append(
            f"{short_name(few.values)}{others}: {each:.3g} requests a client are few: filling up and running empty are much of "
            "such a run (make traffic longer)"
        )
    return warnings


def lost_its_server(summary: dict) -> bool:
    """Whether requests failed because the server was gone: a point to be run again when it is back."""
    return any(str(reason).split(":")[0] in LOST for reason in summary.get("failed_reasons") or {})


def _share_lost(point: Point) -> float:
    return point.summary["failed"] / max(point.summary["requests"], 1)


def _short(point: Point) -> bool:
    load, count = point.workload.load, point.summary.get("requests")
    return bool(load.mode == "closed" and count and load.concurrency > 1 and count < FEWEST_A_CLIENT * load.concurrency)
