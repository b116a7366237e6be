"""Warnings on a run in which admission decided: memory kept for answers that never came, prompts longer than a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from experiments.timeline import mean_of_samples
from reports.run_data import REFUSED, Requests
from sim.engine.engine import Engine
from sim.engine.state import LONG_ANSWER

MUCH = 0.5
"""Share of the KV pool that is kept back on average, from which on it is told."""

FEW = 0.5
"""Share of the declared tokens that the answers have, below which it is told."""

LONG_WAIT = 0.1
"""Share of the time that requests take which they wait to be admitted, from which on a gate that learns is told of."""


def kept_back(engine: Engine, requests: Requests, seconds: float) -> float:
    """Mean share of the KV pool that a gate kept back for declared answers in a run of `seconds`; 0 for other gates."""
    mean = mean_of_samples(engine, "kept_back", seconds) if len(requests) else 0.0
    return mean / engine.state.allocator.capacity


def gate_reservation(engine: Engine, requests: Requests, share: float, source: Any) -> list[str]:
    """What to tell the user of a run in which `share` of the pool was kept back; `source` is where declarations are from."""
    served = requests.output_tokens > 0
    if share < MUCH or not served.any():
        return []
    declared, had = float(requests.max_tokens[served].mean()), float(requests.target_tokens[served].mean())
    waited = float(np.nanmean(requests.admitted[served] - requests.queued[served]))
    if had > FEW * declared:
        return []
    return [
        f"gate {engine.config.scheduler.gate} kept {100 * share:.0f} % of the KV pool back, on average, for the "
        f"{declared:,.0f} tokens that requests declare (traffic.max_tokens: {source}); their answers have {had:,.0f}, and "
        f"requests waited {waited:,.1f} s to be admitted. Where clients declare less, say so: max_tokens: exact, "
        "{multiple: 2} or {fixed: 1024}"
    ]


def learned_reservation(engines: Iterable[Engine], requests: Requests, source: Any) -> list[str]:
    """What to tell the user where a gate that reserves a share of declared answers (`ratio`) kept requests waiting.

    It is told where prompts that would have fitted were refused, answers are much shorter than the gate counts on, and the
    wait is a good part of what requests took.
    """
    served = requests.output_tokens > 0
    if not served.any() or not any(engine.state.kept_for_answers for engine in engines):
        return []
    counted = float(np.minimum(requests.max_tokens[served], LONG_ANSWER).mean())
    had = float(requests.target_tokens[served].mean())
    waited = float(np.nanmean(requests.admitted[served] - requests.queued[served]))
    took = float(np.nanmean(requests.finish[served] - requests.queued[served]))
    if had > FEW * counted or not waited > LONG_WAIT * took:
        return []
    return [
        f"gate ratio counts on answers of {counted:,.0f} tokens from what requests declare (traffic.max_tokens: {source}; "
        f"at most {LONG_ANSWER:,} each) and keeps a share of that free; they have {had:,.0f}, and requests waited "
        f"{waited:,.1f} s to be admitted. Benchmark tools declare what they ask for: max_tokens: exact; where clients "
        "declare less, {multiple: 2} or {fixed: 1024}"
    ]


def whole_prompts(engine: Engine, requests: Requests) -> list[str]:
    """Prompts that an engine turned away because it computes them in one piece."""
    if engine.config.scheduler.name != "continuous":
        return []
    budget = engine.config.scheduler.max_num_batched_tokens
    long = int(((requests.status == REFUSED) & (requests.input_tokens > budget)).sum())
    if not long:
        return []
    return [
        f"{long:,} of {len(requests):,} prompts are longer than a step (max_num_batched_tokens {budget:,}) and were refused, as "
        f"{engine.config.preset} does where prompts are not cut: raise engine.scheduler.max_num_batched_tokens, or use a preset "
        "that cuts them"
    ]
