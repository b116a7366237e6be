"""What was asked of an engine, in the few facts that every tool records, and in what two such askings differ.

Two runs of ours are the same traffic when their fingerprints are equal: every length, limit, session and planned time. Other
tools' result files have no fingerprint; there the facts that both sides know are held against each other, token counts with
room for a tokenizer's special tokens.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reports.fingerprint import traffic_fingerprint
from reports.run_data import RunData
from reports.wording import number

TOKENS_APART, RATE_APART = 0.02, 0.05
_WORDS = {
    "requests": "requests", "input_tokens": "prompt tokens", "output_tokens": "output tokens", "mode": "kind of load",
    "concurrency": "concurrency", "rate": "requests per second",
}  # fmt: skip
_COLUMNS = {
    "input_tokens": "prompt lengths", "target_tokens": "answer lengths", "max_tokens": "limits of answers",
    "priority": "priorities", "session": "sessions", "turn": "turns",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was asked, None where a file does not say.

    Attributes:
        fingerprint: of the whole traffic (`reports.fingerprint`), only of runs of ours.
        requests: how many were sent.   input_tokens, output_tokens: of all of them, as they were to be.
        mode: "open" | "closed".   concurrency: of a closed loop.   rate: asked-for requests a second of an open one.
    """

    fingerprint: str | None = None
    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    mode: str | None = None
    concurrency: int | None = None
    rate: float | None = None

    @classmethod
    def of(cls, data: RunData) -> Traffic:
        """The traffic of a run."""
        r, load = data.requests, data.info["load"]
        closed = load.get("mode") == "closed"
        rate = load.get("rate")
        return cls(
            traffic_fingerprint(data), len(r), int(r.input_tokens.sum()), int(r.target_tokens.sum()), load.get("mode"),
            load.get("concurrency") if closed else None, float(rate) if isinstance(rate, int | float) else None,
        )  # fmt: skip

    @classmethod
    def read(cls, plain: Any, fingerprint: str | None = None) -> Traffic:
        """From what `plain` gave; what is missing or of another type is taken as not known."""
        facts = plain if isinstance(plain, dict) else {}
        known: dict[str, Any] = {}
        for name in ("requests", "input_tokens", "output_tokens", "concurrency", "rate"):
            value = facts.get(name)
            known[name] = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        mode = facts.get("mode")
        return cls(fingerprint=fingerprint or None, mode=mode if isinstance(mode, str) else None, **known)

    def plain(self) -> dict[str, Any]:
        """The facts that are known, without the fingerprint; JSON-ready."""
        return {k: v for k, v in asdict(self).items() if v is not None and k != "fingerprint"}


def differences(
    first: Traffic, second: Traffic, data: tuple[RunData | None, RunData | None] = (None, None)
) -> list[str]:
    """In what two traffics differ, a phrase each ("requests 200 and 300"); nothing where they are the same.

    Args:
        data: the runs themselves where they are at hand; they tell more exactly what differs.
    """
    known = first.fingerprint is not None and second.fingerprint is not None
    if known and first.fingerprint == second.fingerprint:
        return []
    found = []
    for name, words in _WORDS.items():
        a, b = getattr(first, name), getattr(second, name)
        if a is None or b is None or _same(name, a, b, exact=known):
            continue
        found.append(f"{words} {_told(a)} and {_told(b)}")
    if not known:
        return found
    if data[0] is not None and data[1] is not None:
        found += _columns(data[0], data[1])
    return found or [
        f"lengths, limits or times of requests (fingerprints {first.fingerprint} and {second.fingerprint})"
    ]


def _same(name: str, a: Any, b: Any, *, exact: bool) -> bool:
    if exact or name in ("requests", "mode", "concurrency"):
        return a == b
    apart = RATE_APART if name == "rate" else TOKENS_APART
    return abs(a - b) <= apart * max(abs(a), abs(b))


def _columns(first: RunData, second: RunData) -> list[str]:
    """Which columns of the requests differ, and in how many rows."""
    a, b = first.requests, second.requests
    if len(a) != len(b):
        return []
    found = []
    for name, words in _COLUMNS.items():
        rows = int((getattr(a, name) != getattr(b, name)).sum())
        if rows:
            found.append(f"{words} of {rows:,} requests")
    if first.info["load"].get("mode") != "closed" and second.info["load"].get("mode") != "closed":
        planned = [np.where(r.turn == 0, r.scheduled, 0.0) for r in (a, b)]
        rows = int((np.abs(np.nan_to_num(planned[0]) - np.nan_to_num(planned[1])) > 1e-6).sum())
        if rows:
            found.append(f"planned times of {rows:,} requests")
    return found


def _told(value: Any) -> str:
    return number(value) if isinstance(value, int | float) else str(value)
