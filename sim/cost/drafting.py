"""What speculative decoding costs: a step in which sequences compute several tokens, and the passes that propose the next.

*Verifying* is a step like any other, with `1 + drafts` tokens of each sequence: matrix products and the LM head over all of them,
attention that reads a sequence's cache once for all its queries (`VerifyAttention`). Engines capture it in
CUDA graphs of their own: vLLM rounds its sizes, which are tokens, up to multiples of `1 + drafts`
(`config/compilation.py`, adjust_cudagraph_sizes_for_spec_decode); SGLang (`cuda_graph_runner.py`) and TensorRT-LLM capture
sequences, each with all its drafts.

*Proposing* is a pass of the drafter for every draft, one after another, after the step whose tokens it goes on from. The first
takes in all tokens of that step, prompts too, since the drafter keeps a cache of its own (`vllm/v1/spec_decode/eagle.py`,
`propose`); each of the others has one token a sequence. Heads on the same hidden state (Medusa) propose all at once. Guesses
of the host (n-grams) take no time of the device. What proposing takes on the host is not counted.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from sim.cost.assemble import Assembler, Placed, StepOperators
from sim.cost.base import OperatorCost, StepShape
from sim.cost.graphs import padded
from sim.cost.operators import Operator, Work
from sim.models.drafter import drafter_of

if TYPE_CHECKING:
    from sim.config import EngineConfig
    from sim.cost.analytic import AnalyticCost, StepSizes
    from sim.cost.constants import Constants
    from sim.cost.tables import MeasuredTable
    from sim.hardware.gpu import GPUSpec
    from sim.models.spec import FullDims, ModelSpec

PREFIX = "draft_"
"""How names of the drafter's operators begin."""
_TILE = 64  # queries of a tile of attention, those of a group of heads together


class VerifyAttention:
    """Several queries of each sequence over its cache, which is read once for all (speculative decoding).

    As long as decode attention takes, or as the arithmetic takes where that is more: the queries of a group of heads share
    tiles of `_TILE` rows, which are computed whole.
    """

    launches = 1

    def __init__(self, decode: Operator, rate: float, heads: int, kv_heads: int, head_dim: int) -> None:
        """Args: decode, attention with one query; rate, FLOP/s that attention reaches."""
        self.source = f"{decode.source}; arithmetic at the rate of prompts"
        self._decode, self._rate = decode, rate
        self._group, self._flops = heads / kv_heads, 4.0 * heads * head_dim

    def _arithmetic(self, context: float, queries: float) -> float:
        filled = _TILE * ceil(queries * self._group / _TILE)
        return context * self._flops * filled / self._group / self._rate

    def seconds(self, rows: float, context: float, queries: float) -> float:
        """Duration with so many queries a sequence."""
        return max(self._decode.seconds(rows, context), self._arithmetic(context, queries))

    def work(self, rows: float, context: float, queries: float) -> Work:
        """Every cached key and value once, for all queries."""
        one = self._decode.work(rows, context)
        slow = self._arithmetic(context, queries) > self._decode.seconds(rows, context)
        return Work(queries * one.flops, one.bytes, "compute" if slow else one.bound)


