"""Replicas that come and go: how many there were when, and what that cost."""

from __future__ import annotations

import numpy as np

from reports.run_data import RunData
from reports.wording import number, share

STATES = ("ready", "starting", "leaving")


def scaling_figures(data: RunData) -> dict:
    """Figures of a run whose replicas came and went; nothing of others.

    Returns:
        `scaling`: `mean` replicas that were paid for, the `most` that were ready at once, how many `started` and `went`,
        `gpu_hours`, and `fixed_gpu_hours` of as many as are allowed for all of the time.
    """
    found = data.info.get("scaling")
    if not found:
        return {}
    kept = ("min", "max", "mean", "started", "went", "gpus_each", "gpu_hours", "fixed_gpu_hours")
    figures = {key: found[key] for key in kept}
    return {"scaling": {**figures, "most": max(ready for _, ready, _, _ in found["history"])}}


def scaling_rows(s: dict) -> list[tuple[str, str]]:
    """What is told of it, as (title, figure)."""
    found = s["scaling"]
    saved = 1 - found["gpu_hours"] / found["fixed_gpu_hours"] if found["fixed_gpu_hours"] else None
    return [
        (f"Replicas, mean / most at once (of {found['min']} to {found['max']})",
         f"{number(found['mean'])} / {number(found['most'])}"),
        ("  Started / let go", f"{number(found['started'])} / {number(found['went'])}"),
        ("  GPU-hours", number(found["gpu_hours"])),
        (f"  Less than {found['max']} all the time", share(saved)),
    ]  # fmt: skip


def replicas_over(data: RunData, edges: np.ndarray) -> dict[str, np.ndarray]:
    """Mean number of replicas in each of `STATES` between neighbouring `edges`, seconds."""
    history = np.array(data.info["scaling"]["history"], float)
    found = {}
    for column, name in enumerate(STATES, 1):
        level = history[:, column]
        area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(history[:, 0]))])
        beyond = np.maximum(edges - history[-1, 0], 0.0) * level[-1]
        total = np.interp(edges, history[:, 0], area) + beyond
        found[name] = np.diff(total) / np.maximum(np.diff(edges), 1e-12)
    return found
