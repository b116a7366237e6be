"""What arithmetic says before anything is simulated: what a lone request takes, and what a full replica keeps up with.

A lone request on an idle engine is as fast as any: where it is too slow, no number of replicas helps. A replica's capacity is
that of its best steady batch: `B` sequences decode, and `B / output` of them end and are replaced by new prompts in each step;
a step with its share of their prefill takes `t`, and `B / (output × t)` requests a second are served. `B` is bounded by the
sequences and the KV that the engine may hold, and by the TPOT that is allowed, since `t` is the time between two tokens. With
speculative decoding a step gives several tokens, and `t` is its time over their mean number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp

import numpy as np

from experiments.planner.demand import Demand
from experiments.planner.slo import Limit
from experiments.resolve import Resolved
from sim.cost.base import StepShape

SLACK = 1.25
"""A simulated replica may do so many times better than its steady batch says: the floor of the number of replicas."""
FULL = 0.85
"""Share of its capacity at which a replica is first tried."""
_TOLERANCE = 1.02


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one candidate.

    Attributes:
        capacity: requests a second that a replica keeps up with, at best.   batch: sequences decoding then.
        least, guess: replicas that are needed at the very least, and where to begin.
        problem: why no number of replicas will do; "" where one may.
        excess: what is possible over what is allowed, of the limit that no number of replicas meets; 0 where there is none.
    """

    capacity: float
    batch: int
    least: int
    guess: int
    problem: str = ""
    excess: float = 0.0


def bounds(resolved: Resolved, demand: Demand, limits: Sequence[Limit]) -> Bounds:
    """Bounds of a candidate that fits into memory."""
    problem, excess = _alone(resolved, demand, limits)
    capacity, batch = _capacity(resolved, demand, limits)
    if demand.concurrency:
        guess = max(ceil(demand.concurrency / max(batch, 1)), 1)
        return Bounds(capacity, batch, 1, guess, problem, excess)
    if not capacity:
        return Bounds(0.0, batch, 1, 1, problem, excess)
    # stages work on different batches at once: at best each is busy all the time
    least = max(ceil(demand.rate / (capacity * SLACK * resolved.engine.parallel.pipeline)), 1)
    return Bounds(capacity, batch, least, max(ceil(demand.rate / (capacity * FULL)), least), problem, excess)


def _alone(resolved: Resolved, demand: Demand, limits: Sequence[Limit]) -> tuple[str, float]:
    """Which limit a lone request breaks, and by what factor."""
    traffic, worst = demand.traffic, ("", 0.0)
    for limit in limits:
        seconds = None
        if limit.metric == "ttft" and not demand.seen:  # a hit in a prefix cache makes prompts shorter
            seconds = first_token(resolved, _statistic(traffic.input_tokens, limit))
            what = "the first token of a prompt like that, alone on the engine, takes"
        elif limit.metric in ("tpot", "itl"):
            context = int(traffic.input_tokens.min()) + 1
            most = 1 + resolved.engine.speculation.num_speculative_tokens
            seconds = resolved.cost.step_seconds(_step(resolved, 1, context)) / most
            what = "a token of one request, alone on the engine, takes"
        if seconds is not None and seconds > _TOLERANCE * limit.seconds and seconds / limit.seconds > worst[1]:
            said = f"{limit.name}: {what} {seconds * 1e3:.3g} ms, and {limit.seconds * 1e3:.4g} ms are allowed"
            worst = (said, seconds / limit.seconds)
    return worst


def _statistic(values: np.ndarray, limit: Limit) -> int:
    return (
        int(values.mean()) if limit.percentile is None else int(np.percentile(values, limit.percentile, method="lower"))
    )


def first_token(resolved: Resolved, tokens: int) -> float:
    """Seconds from sending a prompt of so many tokens to its first token, on an idle engine."""
    front, budget = resolved.cost.front_end, resolved.engine.scheduler.max_num_batched_tokens
    seconds, done = front.request_seconds(tokens) + front.token_seconds, 0
    while done < tokens:
        new = min(budget, tokens - done)
        seconds += resolved.cost.step_seconds(_step(resolved, 0, 0, ((new, done),), int(done + new == tokens)))
        done += new
    return seconds


def _capacity(resolved: Resolved, demand: Demand, limits: Sequence[Limit]) -> tuple[float, int]:
    """Requests a second of the best steady batch, and its sequences."""
    outputs = demand.outputs
    context = demand.inputs + outputs / 2
    most = min(resolved.engine.scheduler.max_num_seqs, resolved.budget.batch(context))
    # of gaps between tokens only the mean is the mean step; a percentile of them may be well below it
    gaps = [limit for limit in limits if limit.metric == "tpot" or (limit.metric == "itl" and limit.stat == "mean")]
    slowest = min((limit.seconds for limit in gaps), default=float("inf"))
    best, batch = 0.0, 1
    for rows in _sizes(most):
        seconds = steady_step(resolved, rows, demand)
        rate = rows / (outputs * seconds)
        if seconds > slowest and rows > 1:
            break
        if rate > best:
            best, batch = rate, rows
    return best, batch


def steady_step(resolved: Resolved, rows: int, demand: Demand) -> float:
    """Seconds from one token of a sequence to its next where so many decode, and a new prompt comes for each that ends.

    Prompts come whole, and at random: in a step one or more come with `1 - exp(-rows / outputs)`. They are computed beside the
    decoding rows, or in a step of their own while those wait, as the engine does it. Where more comes than its token budget
    takes, fewer rows decode at a time.
    """
    prompt, cached = demand.inputs * (1 - demand.seen), round(demand.inputs * demand.seen)
    gained = resolved.engine.speculation.tokens_a_step
    context, come = demand.inputs + demand.outputs / 2, rows * gained / demand.outputs
    scheduler, cost = resolved.engine.scheduler, resolved.cost
    apart = scheduler.prefill == "first"
    room = max(scheduler.max_num_batched_tokens - (0 if apart else rows), 1)
    often = max(1 - exp(-come), come * prompt / room)  # steps with prefill for each with decodes, or of them
    tokens = come * prompt / often
    pieces = max(round(tokens / prompt), 1) if prompt else 1
    chunks = ((max(round(tokens / pieces), 1), cached),) * pieces
    ended = min(round(come / often), pieces)
    plain = cost.step_seconds(_step(resolved, rows, context))
    if apart:
        return (plain + often * cost.step_seconds(_step(resolved, 0, 0, chunks, ended))) / gained
    beside = rows if often <= 1 else max(round(rows / often), 1)
    mixed = often * cost.step_seconds(_step(resolved, beside, context, chunks, ended))
    return (mixed if often >= 1 else (1 - often) * plain + mixed) / gained


def _step(
    resolved: Resolved, rows: int, context: float, chunks: tuple[tuple[int, int], ...] = (), ended: int = 0
) -> StepShape:
    """A step in which `rows` sequences of `context` tokens decode, with their drafts where there are any, and prompts end."""
    passes = resolved.engine.speculation.num_speculative_tokens
    drafts = rows * passes
    return StepShape(
        rows, round(rows * context) + drafts, chunks, rows + drafts + ended, drafts=drafts, passes=passes
    )  # fmt: skip


def _sizes(most: int) -> list[int]:
    """Batches to look at: about 20 % apart."""
    sizes, rows = [], 1.0
    while rows < most:
        sizes.append(int(rows))
        rows = max(rows * 1.2, rows + 1)
    return [*dict.fromkeys(sizes), max(most, 1)]
