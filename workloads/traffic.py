"""Traffic: what arrives, as columns.

A workload of a million requests is a handful of arrays, not a million objects; the engine makes a `Request`
of a row only when that row arrives.

**A prompt is spans, not tokens.** Traces rarely carry tokens but often carry identity: a block hash, a shared
system prompt, the previous turn's answer. A prompt is a short list of `Span(content, offset, length)`: tokens
`offset … offset+length` of the content with that id. Two prompts share a prefix exactly as far as their spans
agree.

Content ids: row `i` owns `private_content(i)` (its own words) and `answer_content(i)` (what the model says to
it), both non-negative; everything that may be shared between rows (system prompts, trace blocks, …) has a
negative id.

**Truth and declaration are different columns.** `output_tokens` is how many tokens the answer really has;
only the executor and the load driver read it. `max_tokens` is what the client declared, which is all a policy
may see; 0 where the trace does not say, until `declare` fills it by a stated rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from workloads.errors import InputError

LATEST = 1e9
"""Seconds, some thirty years: a time beyond it is a slip, and clocks in float64 would lose microseconds."""


class Span(NamedTuple):
    """`length` tokens of content `content`, starting at its token `offset`."""

    content: int
    offset: int
    length: int


_made = tuple.__new__  # of a named tuple, without the call that its own constructor costs


def private_content(row: int) -> int:
    """Id of the content that only row `row` has."""
    return 2 * row


def answer_content(row: int) -> int:
    """Id of the content that row `row`'s answer will be."""
    return 2 * row + 1


class Request(NamedTuple):
    """One row of a `Traffic`, as the engine receives it.

    `output_tokens` is the truth and belongs to the executor alone. `arrival` is in seconds.
    """

    row: int
    arrival: float
    input_tokens: int
    output_tokens: int
    max_tokens: int
    prompt: tuple[Span, ...]
    priority: int = 0
    n: int = 1


@dataclass(slots=True)
class SpanTable:
    """Prompts of all rows in compressed-row form: row `i` has spans `start[i] … start[i+1]`. All int64."""

    start: np.ndarray
    content: np.ndarray
    offset: np.ndarray
    length: np.ndarray

    @classmethod
    def build(cls, prompts: Sequence[Sequence[Span]]) -> SpanTable:
        """From a list of prompts, one per row."""
        start = np.zeros(len(prompts) + 1, np.int64)
        np.cumsum([len(p) for p in prompts], out=start[1:])
        flat = np.array([s for p in prompts for s in p], np.int64).reshape(-1, 3)
        return cls(start, flat[:, 0].copy(), flat[:, 1].copy(), flat[:, 2].copy())

    def row(self, i: int) -> tuple[Span, ...]:
        """The spans of row `i`."""
        return tuple(
            Span(int(self.content[k]), int(self.offset[k]), int(self.length[k]))
            for k in range(self.start[i], self.start[i + 1])
        )


