"""A plan as plain values, for machines: what `bench plan --json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from experiments.planner.deployment import deployment_of
from experiments.planner.plan import Plan
from experiments.planner.quantization import Guide
from experiments.planner.search import Found

SCHEMA_VERSION = 1


def plan_json(plan: Plan, guide: Guide | None = None, emitted: dict[str, str] | None = None) -> dict[str, Any]:
    """The whole plan."""
    question = plan.question
    demand = question.demand()
    return {
        "schema_version": SCHEMA_VERSION,
        "model": question.model.name,
        "slo": {str(limit).partition("=")[0]: limit.seconds * 1e3 for limit in question.limits},
        "traffic": {
            "requests": len(demand.traffic), "rate": demand.rate or None, "concurrency": demand.concurrency or None,
            "mean_input_tokens": demand.inputs, "mean_output_tokens": demand.outputs, "longest_tokens": demand.longest,
            "seen_share": demand.seen, "notes": list(demand.notes),
        },
        "gpus": [gpu.name for gpu in question.gpus],
        "max_gpus": question.max_gpus,
        "prices": {name: asdict(price) for name, price in question.prices.items()},
        "max_model_len": plan.longest,
        "simulations": plan.simulations,
        "best": _found(plan, plan.best),
        "margin": plan.margin,
        "within_error": plan.within_error if plan.best else None,
        "binds": plan.binds or None,
        "weights_from": (deployment_of(plan, plan.best).about_weights() or None) if plan.best else None,
        "sure": _found(plan, plan.sure),
        "plain": _found(plan, plan.plain),
        "roomier": _found(plan, plan.roomier),
        "unpriced": [_found(plan, each) for each in plan.unpriced],
        "closest": _found(plan, plan.closest),
        "advice": plan.advice,
        "candidates": [_found(plan, each) for each in plan.found],
        "quantization": _guide(guide),
        "notes": list(question.notes),
        "emit": emitted or {},
    }  # fmt: skip


def usd_per_million(plan: Plan, found: Found) -> dict[str, float] | None:
    """Dollars of a million tokens at the traffic's rate: of answers, and of prompts and answers; None without a price."""
    if not found.usd_per_hour:
        return None
    demand = plan.question.demand()
    rate = demand.rate
    if not rate and found.at:  # a closed loop takes what it gets
        rate = found.at.output_rate * found.replicas / demand.outputs
    if not rate:
        return None
    output = rate * demand.outputs * 3600 / 1e6
    return {
        "output": found.usd_per_hour / output,
        "total": found.usd_per_hour / (output * (demand.inputs + demand.outputs) / demand.outputs),
    }


def _found(plan: Plan, found: Found | None) -> dict[str, Any] | None:
    if found is None:
        return None
    candidate = found.candidate
    at = found.at
    return {
        "gpu": candidate.gpu, "tensor": candidate.tensor, "pipeline": candidate.pipeline, "engine": candidate.preset,
        "quantization": found.weights or candidate.quantization, "kv_dtype": candidate.kv_dtype,
        "knobs": dict(candidate.knobs), "meets": found.meets, "stage": found.stage, "reason": found.reason or None,
        "replicas": found.replicas or None, "gpus": found.gpus or None, "usd_per_hour": found.usd_per_hour,
        "usd_per_million_tokens": usd_per_million(plan, found), "figures": dict(at.figures) if at else None,
        "ranges": found.ranges or None, "margin": 1 - at.worst if at else None, "binds": at.binds if at else None,
        "overloaded": at.overloaded if at else None, "requests": at.requests if at else None,
        "verified": found.verified, "least_replicas": found.bounds.least if found.bounds else None,
        "capacity": found.bounds.capacity if found.bounds else None,
        "tried": {str(count): good for count, good in found.tried.items()},
    }  # fmt: skip


def _guide(guide: Guide | None) -> dict[str, Any] | None:
    if guide is None:
        return None
    return {
        "gpu": guide.gpu,
        "tensor": guide.tensor,
        "advice": list(guide.advice),
        "modes": [{**asdict(each), "speed": {str(b): v for b, v in each.speed.items()}} for each in guide.choices],
    }
