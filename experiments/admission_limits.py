"""Warnings on a run in which admission decided: memory kept for answers that never came, prompts longer than a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.timeline import mean_of_samples
from reports.run_data import REFUSED, Requests
from sim.engine.engine import Engine

MUCH = 0.5
"""Share of the KV pool that is kept back on average, from which on it is told."""

FEW = 0.5
"""Share of the declared tokens that the answers have, below which it is told."""


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
