"""A step, operator by operator: the same sizes and operators that price it, listed instead of summed."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

from sim.cost.assemble import Placed
from sim.cost.base import OperatorCost, StepShape

if TYPE_CHECKING:
    from sim.cost.analytic import AnalyticCost, StepSizes


def explain_step(cost: AnalyticCost, shape: StepShape) -> list[OperatorCost]:
    """All operators of a step; `kernel_launch` and `host` are the last two, swapping comes before them."""
    if shape.drafts or shape.passes:
        drafts = cost.drafting.explain(cost, shape)
        gpu = cost.drafting_seconds(shape)
        whole = _explain(cost, cost.sizes_of(shape), shape.decode_rows + len(shape.chunks), shape.swapped_tokens)
        host = replace(whole[-1], seconds=cost.host.visible(gpu, shape.decode_rows + len(shape.chunks)))
        return [*whole[:-1], *drafts, host]
    if shape.chunks:
        return _explain(cost, cost.mixed_sizes(shape), shape.decode_rows + len(shape.chunks), shape.swapped_tokens)
    rows, context = shape.decode_rows + shape.padding_tokens, shape.decode_context + shape.padding_context
    if rows <= 0:
        swap = [_cost(cost.operators.swap, shape.swapped_tokens)] if shape.swapped_tokens else []
        return [*swap, OperatorCost("host", 0.0, 0.0, 0.0, 1, "host", cost.host.source)]
    return _between(cost, rows, context, shape.swapped_tokens)


def _between(cost: AnalyticCost, rows: int, context: int, swapped: int) -> list[OperatorCost]:
    """A decode-only step: like its price, interpolated between the two ends of its line."""
    from sim.cost.analytic import KNOTS

    at = bisect_right(KNOTS, context) - 1
    low, high = KNOTS[at], KNOTS[at + 1]
    share = (context - low) / (high - low)
    left = _explain(cost, cost.decode_sizes(rows, low), rows, swapped)
    right = _explain(cost, cost.decode_sizes(rows, high), rows, swapped)
    costs = []
    for a, b in zip(left, right, strict=True):
        seconds, flops, moved = (
            x + (y - x) * share for x, y in ((a.seconds, b.seconds), (a.flops, b.flops), (a.bytes, b.bytes))
        )
        costs.append(OperatorCost(a.name, seconds, flops, moved, a.count, (b if share > 0.5 else a).bound, a.source))
    return costs


def _explain(cost: AnalyticCost, sizes: StepSizes, sequences: int, swapped: int) -> list[OperatorCost]:
    ops, host = cost.operators, cost.host
    gpu, waiting = cost.device_seconds(sizes)
    costs = operators_of(cost, sizes)
    if swapped:
        costs.append(_cost(ops.swap, swapped))
    return [
        *costs,
        OperatorCost("kernel_launch", waiting, 0.0, 0.0, ops.launches, "host", host.source),
        OperatorCost("host", host.visible(gpu, sequences), 0.0, 0.0, 1, "host", host.source),
    ]


def operators_of(cost: AnalyticCost, sizes: StepSizes) -> list[OperatorCost]:
    """What the device computes in a step, without swapping."""
    ops = cost.operators
    costs = [_cost(placed, sizes.tokens) for placed in ops.token]
    if sizes.prefill is not None and ops.full_layers:
        costs.append(_cost(Placed("attention_prefill", ops.prefill, ops.full_layers), *sizes.prefill))
    if sizes.windowed is not None and ops.windowed_layers:
        placed = Placed(f"attention_prefill_{ops.near}", ops.near_prefill or ops.prefill, ops.windowed_layers)
        costs.append(_cost(placed, *sizes.windowed))
    for name, count, operator, size in cost.decode_parts(sizes):
        costs.append(_cost(Placed(name, operator, count), *size))
    costs += [_cost(placed, *sizes.mix) for placed in ops.extra]
    if sizes.sampled:
        costs += [_cost(placed, sizes.sampled) for placed in ops.sample]
    return costs


def _cost(placed: Placed, *size: float) -> OperatorCost:
    operator, count = placed.operator, placed.count
    work = operator.work(*size)
    seconds = count * operator.seconds(*size)
    moved = count * work.bytes
    return OperatorCost(placed.name, seconds, count * work.flops, moved, count, work.bound, operator.source)


def provenance(cost: AnalyticCost) -> list[dict]:
    """Where every figure is from, as {"what", "value", "source"}."""
    ops = cost.operators
    attention = [Placed("attention_decode", ops.decode, 1), Placed("attention_prefill", ops.prefill, 1)]
    if ops.among is not None:
        attention.append(Placed("attention_decode_among_prompts", ops.among, 1))
    placed = [*ops.token, *attention, *ops.extra, *ops.sample, ops.swap]
    found = [{"what": p.name, "value": type(p.operator).__name__, "source": p.operator.source} for p in placed]
    drafter = cost.drafting and cost.drafting.drafter
    if drafter:
        own = [*drafter.operators.token, *drafter.operators.sample]
        found += [
            {"what": f"draft_{p.name}", "value": type(p.operator).__name__, "source": p.operator.source} for p in own
        ]
    found.append({"what": "host", "value": "Host", "source": cost.host.source})
    found.append({"what": "front_end", "value": "FrontEnd", "source": cost.front_end.source})
    return found
