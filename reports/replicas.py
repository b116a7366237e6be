"""Several replicas side by side: how evenly they were used, and what each found in its cache."""

from __future__ import annotations

import numpy as np

from reports.concurrency import InFlight
from reports.percentiles import Distribution
from reports.run_data import FINISHED, UNFINISHED, RunData


def replica_figures(data: RunData) -> dict:
    """Figures of each replica and of their balance; nothing of a run with one engine.

    Returns:
        `imbalance`: tokens of prompts and answers of the busiest replica over the mean of all, 1 for an even load; and
        `replicas`, for each: `requests`, `completed`, `input_tokens`, `output_tokens`, `prefix_hit_rate`, `mean_in_flight`,
        `median_ttft_ms`, `p95_ttft_ms` (None where too few finished).
    """
    r, count = data.requests, data.info.get("replicas")
    if r.replica is None or not count:
        return {}
    found = [_one(data, r.replica == number) for number in range(count)]
    tokens = np.array([each["input_tokens"] + each["output_tokens"] for each in found], float)
    return {"imbalance": float(tokens.max() / tokens.mean()) if tokens.any() else None, "replicas": found}


def _one(data: RunData, own: np.ndarray) -> dict:
    r = data.requests
    done = own & (r.status == FINISHED)
    admitted = own & np.isfinite(r.admitted)
    prompt = int(r.input_tokens[admitted].sum())
    ttft = Distribution.of((r.first_token - r.sent)[done & np.isfinite(r.first_token)])
    end = float(data.info["end"])
    median, p95 = ttft.median(), ttft.percentile(95)
    return {
        "requests": int(own.sum()),
        "completed": int(done.sum()),
        "input_tokens": prompt,
        "output_tokens": int(r.output_tokens[own].sum()),
        "prefix_hit_rate": int(r.cached_tokens[admitted].sum()) / prompt if prompt else None,
        "mean_in_flight": in_flight(data, own).area() / end if end else None,
        "median_ttft_ms": None if median is None else median * 1e3,
        "p95_ttft_ms": None if p95 is None else p95 * 1e3,
    }


def in_flight(data: RunData, own: np.ndarray) -> InFlight:
    """Requests of those in the mask that were sent and not finished, over time; who was refused never was."""
    r = data.requests
    until = np.where(r.status == UNFINISHED, float(data.info["end"]), r.finish)
    return InFlight.of(r.sent[own], until[own])


def in_flight_over(data: RunData, edges: np.ndarray) -> list[np.ndarray]:
    """Mean number of requests in flight at each replica between neighbouring `edges`, in seconds."""
    found = []
    for number in range(data.info["replicas"]):
        level = in_flight(data, data.requests.replica == number)
        time, count = np.append(0.0, level.time), np.append(0, level.count)
        area = np.append(0.0, np.cumsum(count[:-1] * np.diff(time)))
        found.append(np.diff(np.interp(edges, time, area)) / np.maximum(np.diff(edges), 1e-12))
    return found
