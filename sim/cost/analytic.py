"""The cost model: a step as the sum of its operators, plus the host.

A mixed step is one pass: every linear layer runs once over all tokens, decoding and prefilled ones together, and only
attention is priced apart. Sums that depend on a count alone (tokens, sampled rows) are kept once computed; decode-only
steps go through lines in the context (`DecodeLine`), one per stretch of a geometric grid, so that a step costs
well under a microsecond and stepping and stretching agree to the last bit.

Pipeline parallelism: a step is a round in which every row advances by one. It is cut into as many micro-batches as
there are stages, or rows and chunks if those are fewer (idle stages are the bubble); a chunk is never cut. The round
takes as long as its fullest micro-batch takes through all layers, plus a send for every stage; the others follow
behind it in the pipeline. Rows are assumed to share out equally.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sim.cost.assemble import StepOperators
from sim.cost.base import DecodeLine, OperatorCost, StepShape
from sim.cost.coverage import step_deviation
from sim.cost.explain import explain_step, provenance
from sim.cost.graphs import padded
from sim.cost.host import FrontEnd, Host
from sim.cost.operators import Operator
from sim.cost.recurrent import Mix

if TYPE_CHECKING:
    from sim.cost.drafting import Drafting

_GRID_RATIO = 1.15


def _grid() -> list[int]:
    knots = [0, 1]
    while knots[-1] < 10**14:
        knots.append(max(knots[-1] + 1, int(knots[-1] * _GRID_RATIO)))
    return knots


KNOTS = _grid()


class StepSizes(NamedTuple):
    """What the operators of a step are asked for.

    Attributes:
        tokens: of the flattened batch, padding included. sampled: rows whose logits are computed.
        prefill, windowed: (tokens, pairs, keys, tiles) of prefill attention in full and in windowed layers, or None.
        decode: (rows, context, context within the window) of decode attention, or None.
        captured: the step runs from a CUDA graph. longest: tokens of the longest chunk. chunks: how many there are.
        queries: tokens that each decoding sequence computes, more than one with speculative decoding.
    """

    tokens: int
    sampled: int
    prefill: tuple[float, float, float, float] | None
    windowed: tuple[float, float, float, float] | None
    decode: tuple[float, float, float] | None
    captured: bool
    longest: int = 0
    chunks: int = 0
    queries: float = 1.0

    @property
    def mix(self) -> Mix:
        """The same, as recurrent layers and indexers take it."""
        rows, context, _ = self.decode or (0.0, 0.0, 0.0)
        tokens, pairs, keys, _ = self.prefill or (0.0, 0.0, 0.0, 0.0)
        return Mix(rows, context * self.queries, tokens, pairs, keys, self.chunks, self.longest)


class AnalyticCost:
    """Prices steps operator by operator. Pure: the same shape always costs the same.

    Attributes:
        operators: what a step is made of. front_end: time outside the loop. notes: sentences for the user.
        drafting: prices of speculative decoding, None where there is none.
        graphs: captured batch sizes.
    """

    drafting: Drafting | None = None

    def __init__(
        self,
        operators: StepOperators,
        host: Host,
        front_end: FrontEnd,
        graphs: list[int],
        *,
        stages: int = 1,
        piecewise: bool = False,
        padding: bool = True,
    ) -> None:
        """Args: `graphs`, captured batch sizes; `piecewise`, whether steps with prefill use them too (vLLM); `padding`,
        whether batches are filled up to one of these sizes.
        """
        self.operators = operators
        self.front_end = front_end
        self.host = host
        self.notes = operators.notes
        self.graphs, self._largest, self._piecewise = graphs, graphs[-1] if graphs else 0, piecewise
        self._exact = None if padding else frozenset(graphs)
        self._stages = stages
        self._plain = stages == 1 and not operators.windowed_layers and not operators.extra
        self._launch = operators.launches * host.launch
        self._tokens: dict[int, float] = {}
        self._rows: dict[int, float] = {}
        self._lines: dict[int, dict[int, DecodeLine]] = {}

    def with_times(self, host: Host, front_end: FrontEnd) -> AnalyticCost:
        """The same operators with another host and front end; nothing priced so far is shared."""
        found = AnalyticCost(
            self.operators, host, front_end, self.graphs, stages=self._stages, piecewise=self._piecewise,
            padding=self._exact is None,
        )  # fmt: skip
        if self.drafting is not None:
            drafter = self.drafting.drafter
            drafter = drafter and drafter.with_times(host, front_end)
            found.drafting = replace(self.drafting, drafter=drafter)
        return found

    @property
    def pads(self) -> bool:
        """Whether batches are filled up to a captured size."""
        return self._exact is None

    def of(self, operators: StepOperators) -> AnalyticCost:
        """Other operators on the same host."""
        return AnalyticCost(
            operators, self.host, self.front_end, self.graphs, piecewise=self._piecewise, padding=self._exact is None
        )  # fmt: skip

    # The three methods of the protocol

    def step_seconds(self, shape: StepShape) -> float:
        """Duration of a step, seconds. Decode-only steps are read off `decode_line`, dead rows counted as rows."""
        if shape.drafts or shape.passes:
            gpu = self.drafting_seconds(shape)
            seconds = gpu + self.host.visible(gpu, shape.decode_rows + len(shape.chunks))
        elif shape.chunks:
            gpu = self._plain_seconds(shape) if self._plain else self.device_seconds(self.mixed_sizes(shape))[0]
            seconds = gpu + self.host.visible(gpu, shape.decode_rows + len(shape.chunks))
        else:
            context = shape.decode_context + shape.padding_context
            line = self.decode_line(shape.decode_rows + shape.padding_tokens, context)
            seconds = line.intercept + line.slope * context
        if shape.swapped_tokens:
            seconds += self.operators.swap.operator.seconds(shape.swapped_tokens)
        return seconds

    def decode_line(self, rows: int, context: int) -> DecodeLine:
        """Line for decode-only steps of `rows` rows around `context` tokens of context in all."""
        at = bisect_right(KNOTS, context) - 1
        lines = self._lines.get(rows)
        if lines is None:
            lines = self._lines[rows] = {}
        line = lines.get(at)
        if line is None:
            line = lines[at] = self._line(rows, at)
        return line

    def explain(self, shape: StepShape) -> list[OperatorCost]:
        """The step operator by operator. `host` is last; swapping, where there is any, before it.

        The seconds add up to `step_seconds` within rounding. On decode-only steps attention and host are, like the
        step itself, interpolated between two points of the context grid.
        """
        return explain_step(self, shape)

    @property
    def uncertainty(self) -> dict[str, float]:
        """Operator class → standard deviation of the logarithm of its time (`sim.cost.coverage.class_of` names them)."""
        return dict(self.operators.uncertainty)

    @property
    def older(self) -> float:
        """The same of any step, for what an engine older than its kernels makes of all operators (`sim.versions.behind`)."""
        return self.operators.older

    def step_uncertainty(self, shape: StepShape) -> float:
        """Standard deviation of the logarithm of a whole step's time."""
        return step_deviation(self.explain(shape), self.operators.uncertainty)

    @property
    def provenance(self) -> list[dict]:
        """Where the figures are from: {"what", "value", "source"} of every operator, the host and the front end."""
        return provenance(self)

    # Pricing

    def sizes_of(self, shape: StepShape) -> StepSizes:
        """Sizes of the operators of a step with prompts or drafts."""
        if self.drafting is not None and (shape.drafts or shape.passes):
            return self.drafting.verification(self, shape)
        return self.mixed_sizes(shape)

    def drafting_seconds(self, shape: StepShape) -> float:
        """Seconds on the device of a step that verifies drafts, and of proposing the next."""
        gpu = self.device_seconds(self.sizes_of(shape))[0] if shape.decode_rows or shape.chunks else 0.0
        return gpu + self.drafting.seconds(self, shape)

    def _plain_seconds(self, shape: StepShape) -> float:
        """`device_seconds(mixed_sizes(shape))`, bit for bit, for one stage without windows: most steps, so written out."""
        ops, rows = self.operators, shape.decode_rows
        tokens = pairs = keys = tile_rows = 0
        least = ops.prefill.least
        for new, past in shape.chunks:
            tokens += new
            pairs += new * (new + 2 * past)
            keys += new + past
            tile_rows += new if new > least else least
        size = rows + tokens + shape.padding_tokens
        captured = self._piecewise and size <= self._largest
        if captured:
            size = padded(self.graphs, size)
        gpu = self._tokens.get(size)
        if gpu is None:
            gpu = self._token_seconds(size)
        if shape.sampled:
            sampled = self._rows.get(shape.sampled)
            gpu += self._row_seconds(shape.sampled) if sampled is None else sampled
        layers = ops.full_layers
        prompts = ops.prefill.seconds(tokens, pairs, keys, tile_rows / 128)
        gpu += layers * prompts
        context = shape.decode_context + shape.padding_context
        if context or rows:
            if ops.among is None:
                gpu += layers * ops.decode.seconds(rows, context)
            else:
                gpu += layers * ops.among.seconds(rows, context, prompts, max(shape.chunks)[0])
        return gpu if captured or gpu >= self._launch else self._launch

    def _line(self, rows: int, at: int) -> DecodeLine:
        low, high = KNOTS[at], KNOTS[at + 1]
        left, right = self._decode_step(rows, low), self._decode_step(rows, high)
        slope = (right - left) / (high - low)
        return DecodeLine(low, high, left - slope * low, slope)

    def _decode_step(self, rows: int, context: float) -> float:
        if rows <= 0:
            return 0.0
        gpu, _ = self.device_seconds(self.decode_sizes(rows, context))
        return gpu + self.host.visible(gpu, rows)

    def decode_sizes(self, rows: int, context: float) -> StepSizes:
        """Sizes of the operators of a decode-only step; the batch is padded to a captured size."""
        micro = min(self._stages, rows)
        batch = -(-rows // micro)
        size = padded(self.graphs, batch) if self._exact is None else batch
        captured = size <= self._largest if self._exact is None else size in self._exact
        return StepSizes(size, batch, None, None, self.decode_size(size, context / micro), captured)

    def mixed_sizes(self, shape: StepShape) -> StepSizes:
        """Sizes of the operators of a step with prefill."""
        chunks, rows, sampled, stages = shape.chunks, shape.decode_rows, shape.sampled, self._stages
        prefill, windowed = self._chunk_sums(chunks), None
        if self.operators.windowed_layers:
            windowed = self._windowed_sums(chunks)
        size = rows + prefill[0] + shape.padding_tokens
        context = shape.decode_context + shape.padding_context
        if stages > 1:
            size = max(-(-size // min(stages, rows + len(chunks))), max(new for new, _ in chunks))
            prefill = self._largest_share(chunks, prefill, self._chunk_sums)
            windowed = windowed and self._largest_share(chunks, windowed, self._windowed_sums)
            micro = min(stages, max(rows, 1))
            rows, context, sampled = (
                -(-rows // micro),
                context / micro,
                -(-sampled // min(stages, max(sampled, 1))),
            )
        captured = self._piecewise and size <= self._largest
        if captured:
            size = padded(self.graphs, size)
        many = -(-len(chunks) // min(stages, len(chunks)))
        decode = self.decode_size(rows, context)
        return StepSizes(size, sampled, prefill, windowed, decode, captured, max(chunks)[0], many)

    def _largest_share(self, chunks: tuple, sums: tuple, of: Callable[[tuple], tuple]) -> tuple:
        """What the fullest micro-batch gets of `sums`: an equal share, but never less than the largest chunk."""
        micro = min(self._stages, len(chunks))
        singles = [of((chunk,)) for chunk in chunks]
        return tuple(max(total / micro, *parts) for total, *parts in zip(sums, *singles, strict=True))

    def decode_size(self, rows: int, context: float) -> tuple[float, float, float] | None:
        """(rows, context, context within the window); None where nothing is attended to."""
        window = self.operators.window
        return (rows, context, min(context, rows * window) if window else context) if context or rows else None

    def device_seconds(self, sizes: StepSizes) -> tuple[float, float]:
        """Seconds on the device, and how many of them it waits for launches."""
        ops = self.operators
        gpu = self._token_seconds(sizes.tokens)
        if sizes.sampled:
            gpu += self._row_seconds(sizes.sampled)
        if sizes.prefill is not None:
            gpu += ops.full_layers * ops.prefill.seconds(*sizes.prefill) if ops.full_layers else 0.0
            near = ops.near_prefill or ops.prefill
            gpu += ops.windowed_layers * near.seconds(*sizes.windowed) if ops.windowed_layers else 0.0
        for _, count, operator, size in self.decode_parts(sizes):
            gpu += count * operator.seconds(*size)
        if ops.extra:
            mix = sizes.mix
            gpu += sum(placed.count * placed.operator.seconds(*mix) for placed in ops.extra)
        if gpu < self._launch and not sizes.captured:
            return self._launch, self._launch - gpu
        return gpu, 0.0

    def decode_parts(self, sizes: StepSizes) -> list[tuple[str, int, Operator, tuple[float, ...]]]:
        """(name, layers, operator, its size) of decode attention in full and in windowed layers."""
        if sizes.decode is None:
            return []
        ops = self.operators
        rows, context, near = sizes.decode
        among = ops.among if sizes.prefill is not None else None
        parts = []
        for name, count, seen, prompts, own in (
            ("attention_decode", ops.full_layers, context, sizes.prefill, ops.decode),
            (f"attention_decode_{ops.near}", ops.windowed_layers, near, sizes.windowed, ops.near_decode or ops.decode),
        ):
            if count and sizes.queries > 1:
                verify = self.drafting.attention[0 if own is ops.decode else 1]
                parts.append((name, count, verify, (rows, seen, sizes.queries)))
            elif count and among is None:
                parts.append((name, count, own, (rows, seen)))
            elif count:
                parts.append((name, count, among, (rows, seen, ops.prefill.seconds(*prompts), sizes.longest)))
        return parts

    def _chunk_sums(self, chunks: tuple[tuple[int, int], ...]) -> tuple[float, float, float, float]:
        """(tokens, twice the attended pairs, keys, query tiles) of all chunks, without a window."""
        tokens = pairs = keys = tile_rows = 0
        least = self.operators.prefill.least
        for new, past in chunks:
            tokens += new
            pairs += new * (new + 2 * past)
            keys += new + past
            tile_rows += new if new > least else least
        return tokens, pairs, keys, tile_rows / 128

    def _windowed_sums(self, chunks: tuple[tuple[int, int], ...]) -> tuple[float, float, float, float]:
        """The same for layers that look back at most `window` tokens."""
        window = self.operators.window
        tokens, pairs, keys, tiles = self._chunk_sums(chunks)
        for new, past in chunks:
            free = min(max(window - past, 0), new)  # queries that still see everything before them
            pairs += free * (free + 2 * past) + 2 * (new - free) * window - new * (new + 2 * past)
            keys -= past - min(past, window)
        return tokens, min(pairs, self._chunk_sums(chunks)[1]), keys, tiles

    def _token_seconds(self, tokens: int) -> float:
        known = self._tokens.get(tokens)
        if known is None:
            ops = self.operators.token
            known = self._tokens[tokens] = sum(p.count * p.operator.seconds(tokens) for p in ops)
        return known

    def _row_seconds(self, rows: int) -> float:
        known = self._rows.get(rows)
        if known is None:
            ops = self.operators.sample
            known = self._rows[rows] = sum(p.count * p.operator.seconds(rows) for p in ops)
        return known
