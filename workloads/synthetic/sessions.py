"""Conversations: how many turns, how long people think, how much context they keep.

    sessions:
      turns: {distribution: quantiles, values: {0: 1, 0.5: 2, 1: 12}}
      think: {distribution: lognormal, median: 12s, sigma: 0.8}
      follow_up_tokens: 80          # new words of a later turn; without it the law of input_tokens
      max_context: 131072           # a turn that would not fit, with its answer, ends the session

A later turn's prompt is the earlier prompt, the earlier answer, and new words. It is sent `think` seconds
after the earlier answer is complete. Arrivals are arrivals of sessions, and `requests` counts turns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workloads.streams import Streams
from workloads.synthetic.fields import Section
from workloads.synthetic.laws import Fixed, Law
from workloads.synthetic.lengths import Reading, parse_law


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """See the module."""

    turns: Law
    think: Law
    follow_up: Law | None = None
    max_context: int = 0


@dataclass(slots=True)
class Turns:
    """Rows of sessions, session after session, in turn order. All arrays have one entry a row.

    Attributes:
        session: number of the session.
        turn: number in its session, from 0.
        words: new tokens of the turn (int64).
        output: tokens of its answer.
        declared: what its client declared, 0 for nothing.
        prompt: tokens of the whole prompt.
    """

    session: np.ndarray
    turn: np.ndarray
    words: np.ndarray
    output: np.ndarray
    declared: np.ndarray
    prompt: np.ndarray

    def keep(self, rows: np.ndarray) -> Turns:
        """The rows where `rows` is true."""
        return Turns(*(getattr(self, name)[rows] for name in self.__slots__))


def parse_sessions(section: Section | None, reading: Reading) -> SessionSpec | None:
    """The `sessions:` section."""
    if section is None:
        return None
    turns = parse_law(section.value("turns"), section.path("turns"), reading)
    seconds = Reading(reading.base, reading.column, time=True)
    think = section.value("think", None)
    follow_up = section.value("follow_up_tokens", None)
    spec = SessionSpec(
        turns,
        Fixed(value=0.0) if think is None else parse_law(think, section.path("think"), seconds),
        None if follow_up is None else parse_law(follow_up, section.path("follow_up_tokens"), reading),
        section.whole("max_context", 0, least=2),
    )
    section.done()
    return spec


def count_turns(spec: SessionSpec | None, streams: Streams, sessions: int) -> np.ndarray:
    """Turns of each of `sessions` sessions (int64)."""
    if spec is None:
        return np.ones(sessions, np.int64)
    return spec.turns.tokens(streams.get("turns"), sessions)


def sum_before(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """For each row the sum of `values` over the earlier rows of its session, whose first row is `first`."""
    sums = np.concatenate([[0], np.cumsum(values)])
    return sums[:-1] - sums[first]


def cut_to_context(rows: Turns, first: np.ndarray, prefix: np.ndarray, limit: int) -> Turns:
    """End sessions before the first turn that, with its answer, is longer than `limit`.

    A first turn that is too long itself is shortened to fit: its words first, then its answer.
    """
    opening = rows.turn == 0
    excess = np.where(opening, np.maximum(rows.prompt + rows.output - limit, 0), 0)
    from_words = np.minimum(excess, rows.words - 1)
    from_answer = np.minimum(excess - from_words, rows.output - 1)
    if excess.any():
        rows.words, rows.output = rows.words - from_words, rows.output - from_answer
        rows.prompt = prefix + rows.words + sum_before(rows.words + rows.output, first)
    over = rows.prompt + rows.output > limit
    return rows.keep(sum_before(over, first) + over == 0)
