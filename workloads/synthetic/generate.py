"""Synthetic traffic from a specification: the `synthetic:` section of a workload.

Every quantity draws from a random stream of its own (`workloads.streams`), so one law can change while all
else stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from workloads.errors import InputError, Place
from workloads.streams import Streams
from workloads.synthetic.arrivals import MOST, ArrivalProcess, AtOnce, parse_arrivals, times_until
from workloads.synthetic.fields import Section
from workloads.synthetic.laws import Law, choose
from workloads.synthetic.lengths import Pairs, Reading, parse_law, parse_pairs
from workloads.synthetic.prefixes import PrefixTree, parse_prefix
from workloads.synthetic.sessions import (
    SessionSpec,
    Turns,
    count_turns,
    cut_to_context,
    parse_sessions,
    sum_before,
)
from workloads.traffic import LATEST, SpanTable, Traffic


@dataclass(frozen=True, slots=True)
class Mix:
    """Values with their weights, such as priorities; one value is the common case."""

    values: tuple[int, ...]
    weights: tuple[float, ...]

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """`size` values."""
        return np.array(self.values)[choose(rng, np.array(self.weights), size)]


@dataclass(frozen=True, slots=True)
class SyntheticSpec:
    """What to make.

    Attributes:
        requests: how many, turns of sessions included; None = as many as `duration` brings.
        duration: seconds in which requests (sessions) arrive; None = as long as it takes.
        arrivals: the process.
        input_tokens, output_tokens: laws of a request's own words and of its answer; None where `pairs` gives
            both.
        pairs: both drawn together from a trace.
        max_tokens: law of the declared limit; None = not declared.
        prefix, sessions: what prompts share; None = nothing.
        priority, n: mixes; None = 0 and 1.
    """

    requests: int | None = None
    duration: float | None = None
    arrivals: ArrivalProcess = field(default_factory=AtOnce)
    input_tokens: Law | None = None
    output_tokens: Law | None = None
    pairs: Pairs | None = None
    max_tokens: Law | None = None
    prefix: PrefixTree | None = None
    sessions: SessionSpec | None = None
    priority: Mix | None = None
    n: Mix | None = None

    @classmethod
    def from_dict(cls, data: Mapping, *, base: Path | str = ".", key: str = "synthetic") -> SyntheticSpec:
        """Read and check a section.

        Args:
            data: plain mappings, lists, numbers and text.
            base: folder that relative trace paths start from.
            key: key path of the section, for messages.

        Raises:
            InputError: naming the key, what was expected and the nearest valid name.
        """
        section = Section(data, key)
        base = Path(base)
        lengths = section.section("lengths")
        laws: dict[str, Law] = {}
        for name, column in (
            ("input_tokens", "input"),
            ("output_tokens", "output"),
            ("max_tokens", "output"),
        ):
            value = section.value(name, None)
            if value is not None:
                laws[name] = parse_law(value, section.path(name), Reading(base, column))
            elif lengths is None and name != "max_tokens":
                raise section.error(name, "is missing", "a number of tokens or {distribution: …}")
        if lengths is not None and ("input_tokens" in laws or "output_tokens" in laws):
            raise section.error("lengths", "gives input and output together; leave out input_tokens, output_tokens")
        spec = cls(
            requests=section.whole("requests", None, least=1, most=MOST),
            duration=section.seconds("duration", None, above=0),
            arrivals=parse_arrivals(section.section("arrivals")),
            **laws,
            pairs=None if lengths is None else parse_pairs(lengths, base),
            prefix=parse_prefix(section.section("prefix"), Reading(base)),
            sessions=parse_sessions(section.section("sessions"), Reading(base)),
            priority=_mix(section, "priority", None),
            n=_mix(section, "n", 1),
        )
        section.done()
        if spec.requests is None and (spec.duration is None or isinstance(spec.arrivals, AtOnce)):
            raise section.error("requests", "is missing", "requests: 1000, or duration: 10min with arrivals")
        if spec.duration is not None and getattr(spec.arrivals, "normalize", False):
            raise section.error("arrivals.normalize", "needs requests: N instead of a duration")
        return spec


def synthesize(
    spec: SyntheticSpec | Mapping, seed: int = 0, *, base: Path | str = ".", name: str = "synthetic"
) -> Traffic:
    """Make the traffic of `spec`.

    Args:
        spec: a `SyntheticSpec`, or the mapping of a `synthetic:` section.
        seed: equal seeds and specifications give equal traffic.
        base: folder that relative trace paths start from.
        name: of the traffic, in reports.
    """
    if not isinstance(spec, SyntheticSpec):
        spec = SyntheticSpec.from_dict(spec, base=base)
    streams = Streams(seed)
    sessions = _first_guess(spec, streams)
    while True:
        rows, prefix = _rows(spec, streams, sessions)
        if spec.requests is None or spec.duration is not None or len(rows.turn) >= spec.requests:
            break
        sessions *= 2  # the context cut sessions short
    if spec.requests is not None and len(rows.turn) > spec.requests:
        rows = rows.keep(np.arange(len(rows.turn)) < spec.requests)
    return _traffic(spec, streams, rows, prefix, name, seed)


def _first_guess(spec: SyntheticSpec, streams: Streams) -> int:
    """How many sessions to make."""
    if spec.duration is not None:
        times = times_until(spec.arrivals, streams, spec.duration)
        if not len(times):
            raise InputError(
                f"nothing arrives in {spec.duration:g} s at {spec.arrivals.rate:g} a second",
                place=Place(key="synthetic.duration"),
            )
        return len(times) if spec.requests is None else min(len(times), spec.requests)
    assert spec.requests is not None
    turns = np.cumsum(count_turns(spec.sessions, streams, spec.requests))
    return int(np.searchsorted(turns, spec.requests)) + 1


def _rows(spec: SyntheticSpec, streams: Streams, sessions: int) -> tuple[Turns, tuple | None]:
    """Lengths of all turns of the first `sessions` sessions, and the prefixes of these."""
    turns = count_turns(spec.sessions, streams, sessions)
    session = np.repeat(np.arange(sessions), turns)
    start = np.cumsum(turns) - turns
    first = start[session]
    turn = np.arange(len(session)) - first
    words, output = _lengths(spec, streams, len(session))
    if spec.sessions is not None and spec.sessions.follow_up is not None:
        later = spec.sessions.follow_up.tokens(streams.get("follow_up_tokens"), len(session))
        words = np.where(turn == 0, words, later)
    declared = np.zeros(len(session), np.int64)
    if spec.max_tokens is not None:
        declared = spec.max_tokens.tokens(streams.get("max_tokens"), len(session))
        output = np.minimum(output, declared)
    prefix = None if spec.prefix is None else spec.prefix.draw(streams, sessions)
    ahead = np.zeros(len(session), np.int64) if prefix is None else prefix[1].sum(axis=1)[session]
    if spec.sessions is None:
        return Turns(session, turn, words, output, declared, ahead + words), prefix
    rows = Turns(session, turn, words, output, declared, ahead + words + sum_before(words + output, first))
    if spec.sessions.max_context:
        if ahead.max() + 2 > spec.sessions.max_context:
            raise InputError(
                f"{spec.sessions.max_context} leaves no room behind a prefix of {ahead.max()} tokens",
                place=Place(key="synthetic.sessions.max_context"),
            )
        rows = cut_to_context(rows, first, ahead, spec.sessions.max_context)
    return rows, prefix


def _lengths(spec: SyntheticSpec, streams: Streams, size: int) -> tuple[np.ndarray, np.ndarray]:
    if spec.pairs is not None:
        return spec.pairs.draw(streams.get("lengths"), size)
    assert spec.input_tokens is not None and spec.output_tokens is not None
    inputs = spec.input_tokens.tokens(streams.get("input_tokens"), size)
    return inputs, spec.output_tokens.tokens(streams.get("output_tokens"), size)


def _traffic(spec: SyntheticSpec, streams: Streams, rows: Turns, prefix: tuple | None, name: str, seed: int) -> Traffic:
    size = len(rows.turn)
    sessions = int(rows.session[-1]) + 1
    notes = [f"synthetic, seed {seed}", f"arrivals: {spec.arrivals}"]
    parent = think = spans = None
    if sessions > LATEST * spec.arrivals.rate:  # told before anything of that length is drawn
        raise InputError(
            f"{sessions:,} arrivals at {spec.arrivals.rate:g} a second last more than {LATEST:g} s",
            hint="raise the rate",
        )
    arrival = spec.arrivals.times(streams, sessions)
    if spec.sessions is not None:
        arrival = arrival[rows.session]
        parent = np.where(rows.turn == 0, -1, np.arange(size) - 1)
        think = spec.sessions.think.sample(streams.get("think"), size)
        think = np.where(rows.turn == 0, 0.0, np.round(think, 6))
        notes.append(f"{sessions:,} sessions; arrivals are of sessions")
    if prefix is not None or spec.sessions is not None:
        spans = _spans(rows, prefix)
    if spec.prefix is not None:
        notes.append(str(spec.prefix))
    traffic = Traffic(
        arrival,
        rows.prompt,
        rows.output,
        rows.declared,
        spans=spans,
        parent=parent,
        think=think,
        priority=None if spec.priority is None else spec.priority.draw(streams.get("priority"), size),
        n=None if spec.n is None else spec.n.draw(streams.get("n"), size),
        name=name,
        notes=notes,
    )
    traffic.validate()
    return traffic


def _spans(rows: Turns, prefix: tuple | None) -> SpanTable:
    """Prompts: the session's prefix, words and answer of each earlier turn, then the turn's own words."""
    size = len(rows.turn)
    ahead = np.zeros(size, np.int64)
    if prefix is not None:
        ahead = (prefix[1] > 0).sum(axis=1)[rows.session]
    counts = ahead + 2 * rows.turn + 1
    start = np.concatenate([[0], np.cumsum(counts)])
    row = np.repeat(np.arange(size), counts)
    place = np.arange(start[-1]) - start[row]
    step = place - ahead[row]
    owner = row - rows.turn[row] + (step >> 1)
    answers = (step & 1) == 1
    content = 2 * owner + answers
    length = np.where(answers, rows.output[owner], rows.words[owner])
    if prefix is not None:
        shared = step < 0
        session, level = rows.session[row[shared]], place[shared]
        content[shared] = prefix[0][session, level]
        length[shared] = prefix[1][session, level]
    return SpanTable(start.astype(np.int64), content, np.zeros(len(content), np.int64), length)


def _mix(section: Section, name: str, least: int | None) -> Mix | None:
    """`priority: 1`, or `priority: {0: 0.9, 1: 0.1}`: values and their weights. JSON writes the values in quotes."""
    value = section.value(name, None)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return Mix((section.whole(name, least=least),), (1.0,))
    weights = Section(value, section.path(name))
    values = [_whole(item) for item in value]
    for item, whole in zip(value, values, strict=True):
        if whole is None or (least is not None and whole < least):
            rule = "whole numbers" if least is None else f"whole numbers of at least {least}"
            raise section.error(name, f"keys must be {rule}, not {item!r}")
        if values.count(whole) > 1:
            raise section.error(name, f"{whole} stands there twice")
    shares = tuple(weights.number(item, least=0) for item in value)  # type: ignore[arg-type]
    if not values or sum(shares) <= 0:
        raise section.error(name, "weights must add up to more than 0")
    return Mix(tuple(values), shares)


def _whole(key: object) -> int | None:
    """A whole number, also one in quotes; None if it is something else."""
    if isinstance(key, str) and re.fullmatch(r"-?\d+", key):
        return int(key)
    return key if isinstance(key, int) and not isinstance(key, bool) else None
