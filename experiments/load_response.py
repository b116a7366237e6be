"""How an engine under an open load answers to slower steps: in the mean, from one run and the cost model.

Requests come at their own rate, so slower steps mean more sequences and more prompt tokens in each: batch and prefill
both grow with the time of a step. With `T(k)` the time of a step that holds k times as much as the run's mean step, steps
that take a factor s longer settle where `k T(1) = s T(k)`. Beyond what the engine holds at once there is no such k: the
queue grows as long as requests come, at what the full engine cannot serve.

An engine that is idle part of the time takes slower steps out of its idle time first: whoever comes to an idle engine finds
nobody to share a step with, however long steps take. So a step fills up only for the share of time in which the engine is busy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from reports.run_data import FINISHED, RunData
from sim.cost.base import StepShape

_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class Response:
    """What slower or faster steps do.

    Attributes:
        latency: factor of the time of a step, and so of latencies without their queue.
        served: share of the arriving requests that the engine keeps up with, at most 1.
        wait: seconds that the queue adds to a request in the end; half of it in the mean.
    """

    latency: float
    served: float = 1.0
    wait: float = 0.0


def mean_shape(data: RunData) -> tuple[StepShape, float] | None:
    """The mean step of a run: its decoding rows and a chunk as long as the mean prompt that is computed, and how many such
    chunks there are a step. None where there were no steps."""
    r, t = data.requests, data.timeline
    steps, done = int(t.steps.sum()), data.requests.status == FINISHED
    admitted = int(np.isfinite(r.admitted).sum())
    if not steps or not admitted or not done.any():
        return None
    outputs = r.output_tokens[done].astype(float)
    context = float(np.dot(outputs, r.input_tokens[done] + outputs / 2) / outputs.sum())
    rows = max(round(int(t.decode_tokens.sum()) / steps), 1)
    prompt = max(round(int(t.prefill_tokens.sum()) / admitted), 1)
    return StepShape(rows, round(rows * context), ((prompt, 0),), rows + 1), admitted / steps


def respond(cost: Any, data: RunData, factor: float) -> Response:
    """How the run answers if every step takes `factor` times as long."""
    mean = mean_shape(data)
    if mean is None:
        return Response(factor)
    shape, chunks = mean
    most = _room(data, shape)

    def seconds(k: float) -> float:
        rows, context, (prompt, _) = round(shape.decode_rows * k), round(shape.decode_context * k), shape.chunks[0]
        often = min(chunks * k, 1.0)
        tokens = round(prompt * max(chunks * k, 1.0))
        plain = cost.step_seconds(StepShape(rows, context, (), rows)) if rows else 0.0
        return (1 - often) * plain + often * cost.step_seconds(StepShape(rows, context, ((tokens, 0),), rows + 1))

    base, idle = seconds(1.0), 1.0 - float(np.mean(data.timeline.busy))
    k = 1.0
    for _ in range(_ROUNDS):  # rises or falls towards the nearest solution, never past it
        longer = factor * seconds(k) / base
        busy = min((1.0 - idle) * longer / k, 1.0)
        after = 1.0 + busy * (longer - 1.0)
        if after > most and busy == 1.0:
            return _overloaded(data, factor, factor * seconds(most) / base, most)
        if abs(after - k) < 1e-4 * k:
            break
        k = after
    longer = factor * seconds(k) / base
    return Response(factor + (longer - factor) * _settled(data, abs(longer - 1) / max(abs(factor - 1), 1e-9)))


def _settled(data: RunData, stays: float) -> float:
    """Mean share of the way to its end that the run has gone, if that takes so many stays of a request."""
    r = data.requests
    done, sent = r.status == FINISHED, r.sent[np.isfinite(r.sent)]
    lasted, needed = float(np.ptp(sent)), stays * float((r.finish - r.sent)[done].mean())
    if needed <= 0:
        return 1.0
    if lasted <= 0:  # all came at once: no more come for slower steps to pile up
        return 0.0
    return 1 - needed / lasted * (1 - exp(-lasted / needed))


def _room(data: RunData, shape: StepShape) -> float:
    """How many times the mean batch the engine holds at once."""
    rows, pool = data.info.get("max_num_seqs"), data.info.get("kv_pool_tokens")
    replicas = data.info.get("replicas") or 1
    limits = [rows / replicas / shape.decode_rows] if rows else []
    limits += [pool / replicas / shape.decode_context] if pool and shape.decode_context else []
    return max(min(limits, default=float("inf")), 1.0)


def _overloaded(data: RunData, factor: float, latency: float, most: float) -> Response:
    served = min(most / latency, 1.0)
    sent = data.requests.sent[np.isfinite(data.requests.sent)]
    window = float(np.ptp(sent)) if len(sent) else 0.0
    gone = _settled(data, abs(latency - 1) / max(abs(factor - 1), 1e-9))
    return Response(factor + (latency - factor) * gone, 1 - (1 - served) * gone, window * (1 / served - 1) * gone)
