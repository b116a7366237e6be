"""Changing traffic: windows, rates, samples, other arrivals, and the limits that clients declared.

Every function gives a new `Traffic` and says in its notes what it did. Sessions stay whole: a later turn goes
where its first turn goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from workloads.errors import InputError, Place
from workloads.streams import Streams
from workloads.traffic import SpanTable, Traffic

Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (input_tokens, output_tokens) -> max_tokens


def roots_of(traffic: Traffic) -> np.ndarray:
    """For each row the first row of its session (int64)."""
    root = np.where(traffic.parent < 0, np.arange(len(traffic)), traffic.parent)
    while True:  # pointer jumping: as many rounds as the logarithm of the longest session
        further = root[root]
        if np.array_equal(further, root):
            return root
        root = further


def take(traffic: Traffic, rows: np.ndarray) -> Traffic:
    """Rows `rows` of `traffic` in that order, with parents and content ids renumbered.

    A row whose parent is left out starts a session of its own. Content of a row that is left out keeps its
    identity under a negative id.
    """
    rows = np.asarray(rows, np.int64)
    new = np.full(len(traffic) + 1, -1, np.int64)
    new[rows] = np.arange(len(rows))
    spans = None if traffic.spans is None else _take_spans(traffic.spans, rows, new)
    columns = {
        name: getattr(traffic, name)[rows]
        for name in ("arrival", "input_tokens", "output_tokens", "max_tokens", "think", "priority", "n")
    }
    parent = new[traffic.parent[rows]]  # new[-1] is -1: no parent stays no parent
    texts = None if traffic.texts is None else [traffic.texts[row] for row in rows.tolist()]
    return Traffic(**columns, parent=parent, spans=spans, texts=texts, name=traffic.name, notes=list(traffic.notes))


def _take_spans(spans: SpanTable, rows: np.ndarray, new: np.ndarray) -> SpanTable:
    counts = spans.start[rows + 1] - spans.start[rows]
    start = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=start[1:])
    index = np.arange(start[-1]) + np.repeat(spans.start[rows] - start[:-1], counts)
    content = spans.content[index]
    owner = np.where(content >= 0, content >> 1, -1)
    row = new[np.minimum(owner, len(new) - 1)]
    least = min(int(content.min(initial=0)), 0)
    orphan = least - 1 - content
    content = np.where(content < 0, content, np.where(row >= 0, 2 * row + (content & 1), orphan))
    return SpanTable(start, content, spans.offset[index], spans.length[index])


def window(traffic: Traffic, start: float = 0.0, duration: float | None = None) -> Traffic:
    """Requests that arrive in `[start, start + duration)`, with `start` as the new time 0.

    Raises:
        InputError: nothing arrives in the window.
    """
    if start < 0 or (duration is not None and duration <= 0):
        raise InputError(f"window start {start:g} s, duration {duration} s", hint="start >= 0 and duration > 0")
    end = np.inf if duration is None else start + duration
    arrival = traffic.arrival[roots_of(traffic)]
    rows = np.flatnonzero((arrival >= start) & (arrival < end))
    if not len(rows):
        last = arrival.max(initial=0.0)
        raise InputError(
            f"no request arrives between {start:g} s and {end:g} s", hint=f"the trace ends at {last:,.1f} s"
        )
    cut = take(traffic, rows)
    # of later turns the time is not used, but it must stay finite and not negative
    arrival = np.maximum(cut.arrival - start, 0.0)
    note = f"window from {start:g} s" + ("" if duration is None else f" for {duration:g} s")
    note += f": {len(rows):,} of {len(traffic):,} requests"
    return replace(cut, arrival=arrival, notes=[*cut.notes, note])


def scale_rate(traffic: Traffic, factor: float) -> Traffic:
    """Arrivals `factor` times as fast: times are divided, no request is added or dropped.

    Think times are people's and stay.
    """
    if not (np.isfinite(factor) and factor > 0):
        raise InputError(f"rate_scale must be positive, not {factor}")
    if factor == 1:
        return traffic
    note = f"arrival times divided by {factor:g}"
    return replace(traffic, arrival=traffic.arrival / factor, notes=[*traffic.notes, note])


def sample(traffic: Traffic, amount: float | int, seed: int = 0) -> Traffic:
    """A random part of the requests, in their order; whole sessions are drawn.

    Args:
        amount: a share in (0, 1] if a float, or at most so many requests if an int.

    The rate falls with the share; scale it back with `scale_rate` if it should not.
    """
    root = roots_of(traffic)
    first, sizes = np.unique(root, return_counts=True)
    shuffled = Streams(seed).get("sample").permutation(len(first))
    if isinstance(amount, bool) or not amount > 0 or (isinstance(amount, float) and amount > 1):
        raise InputError(f"sample {amount!r}", hint="a share such as 0.1, or a whole number of requests")
    if isinstance(amount, float):
        chosen = shuffled[: max(1, round(amount * len(first)))]
    else:
        chosen = shuffled[: max(1, int(np.searchsorted(np.cumsum(sizes[shuffled]), amount, side="right")))]
    keep = np.zeros(len(traffic), bool)
    keep[first[chosen]] = True
    rows = np.flatnonzero(keep[root])
    cut = take(traffic, rows)
    return replace(cut, notes=[*cut.notes, f"sampled {len(rows):,} of {len(traffic):,} requests (seed {seed})"])


def limit(traffic: Traffic, count: int) -> Traffic:
    """The first `count` rows."""
    if count < 1:
        raise InputError(f"limit must be at least 1, not {count}")
    if count >= len(traffic):
        return traffic
    cut = take(traffic, np.arange(count))
    return replace(cut, notes=[*cut.notes, f"first {count:,} of {len(traffic):,} requests"])


def with_arrivals(traffic: Traffic, arrivals: Mapping | object, seed: int = 0) -> Traffic:
    """The same requests with arrival times from a process instead of their own.

    Args:
        arrivals: the `arrivals:` section of a synthetic workload, or one of its processes.
        seed: of the process.
    """
    from workloads.synthetic.arrivals import parse_arrivals
    from workloads.synthetic.fields import Section

    process = parse_arrivals(Section(arrivals, "arrivals")) if isinstance(arrivals, Mapping) else arrivals
    first = np.flatnonzero(traffic.parent < 0)
    times = np.zeros(len(traffic))
    times[first] = process.times(Streams(seed), len(first))  # type: ignore[attr-defined]
    times = times[roots_of(traffic)]
    note = f"arrivals replaced: {process} (seed {seed})"
    return replace(traffic, arrival=times, notes=[*traffic.notes, note])


def declare(traffic: Traffic, rule: str | Mapping = "context", context: int = 0) -> Traffic:
    """Fill `max_tokens` where the source does not say what the client declared.

    Args:
        rule: `context` (all that is left of the context), `exact` (the true length: an oracle), `{fixed: n}`,
            `{multiple: x}` (of the true length, rounded up) or `next_power_of_two` (of the true length).
        context: longest prompt plus answer that the model takes, in tokens; `context` needs it.

    An answer longer than its limit is cut there, and so are the spans of later turns that quote it. A prompt
    that leaves
    no room gets a limit of one token: the engine will refuse it.

    Raises:
        InputError: unknown rule or impossible figure.
    """
    apply, told = _parse_rule(rule, context)
    said = traffic.max_tokens > 0
    limits = np.where(said, traffic.max_tokens, apply(traffic.input_tokens, traffic.output_tokens))
    output = np.minimum(traffic.output_tokens, limits)
    inputs, spans = traffic.input_tokens, traffic.spans
    if spans is not None and np.any(output < traffic.output_tokens):
        inputs, spans, limits, output = _recut(traffic, limits, output, said, apply)
    notes = list(traffic.notes)
    if not said.all():
        notes.append(f"max_tokens: {told}, for {int((~said).sum()):,} requests that did not declare one")
    cut = int(np.count_nonzero(output < traffic.output_tokens))
    if cut:
        notes.append(f"{cut:,} answers cut at their max_tokens")
    if context and (full := int(np.count_nonzero(inputs >= context))):
        notes.append(f"{full:,} prompts fill the context of {context:,} tokens and will be refused")
    return replace(traffic, input_tokens=inputs, output_tokens=output, max_tokens=limits, spans=spans, notes=notes)


def _parse_rule(rule: str | Mapping, context: int) -> tuple[Rule, str]:
    """The rule as a function, and in words."""
    hint = "one of context, exact, {fixed: n}, {multiple: x}, next_power_of_two"
    place = Place(key="traffic.max_tokens")
    if rule == "context":
        if context < 2:
            raise InputError(f"rule context needs the model's context length, not {context}", place=place)
        return lambda inputs, output: np.maximum(context - inputs, 1), f"context ({context:,} minus the prompt)"
    if rule == "exact":
        return lambda inputs, output: output, "exact (the true length, an oracle)"
    if rule == "next_power_of_two":
        return (lambda inputs, output: _next_power_of_two(output)), "next power of two of the true length"
    if isinstance(rule, Mapping) and len(rule) == 1:
        (name, figure), *_ = rule.items()
        whole = isinstance(figure, int) and not isinstance(figure, bool)
        if name == "fixed" and whole and figure >= 1:
            return (lambda inputs, output: np.full_like(output, figure)), f"fixed at {figure:,}"
        if name == "multiple" and (whole or isinstance(figure, float)) and 0 < figure < 1e9:
            return (lambda inputs, output: _times(output, figure)), f"{figure:g} times the true length"
        if name in ("fixed", "multiple"):
            raise InputError(f"{name}: {figure!r} must be positive", place=place, hint=hint)
    raise InputError(f"unknown rule {rule!r}", place=place, hint=hint)


def _times(values: np.ndarray, factor: float) -> np.ndarray:
    return np.maximum(np.ceil(values * factor).astype(np.int64), 1)


def _next_power_of_two(values: np.ndarray) -> np.ndarray:
    """Least power of two that is not less, elementwise, exact for all token counts below 2^53."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.int64(1) << (exponent - (mantissa == 0.5)).astype(np.int64)


