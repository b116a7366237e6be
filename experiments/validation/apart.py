"""Measured deployments with prefill apart from decode, as their notes lay them out.

`disaggregated; prefill: workers=1 tp=1 pp=1 dp_attention=8 moe_tp=1 moe_ep=8 batch=1; decode: workers=4 tp=8 …`: engines on
either side, the degrees of each, and how many sequences a rank has at most.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sim.models import ModelSpec

_USUAL_BUDGET = 8192 + 1024 + 64  # tokens of a step that no request of the usual lengths exceeds
_SIDE = re.compile(
    r"(prefill|decode): workers=(\d+) tp=(\d+) pp=(\d+) dp_attention=(\d+) moe_tp=(\d+) moe_ep=(\d+) batch=(\d*)"
)


@dataclass(frozen=True, slots=True)
class Side:
    """Engines of one kind: how many, the degrees of each, sequences of a rank (0: not stated)."""

    workers: int
    tensor: int
    pipeline: int
    data: int
    expert: int
    batch: int

    @property
    def gpus(self) -> int:
        """All GPUs of this side."""
        return self.workers * self.tensor * self.pipeline * self.data


def is_apart(text: str) -> bool:
    """Whether notes or an engine's name speak of prefill apart from decode."""
    return re.search(r"disagg", text, re.IGNORECASE) is not None


def sides_of(notes: str) -> tuple[Side, Side] | None:
    """Prefill and decode engines; None where the notes do not lay both out, with how many sequences they take.

    One table of aiconfigurator's silicon data states no sequences, one worker on each side and no attention ranks throughout,
    with the figures of other rows whose layout is another: 3,147.2 ms to the first token of an 8,192-token prompt at concurrency
    100 is told of 44 GPUs in six workers, and again of 12 in two. What such a row was measured on is not known.
    """
    found = {}
    for name, *degrees in _SIDE.findall(notes):
        workers, tensor, pipeline, data, _, expert, batch = (int(each or 0) for each in degrees)
        found[name] = Side(workers, tensor, pipeline, max(data, 1), max(expert, 1), batch)
    if set(found) != {"prefill", "decode"} or not all(side.batch and side.gpus for side in found.values()):
        return None
    return found["prefill"], found["decode"]


def cluster_of(sides: tuple[Side, Side], model: ModelSpec, longest: int) -> dict[str, Any]:
    """The `cluster:` section of a deployment. An engine that computes prompts has room in a step for the `longest` request."""
    section: dict[str, Any] = {}
    for name, side in zip(("prefill", "decode"), sides, strict=True):
        degrees = {"tensor": side.tensor, "pipeline": side.pipeline, "data": side.data if model.experts else 1}
        workers = side.workers if model.experts else side.workers * side.data
        if model.experts:
            degrees["expert"] = _fitting(model, side)
        parallel = {key: degree for key, degree in degrees.items() if degree > 1}
        section[name] = {"replicas": workers, "router": "least-requests", "engine": {"parallel": parallel}}
    if longest > _USUAL_BUDGET:
        section["prefill"]["engine"]["scheduler"] = {"max_num_batched_tokens": longest}
    return section


def _fitting(model: ModelSpec, side: Side) -> int:
    """Experts lie over ranks of attention, where there are any."""
    wanted = max(side.expert, side.tensor * side.data) if side.data > 1 else side.expert
    fits = (
        e for e in range(wanted, 0, -1)
        if model.experts % e == 0 and (e % side.tensor == 0 or side.tensor % e == 0)
    )  # fmt: skip
    return next(fits, 1)