@dataclass(slots=True)
class Traffic:
    """All requests of a workload, in order of arrival. Every array has one entry a row.

    Attributes:
        arrival: float64, seconds from the start of the run, non-decreasing over rows without a parent. For a
            row with a parent it is ignored: such a row is sent `think[i]` seconds after its parent finished.
        input_tokens, output_tokens: int64, at least 1.
        max_tokens: int64, declared limit of the answer; 0 = the source does not say (see `declare`).
        spans: prompts; None = every prompt is private. A row's span lengths add up to its `input_tokens`.
        parent: int64, the row of the previous turn of the same session, -1 for none; always less than the row
            itself.
        think: float64, seconds between the parent's finish and this row.
        priority: int32, smaller is more urgent (vLLM's sense).
        n: int32, parallel samples asked for.
        texts: what each row says, where the source has words: a text, the messages of its turn (`role`, `content`), or None.
            Only a real model reads it.
        name: what this traffic is, for reports.
        notes: what was done to it (sorted, scaled, estimated …), for reports.
    """

    arrival: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    max_tokens: np.ndarray = None  # type: ignore[assignment]
    spans: SpanTable | None = None
    parent: np.ndarray = None  # type: ignore[assignment]
    think: np.ndarray = None  # type: ignore[assignment]
    priority: np.ndarray = None  # type: ignore[assignment]
    n: np.ndarray = None  # type: ignore[assignment]
    texts: list[str | list[dict[str, str]] | None] | None = None
    name: str = "traffic"
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = len(self.arrival)
        self.arrival = np.ascontiguousarray(self.arrival, np.float64)
        self.input_tokens = np.ascontiguousarray(self.input_tokens, np.int64)
        self.output_tokens = np.ascontiguousarray(self.output_tokens, np.int64)
        self.max_tokens = _column(self.max_tokens, size, 0, np.int64)
        self.parent = _column(self.parent, size, -1, np.int64)
        self.think = _column(self.think, size, 0.0, np.float64)
        self.priority = _column(self.priority, size, 0, np.int32)
        self.n = _column(self.n, size, 1, np.int32)

    def __len__(self) -> int:
        return len(self.arrival)

    def request(self, i: int) -> Request:
        """Row `i` as an object."""
        inputs = int(self.input_tokens[i])
        prompt = (Span(private_content(i), 0, inputs),) if self.spans is None else self.spans.row(i)
        return Request(
            i, float(self.arrival[i]), inputs, int(self.output_tokens[i]), int(self.max_tokens[i]), prompt,
            int(self.priority[i]), int(self.n[i]),
        )  # fmt: skip

    def requests(self, rows: np.ndarray) -> list[Request]:
        """Several rows as objects; an order of magnitude quicker than one by one."""
        inputs = self.input_tokens[rows].tolist()
        numbers = rows.tolist()
        if self.spans is None:
            prompts = [(_made(Span, (2 * row, 0, length)),) for row, length in zip(numbers, inputs, strict=True)]
        else:
            prompts = [self.spans.row(row) for row in numbers]
        columns = (
            self.arrival[rows],
            self.output_tokens[rows],
            self.max_tokens[rows],
            self.priority[rows],
            self.n[rows],
        )
        arrival, outputs, limits, priority, n = (column.tolist() for column in columns)
        values = zip(numbers, arrival, inputs, outputs, limits, prompts, priority, n, strict=True)
        return [_made(Request, row) for row in values]

    def __iter__(self) -> Iterator[Request]:
        return (self.request(i) for i in range(len(self)))

    @property
    def duration(self) -> float:
        """Seconds from the first to the last scheduled arrival (0 for fewer than two)."""
        roots = self.arrival[self.parent < 0]
        return float(roots[-1] - roots[0]) if len(roots) > 1 else 0.0

    def validate(self) -> None:
        """Check every promise of the class.

        Raises:
            InputError: naming the first offending row and column.
        """
        if len(self) == 0:
            raise InputError(f"{self.name} has no requests", hint="check the window, the filter and the file")
        for column in ("input_tokens", "output_tokens", "max_tokens", "parent", "think", "priority", "n"):
            if len(getattr(self, column)) != len(self):
                raise InputError(f"{self.name}: column {column} has another length than arrival")
        self._check("arrival", ~np.isfinite(self.arrival) | (self.arrival < 0), "must be finite and not negative")
        self._check(
            "arrival", self.arrival > LATEST, f"is more than {LATEST:g} s after the start, which cannot be meant"
        )
        self._check("input_tokens", self.input_tokens < 1, "must be at least 1")
        self._check("output_tokens", self.output_tokens < 1, "must be at least 1")
        self._check("max_tokens", self.max_tokens < 0, "must not be negative")
        self._check("think", ~np.isfinite(self.think) | (self.think < 0), "must be finite and not negative")
        self._check("think", self.think > LATEST, f"is more than {LATEST:g} s, which cannot be meant")
        self._check("n", self.n < 1, "must be at least 1")
        self._check("parent", self.parent >= np.arange(len(self)), "must be an earlier row")
        roots = self.arrival[self.parent < 0]
        if np.any(np.diff(roots) < 0):
            raise InputError(f"{self.name}: arrivals are not sorted")
        if self.spans is not None:
            totals = np.zeros(len(self) + 1, np.int64)
            np.cumsum(self.spans.length, out=(sums := np.zeros(len(self.spans.length) + 1, np.int64))[1:])
            totals = sums[self.spans.start[1:]] - sums[self.spans.start[:-1]]
            self._check("spans", totals != self.input_tokens, "span lengths must add up to input_tokens")

    def _check(self, column: str, bad: np.ndarray, rule: str) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(f"{self.name}: request {row}: {column} {rule}")


def _column(values: np.ndarray | None, size: int, default: float, dtype: type) -> np.ndarray:
    return np.full(size, default, dtype) if values is None else np.ascontiguousarray(values, dtype)
