"""Widths of the timeline's buckets."""

from __future__ import annotations

import numpy as np

from reports.run_data import RunData


def bucket_widths(data: RunData) -> np.ndarray:
    """Seconds that each bucket of the timeline covers; the last may be cut short by the end of the run."""
    t = data.timeline
    width = np.full(len(t.time), t.width)
    if len(width):
        left = float(data.info["end"]) - float(t.time[-1])
        if 0 < left < t.width:
            width[-1] = left
    return width
