"""Our own format: one request a line, as JSON.

    {"arrival": 0.25, "input_tokens": 812, "output_tokens": 128}
    {"arrival": 0.31, "input_tokens": 640, "output_tokens": 90, "max_tokens": 512, "priority": 1, "n": 2,
     "spans": [[-1, 0, 512], [2, 0, 128]]}
    {"arrival": 0.40, "session": "a", "turn": 0, …}
    {"session": "a", "turn": 1, "think": 12.5, …}

`arrival` is in seconds, or a date with a time (ISO 8601; the first is 0). A later turn names its session and turn, or the row of
its parent (`"parent": 3`, counted from 0), and is sent `think` seconds after that was answered; it needs no arrival. Spans are
[content, offset, length], with the content ids of `workloads.traffic`: row i's own words are 2i, its answer 2i + 1, shared
contents negative.

A prompt may come with its words, `text` or the `messages` of its turn ([{"role": "user", "content": …}]): a real model reads
them and counts its tokens itself, while the simulator goes by `input_tokens`.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from workloads.errors import InputError, Place
from workloads.readers.files import stem
from workloads.readers.moments import dated, from_first, moments
from workloads.readers.objects import Objects, read_objects
from workloads.readers.times import in_order, to_seconds
from workloads.traffic import SpanTable, Traffic, private_content
from workloads.transform import roots_of, take

KNOWN = (
    "arrival", "input_tokens", "output_tokens", "max_tokens", "priority", "n",
    "session", "turn", "parent", "think", "spans", "text", "messages",
)  # fmt: skip


def read_jsonl(path: Path, *, time_unit: str = "auto") -> Traffic:
    """Read a file that `write_jsonl` wrote, or one like it.

    Args:
        path: plain or gzipped file.
        time_unit: unit of `arrival` where it is a number and not in seconds.
    """
    data = read_objects(path)
    ignored = data.unknown(KNOWN)
    notes = [f"ignored fields: {', '.join(ignored)}"] if ignored else []
    parent = _parents(data)
    inputs, outputs = data.whole("input_tokens"), data.whole("output_tokens")
    arrival = _arrivals(data, parent, time_unit, notes)
    traffic = Traffic(
        arrival,
        inputs,
        outputs,
        data.whole("max_tokens", 0, 0),
        parent=parent,
        think=data.real("think", 0.0),
        priority=data.whole("priority", 0, None),
        n=data.whole("n", 1),
        spans=_spans(data, inputs),
        texts=_texts(data),
        name=stem(path),
        notes=notes,
    )
    if np.any(parent >= np.arange(len(parent))):  # turns that the file has before their parents
        traffic = _parents_first(traffic)
    roots = roots_of(traffic)
    # the arrival of a later turn is not used; where the file has none it is that of the session
    traffic.arrival = np.where(np.isnan(traffic.arrival), traffic.arrival[roots], traffic.arrival)
    if traffic.spans is not None:
        _check_contents(data, traffic, roots)
    return in_order(traffic)


def _arrivals(data: Objects, parent: np.ndarray, time_unit: str, notes: list[str]) -> np.ndarray:
    if np.all(parent < 0):
        return _seconds(data, time_unit, notes)
    values = data.values("arrival", None)
    roots = parent < 0
    for row in np.flatnonzero(roots):
        if values[row] is None:
            raise data.rows.error(int(row), "arrival", "is missing", "only later turns of a session do without")
    given = np.array([v is not None for v in values])
    told = Objects(data.file, [o for o, g in zip(data.objects, given, strict=True) if g], [])
    told.lines = [line for line, g in zip(data.lines, given, strict=True) if g]
    arrival = np.full(len(data), np.nan)
    arrival[given] = _seconds(told, time_unit, notes)
    return arrival


def _seconds(data: Objects, time_unit: str, notes: list[str]) -> np.ndarray:
    values = data.values("arrival")
    if dated(values[:1]):
        return from_first(moments(data.rows, "arrival", values), time_unit, notes)
    return to_seconds(data.real("arrival"), "s", time_unit, notes)


def _parents(data: Objects) -> np.ndarray:
    """The parent row of each row, from `parent`, or from `session` and `turn`."""
    parent = np.full(len(data), -1, np.int64)
    sessions: dict[object, list[tuple[int, int]]] = {}
    for row, item in enumerate(data.objects):
        if "session" in item:
            if "parent" in item:
                raise data.rows.error(row, "parent", "a row has either parent or session, not both")
            name, turn = item["session"], item.get("turn", row)
            if not isinstance(name, str | int) or isinstance(turn, bool) or not isinstance(turn, int):
                column = "turn" if isinstance(name, str | int) else "session"
                raise data.rows.error(row, column, f"expected a whole number, not {item.get(column)!r}")
            sessions.setdefault(name, []).append((turn, row))
        elif "parent" in item:
            parent[row] = _parent(data, row, item["parent"])
        elif "turn" in item:
            raise data.rows.error(row, "turn", "is there without a session")
    for turns in sessions.values():
        turns.sort()
        for (turn, row), (later, child) in itertools.pairwise(turns):
            if turn == later:
                raise data.rows.error(child, "turn", f"turn {turn} is there twice, also on line {data.lines[row]}")
            parent[child] = row
    return parent


def _parent(data: Objects, row: int, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < row:
        raise data.rows.error(
            row, "parent", f"expected an earlier row, 0 to {row - 1}, not {value!r}", "rows count from 0"
        )
    return value


def _parents_first(traffic: Traffic) -> Traffic:
    """Rows reordered so that sessions stay where their first row in the file is, in turn order."""
    size = len(traffic)
    depth = np.zeros(size, np.int64)
    at = traffic.parent.copy()
    while np.any(at >= 0):
        depth += at >= 0
        at = np.where(at >= 0, traffic.parent[at], -1)
    root = np.arange(size)
    while np.any(traffic.parent[root] >= 0):
        root = np.where(traffic.parent[root] >= 0, traffic.parent[root], root)
    return take(traffic, np.lexsort((depth, root)))


def _texts(data: Objects) -> list | None:
    """The words of each row: `text`, `messages`, or None."""
    if not any("text" in item or "messages" in item for item in data.objects):
        return None
    found: list = []
    for row, item in enumerate(data.objects):
        text, messages = item.get("text"), item.get("messages")
        if text is not None and messages is not None:
            raise data.rows.error(row, "messages", "a row has either text or messages, not both")
        if text is not None and not (isinstance(text, str) and text):
            raise data.rows.error(row, "text", "expected some text")
        if messages is not None and not (isinstance(messages, list) and messages and all(map(_is_message, messages))):
            raise data.rows.error(row, "messages", 'expected [{"role": "user", "content": "…"}, …]')
        found.append(text if messages is None else messages)
    return found


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def _spans(data: Objects, inputs: np.ndarray) -> SpanTable | None:
    lists = data.values("spans", None)
    if all(item is None for item in lists):
        return None
    full = [[[private_content(i), 0, int(inputs[i])]] if s is None else s for i, s in enumerate(lists)]
    try:
        counts = np.fromiter(map(len, full), np.int64, len(full))
        columns = np.array([span for item in full for span in item])
        if columns.dtype != np.int64 or columns.shape[1:] != (3,):
            raise ValueError
    except (TypeError, ValueError):
        raise _bad_spans(data, full) from None
    if columns[:, 1].min() < 0 or columns[:, 2].min() < 1:
        raise _bad_spans(data, full)
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    table = SpanTable(start, *(np.ascontiguousarray(columns[:, k]) for k in range(3)))
    sums = np.concatenate([[0], np.cumsum(table.length)])
    totals = sums[start[1:]] - sums[start[:-1]]
    data.rows.require(totals == inputs, "spans", totals, "lengths must add up to input_tokens")
    return table


def _bad_spans(data: Objects, lists: list) -> InputError:
    """The error of the first row whose spans are malformed."""
    row = next((i for i, s in enumerate(lists) if not (isinstance(s, list) and s and all(map(_is_span, s)))), 0)
    return data.rows.error(row, "spans", "expected [[content, offset, length], …], lengths at least 1")


def _is_span(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 3:
        return False
    content, offset, length = value
    if type(content) is not int or type(offset) is not int or type(length) is not int:
        return False
    return offset >= 0 and length >= 1


def _check_contents(data: Objects, traffic: Traffic, roots: np.ndarray) -> None:
    """Spans of other rows' words and answers must be of earlier turns of the session, and within them."""
    spans = traffic.spans
    assert spans is not None
    row = np.repeat(np.arange(len(traffic)), np.diff(spans.start))
    owner, answer = spans.content >> 1, (spans.content & 1) == 1
    own = spans.content < 0
    earlier = np.where(answer, owner < row, owner <= row) & (owner < len(traffic))
    owner = np.where(own | ~earlier, row, owner)
    inside = ~answer | (spans.offset + spans.length <= traffic.output_tokens[owner])
    bad = ~own & ~(earlier & (roots[owner] == roots[row]) & inside)
    if bad.any():
        k = int(np.argmax(bad))
        raise InputError(
            f"request {row[k]}: span [{spans.content[k]}, {spans.offset[k]}, {spans.length[k]}] is not of an "
            "earlier turn of its session, or longer than that turn's answer",
            place=Place(data.file),
            hint="contents shared between sessions have negative ids",
        )