def _recut(traffic: Traffic, limits: np.ndarray, output: np.ndarray, said: np.ndarray, apply: Rule):
    """Carry cut answers into the prompts that quote them, row by row: a shorter prompt changes its own limit.

    Returns:
        input_tokens, spans, max_tokens, output_tokens.
    """
    spans = traffic.spans
    assert spans is not None
    quoted = (spans.content >= 0) & (spans.content & 1 == 1)
    counts = np.diff(spans.start)
    row_of = np.repeat(np.arange(len(traffic)), counts)
    inputs, length = traffic.input_tokens.copy(), spans.length.copy()
    limits, output = limits.copy(), output.copy()
    for row in np.unique(row_of[quoted]):
        part = slice(spans.start[row], spans.start[row + 1])
        owner = spans.content[part] >> 1
        room = np.maximum(output[np.where(quoted[part], owner, 0)] - spans.offset[part], 0)
        length[part] = np.where(quoted[part], np.minimum(length[part], room), length[part])
        inputs[row] = length[part].sum()
        if not said[row]:
            limits[row] = apply(inputs[row : row + 1], traffic.output_tokens[row : row + 1])[0]
        output[row] = min(traffic.output_tokens[row], limits[row])
    keep = length > 0
    start = np.concatenate([[0], np.cumsum(np.bincount(row_of[keep], minlength=len(traffic)))])
    table = SpanTable(start.astype(np.int64), spans.content[keep], spans.offset[keep], length[keep])
    return inputs, table, limits, output
