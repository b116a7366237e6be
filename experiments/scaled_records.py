"""What is told of replicas that come and go: how many there were when, what that cost, and a timeline of those there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reports.run_data import Requests, Timeline

if TYPE_CHECKING:
    from experiments.scaled import Scaled

_KV = ("kv_used", "kv_cached", "kv_reserved", "kv_internal", "kv_external", "kv_free")


def gone(scaled: Scaled, requests: list[Requests], end: float) -> np.ndarray:
    """When each replica was gone, seconds: after its last answer, if it was told to go; else at the end of the run."""
    found = []
    for life, its in zip(scaled.lives, requests, strict=True):
        last = np.nanmax(its.finish, initial=life.asked) if np.isfinite(its.finish).any() else life.asked
        found.append(min(max(life.last, last), end) if life.last < end else end)
    return np.array(found)


def while_there(scaled: Scaled, timelines: list[Timeline], until: np.ndarray, end: float) -> np.ndarray:
    """Take the memory of replicas out of their timelines while they are not there; how many were there on average, by bucket."""
    first = timelines[0]
    edges = np.append(first.time, max(end, first.time[-1]))
    total = np.zeros(len(first.time))
    for life, last, timeline in zip(scaled.lives, until, timelines, strict=True):
        since = min(life.ready, last)
        there = np.clip(np.minimum(edges[1:], last) - np.maximum(edges[:-1], since), 0.0, None)
        share = there / np.maximum(np.diff(edges), 1e-12)
        for name in _KV:
            setattr(timeline, name, getattr(timeline, name) * share)
        total += share
    return total


def scaling_info(scaled: Scaled, until: np.ndarray, end: float, gpus: int) -> dict[str, Any]:
    """Facts for `RunData.info`: replicas over time and GPU-hours, `gpus` a replica."""
    asked = np.array([life.asked for life in scaled.lives])
    hours = float((until - asked).sum()) / 3600 * gpus
    return {
        "min": scaled.rule.min, "max": scaled.rule.max, "gpus_each": gpus, "gpu_hours": hours,
        "fixed_gpu_hours": scaled.rule.max * gpus * end / 3600,
        "mean": float((until - asked).sum()) / end if end else float(len(asked)),
        "started": len(asked), "went": int(sum(life.last < end for life in scaled.lives)),
        "history": [list(entry) for entry in scaled.history],
    }  # fmt: skip
