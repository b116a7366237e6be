"""Attention data parallelism: ranks that each serve requests of their own, and meet in the experts of every layer.

The engine has the whole group as one: its requests, its tokens, its pool. A rank gets an equal share of the sequences that
decode; prompts fall to ranks at random. All ranks take a step together, so a step takes as
long as its fullest rank: when one computes a prompt, the others wait for it, and decode outside CUDA graphs, which hold no
prompts. The experts see the tokens of all.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import exp
from typing import Any

from sim.config import EngineConfig
from sim.cost.analytic import AnalyticCost
from sim.cost.base import DecodeLine, OperatorCost, StepShape
from sim.cost.coverage import step_deviation
from sim.cost.host import FrontEnd, Host
from sim.memory import MemoryBudget

SHARED = ("experts", "dispatch", "combine")
"""Operators whose size is the tokens of all ranks; the others have those of one."""


@cache
def expected_most(prompts: int, ranks: int) -> int:
    """How many of so many prompts the rank with most of them has, in expectation: a request goes to the rank on which one has
    ended, so they fall to ranks at random (as many on each as a Poisson law has). At least an equal share."""
    mean = prompts / ranks
    most, within, term = 0.0, 0.0, exp(-mean)
    for count in range(prompts):
        within += term
        most += 1.0 - within**ranks
        term *= mean / (count + 1)
    return max(round(most), -(-prompts // ranks))


class RankGroup:
    """Prices steps of a group by those of its fullest rank.

    Args:
        rank: the cost model of one rank, whose experts are spread over the group.
        ranks: how many there are. budget: tokens that one of them takes in a step at most.
    """

    def __init__(self, rank: AnalyticCost, ranks: int, budget: int) -> None:
        self._rank, self._ranks, self._budget = rank, ranks, budget
        self.front_end = rank.front_end
        self._shared = [placed for placed in rank.operators.token if placed.name in SHARED]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rank, name)

    @property
    def host(self) -> Host:
        """Of every rank."""
        return self._rank.host

    @host.setter
    def host(self, host: Host) -> None:
        self._rank.host = host

    def with_times(self, host: Host, front_end: FrontEnd) -> RankGroup:
        """The same operators with another host and front end."""
        return RankGroup(self._rank.with_times(host, front_end), self._ranks, self._budget)

    def step_uncertainty(self, shape: StepShape) -> float:
        """Standard deviation of the logarithm of a whole step's time."""
        return step_deviation(self.explain(shape), self._rank.operators.uncertainty)

    def fullest(self, shape: StepShape) -> tuple[StepShape, float]:
        """The step of the fullest rank, and the mean tokens of a rank."""
        ranks, rows = self._ranks, shape.decode_rows + shape.padding_tokens
        mine = -(-rows // ranks)
        context = (shape.decode_context + shape.padding_context) * mine // rows if rows else 0
        chunks = self._of_fullest(shape.chunks)
        ends = max(shape.sampled - shape.decode_rows - shape.drafts, 0)
        sampled = mine + (-(-ends * len(chunks) // len(shape.chunks)) if chunks else 0)
        mean = (rows + shape.drafts + sum(new for new, _ in shape.chunks)) / ranks
        drafts = -(-shape.drafts * mine // rows) if rows else 0
        one = StepShape(
            mine, context, chunks, sampled + drafts, swapped_tokens=shape.swapped_tokens, drafts=drafts, passes=shape.passes
        )  # fmt: skip
        return one, mean

    def _of_fullest(self, chunks: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """The prompt pieces of the rank with most of them: as many of the longest as are expected of it, and as it may take."""
        taken, tokens = [], 0
        most = expected_most(len(chunks), self._ranks)
        for chunk in sorted(chunks, reverse=True)[:most]:
            tokens += chunk[0]
            if taken and tokens > self._budget:
                break
            taken.append(chunk)
        return tuple(taken)

    def step_seconds(self, shape: StepShape) -> float:
        """Duration of a step of the group, seconds."""
        drafting = shape.drafts or shape.passes
        if shape.chunks or drafting:
            one, mean = self.fullest(shape)
            gpu = sum(self._device(one, mean)) + (self._rank.drafting.seconds(self._rank, one) if drafting else 0.0)
            seconds = gpu + self.host.visible(gpu, one.decode_rows + len(one.chunks))
        else:
            context = shape.decode_context + shape.padding_context
            line = self.decode_line(shape.decode_rows + shape.padding_tokens, context)
            seconds = line.intercept + line.slope * context
        if shape.swapped_tokens:
            seconds += self._rank.operators.swap.operator.seconds(shape.swapped_tokens)
        return seconds

    def _device(self, one: StepShape, mean: float) -> tuple[float, float]:
        """Seconds that the fullest rank computes in a step with prompts, and that it waits for launches besides."""
        rank, sizes = self._rank, self._rank.sizes_of(one)
        device, waiting = rank.device_seconds(sizes)
        busy = device - waiting
        for _, operator, count in self._shared:
            busy += count * (operator.seconds(mean) - operator.seconds(sizes.tokens))
        launches = 0.0 if sizes.captured else rank.operators.launches * rank.host.launch
        return busy, max(launches - busy, 0.0)

    def decode_line(self, rows: int, context: int) -> DecodeLine:
        """The line of a rank with its share of the rows, stretched to the context of all."""
        if rows <= 0:
            return self._rank.decode_line(rows, context)
        mine = -(-rows // self._ranks)
        line = self._rank.decode_line(mine, context * mine // rows)
        low, high = (-(-end * rows // mine) for end in line[:2])
        return DecodeLine(low, high, line.intercept, line.slope * (mine / rows))

    def explain(self, shape: StepShape) -> list[OperatorCost]:
        """The step of the fullest rank, operator by operator, with the experts' share of the tokens of all."""
        one, mean = self.fullest(shape)
        found = self._rank.explain(one)
        drafting = shape.drafts or shape.passes
        if not shape.chunks and not drafting:
            return found
        gpu, waiting = self._device(one, mean)
        gpu += self._rank.drafting.seconds(self._rank, one) if drafting else 0.0
        seconds = {placed.name: placed.count * placed.operator.seconds(mean) for placed in self._shared}
        host = self.host.visible(gpu + waiting, one.decode_rows + len(one.chunks))
        seconds |= {"kernel_launch": waiting, "host": host}
        return [replace(each, seconds=seconds.get(each.name, each.seconds)) for each in found]


def as_group(
    engine: EngineConfig, budget: MemoryBudget, rank: AnalyticCost
) -> tuple[EngineConfig, MemoryBudget, RankGroup]:
    """What serves as one engine: the limits and pools of all ranks, and steps priced by the fullest.

    Args:
        engine: as of one rank, with the degree in `parallel.data`. budget, rank: its memory and its cost model.
    """
    ranks, limits = engine.parallel.data, engine.scheduler
    whole = replace(
        limits, max_num_seqs=ranks * limits.max_num_seqs, max_num_batched_tokens=ranks * limits.max_num_batched_tokens
    )
    pools = replace(
        budget, blocks=ranks * budget.blocks, kv_tokens=ranks * budget.kv_tokens,
        state_slots=ranks * budget.state_slots, kept_states=ranks * budget.kept_states,
    )  # fmt: skip
    return replace(engine, scheduler=whole), pools, RankGroup(rank, ranks, limits.max_num_batched_tokens)
