"""What the engine asks of a cost model, and nothing more.

The engine describes a step by its *shape* (how many rows decode over how much context, which chunks are prefilled) and
gets seconds back. Whether those come from rooflines, measured tables or a user's own formula is the cost model's affair.

Decode-only steps are priced through `DecodeLine`, a straight line in the context. The engine may take thousands of such
steps at once, and stepping one by one must give *exactly* the same times, so both go through the same two numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class StepShape(NamedTuple):
    """One engine step, as the cost model sees it.

    Attributes:
        decode_rows: sequences that compute one new token each against their cache.
        decode_context: sum over those of the tokens they attend to (the new one included).
        chunks: prefill pieces, each (new tokens, tokens of the sequence already cached).
        sampled: rows whose logits are computed (decoding rows and the last chunk of a prompt).
        padding_tokens: tokens the linear layers compute for nothing (padded or dead rows of a static batch).
        padding_context: context that the attention of such rows reads for nothing.
        swapped_tokens: tokens of KV moved between host and device before the step, both directions added.
        drafts: tokens that decoding sequences compute beside one each, to be verified; they attend to the same cache, and logits
            of all are computed (`sampled` has them).
        passes: drafts proposed for every sequence that decodes next, one after another.
    """

    decode_rows: int = 0
    decode_context: int = 0
    chunks: tuple[tuple[int, int], ...] = ()
    sampled: int = 0
    padding_tokens: int = 0
    padding_context: int = 0
    swapped_tokens: int = 0
    drafts: int = 0
    passes: int = 0


class DecodeLine(NamedTuple):
    """Seconds of a decode-only step with a fixed number of rows: `intercept + slope × context`.

    Valid while `low <= context < high`. Continuous with its neighbours up to rounding.
    """

    low: int
    high: int
    intercept: float
    slope: float


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """One operator of one step, per GPU.

    Attributes:
        name: e.g. "qkv_proj", "attention_prefill", "all_reduce", "host".
        seconds: time in the step, all layers together.
        flops, bytes: work of all layers together (bytes moved from or to device memory, or over the link).
        count: how many times it runs in the step.
        bound: "compute" | "memory" | "latency" | "link" | "host".
        source: where its efficiency comes from (a constants file, a measured table, the data sheet).
    """

    name: str
    seconds: float
    flops: float
    bytes: float
    count: int
    bound: str
    source: str


class CostModel(Protocol):
    """Prices steps. Implementations are pure: the same shape always costs the same."""

    def step_seconds(self, shape: StepShape) -> float:
        """Duration of a step, host time included (hidden behind the device where the engine overlaps the two)."""

    def decode_line(self, rows: int, context: int) -> DecodeLine:
        """The line that prices decode-only steps of `rows` rows around `context`; memoised, so cheap to call."""

    def explain(self, shape: StepShape) -> list[OperatorCost]:
        """The step operator by operator; the seconds add up to `step_seconds(shape)`."""