@dataclass(frozen=True, slots=True)
class Drafting:
    """Prices of what a step with drafts has beside one without.

    Attributes:
        attention: of sequences that compute several tokens, in layers that see everything and in others.
        graphs: tokens of the captured steps that verify, ascending. padding: whether others are filled up to these.
        drafter: prices of its passes; None where the host guesses. heads: proposals of one pass, 0 if only one.
    """

    attention: tuple[Operator, Operator]
    graphs: list[int]
    padding: bool = True
    drafter: AnalyticCost | None = None
    heads: int = 0

    def verification(self, cost: AnalyticCost, shape: StepShape) -> StepSizes:
        """Sizes of the operators of `cost` in a step with drafts."""
        from sim.cost.analytic import StepSizes

        rows, tokens = shape.decode_rows, shape.decode_rows + shape.drafts
        queries = tokens / rows if rows else 1.0
        context = shape.decode_context
        if shape.chunks:
            sizes = cost.mixed_sizes(shape._replace(decode_rows=tokens))
            return sizes._replace(decode=cost.decode_size(rows, context), queries=queries)
        captured = tokens in self.graphs
        if self.padding and self.graphs and tokens <= self.graphs[-1]:
            tokens, captured = self.graphs[bisect_left(self.graphs, tokens)], True
        return StepSizes(
            tokens, shape.sampled, None, None, cost.decode_size(rows, context), captured, queries=queries
        )  # fmt: skip

    def passes(self, cost: AnalyticCost, shape: StepShape) -> list[tuple[StepSizes, int]]:
        """Sizes of the drafter's operators in each kind of pass, and how many passes are of it."""
        from sim.cost.analytic import StepSizes

        drafter, ends = self.drafter, shape.sampled - shape.decode_rows - shape.drafts
        rows = shape.decode_rows + ends
        if drafter is None or not shape.passes or not rows:
            return []
        if self.heads:
            return [(StepSizes(0, rows, None, None, None, True), 1)]
        first = self.verification(drafter, shape)._replace(sampled=rows)
        if shape.passes == 1:
            return [(first, 1)]
        context = shape.decode_context + (sum(map(sum, shape.chunks)) if ends else 0)
        size = padded(cost.graphs, rows) if self.padding else rows
        then = StepSizes(size, rows, None, None, drafter.decode_size(rows, context), size in cost.graphs)
        return [(first, 1), (then, shape.passes - 1)]

    def seconds(self, cost: AnalyticCost, shape: StepShape) -> float:
        """Seconds that the device proposes for."""
        return sum(times * self.drafter.device_seconds(sizes)[0] for sizes, times in self.passes(cost, shape))

    def explain(self, cost: AnalyticCost, shape: StepShape) -> list[OperatorCost]:
        """The drafter's operators, all passes together."""
        from sim.cost.explain import operators_of

        found: dict[str, OperatorCost] = {}
        for sizes, times in self.passes(cost, shape):
            waiting = self.drafter.device_seconds(sizes)[1]
            parts = operators_of(self.drafter, sizes)
            parts.append(OperatorCost("kernel_launch", waiting, 0.0, 0.0, 1, "host", self.drafter.host.source))
            for part in parts:
                have = found.get(part.name) or replace(part, seconds=0.0, flops=0.0, bytes=0.0, count=0)
                found[part.name] = replace(
                    part, name=PREFIX + part.name, seconds=have.seconds + times * part.seconds,
                    flops=have.flops + times * part.flops, bytes=have.bytes + times * part.bytes,
                    count=have.count + times * part.count,
                )  # fmt: skip
        return list(found.values())


def drafting(
    model: ModelSpec, gpu: GPUSpec, config: EngineConfig, constants: Constants, table: MeasuredTable | None, skew: float,
    target: AnalyticCost, graphs: list[int],
) -> Drafting:  # fmt: skip
    """Prices of speculation for `model`, whose own prices are `target`.

    Args:
        graphs: tokens of the captured steps that verify.

    Raises:
        InputError: a draft model that cannot draft for this one.
    """
    found = drafter_of(model, config)
    whole = Assembler(model, gpu, config, constants, table, skew)
    attention = _attention(whole, target.operators)
    if found is None:
        return Drafting(attention, graphs, target.pads)
    own = replace(found.config(config), speculation=type(config.speculation)())
    assembler = Assembler(found.model, gpu, own, constants, table, skew)
    operators = assembler.build()
    joins = tuple(Placed(part.name, assembler.gemm(part, assembler.mode), part.layers) for part in found.extra)
    if found.heads:
        operators = replace(
            operators, token=(), sample=joins, extra=(), full_layers=0, windowed_layers=0, launches=2 * len(joins)
        )
    else:
        operators = replace(operators, token=(*joins, *operators.token), launches=operators.launches + len(joins))
    drafter = target.of(operators)
    drafter.drafting = Drafting(_attention(assembler, operators), graphs, target.pads)
    return Drafting(attention, graphs, target.pads, drafter, found.heads)


def _attention(assembler: Assembler, operators: StepOperators) -> tuple[Operator, Operator]:
    """Attention of sequences with several queries each, in layers that see everything and in the others.

    Latent attention tells its queries apart itself.
    """
    model = assembler.model
    near = operators.near_decode or operators.decode
    if model.mla is not None:
        return operators.decode, near
    compute, constants = assembler.prefill_constants()
    rate, heads = constants.compute * assembler.gpu.flops(compute), model.heads // assembler.tp

    def verify(decode: Operator, of: ModelSpec | FullDims) -> Operator:
        return VerifyAttention(decode, rate, heads, max(-(-of.kv_heads // assembler.tp), 1), of.head_dim)

    return verify(operators.decode, model.full or model), verify(near, model)
