"""How figures read: the same on the console and on the page. ASCII only, so that any terminal can show it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_NUMBER = re.compile(r"\d[\d,.]*")
_STATUS = len("status: 404 ")
_WHOLE = 10_000
"""Characters of a value that is to be known from others."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def number(value: float | None, unit: str = "", missing: str = "n/a") -> str:
    """Three or four significant digits with thousands separators: 12,345  1,234  98.7  0.0123."""
    if value is None or not math.isfinite(value):
        return missing
    size = abs(value)
    if size < 1e-9:
        text = "0"
    elif size >= 1e15:
        text = f"{value:.3g}"
    elif float(value).is_integer() or size >= 1000:
        text = f"{value:,.0f}"
    elif size >= 100:
        text = f"{value:.1f}"
    elif size >= 1:
        text = f"{value:.2f}"
    else:
        text = f"{value:.3g}"
    return f"{text} {unit}" if unit else text


def share(value: float | None, missing: str = "n/a") -> str:
    """A share of one as per cent."""
    if value is None or not math.isfinite(value):
        return missing
    return f"{value:.2%}" if 0 < abs(value) < 0.1 else f"{value:.1%}"


def between(ends: list[float] | None, beside: str = "", show: Callable[[float], str] = number) -> str:
    """The two ends of a range as `show` writes them; one figure where they read alike.

    Args:
        ends: low and high; nothing of no range.
        beside: the figure that the range stands beside; a range that reads like it says nothing and is left out.
    """
    if not ends:
        return ""
    low, high = map(show, ends)
    text = low if low == high else f"{low} - {high}"
    return "" if text == beside else text


def seconds(value: float | None, missing: str = "n/a") -> str:
    """A time in the unit that reads best: us, ms, s, min, h."""
    if value is None or not math.isfinite(value):
        return missing
    size = abs(value)
    if not size:
        return "0 s"
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1, 1e3, "ms"), (120, 1, "s"), (7200, 1 / 60, "min")):
        if size < limit:
            return number(value * factor, unit)
    return number(value / 3600, "h")


def size(value: float | None, missing: str = "n/a") -> str:
    """Bytes in decimal units."""
    if value is None or not math.isfinite(value):
        return missing
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000 or unit == "TB":
            return number(value, unit)
        value /= 1000
    return missing


_VAGUE = frozenset((
    "name", "path", "kind", "mode", "value", "mean", "std", "low", "high", "tokens", "count", "dtype", "format", "process",
    "distribution",
))  # fmt: skip
"""Last parts of dotted keys that say nothing without the part before them."""


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Dotted keys cut to as few of their last parts as say what they are and tell them apart.

    `engine.scheduler.name` and `load.concurrency` become `scheduler.name` and `concurrency`.
    """
    parts = {key: key.split(".") for key in keys}
    length = {key: min(2 if words[-1] in _VAGUE else 1, len(words)) for key, words in parts.items()}
    while True:
        short = {key: ".".join(words[-length[key] :]) for key, words in parts.items()}
        found = list(short.values())
        longer = [key for key, text in short.items() if found.count(text) > 1 and length[key] < len(parts[key])]
        if not longer:
            return short
        for key in longer:
            length[key] += 1


def settings_told(values: Mapping[str, Any], limit: int = 60) -> str:
    """Settings in short: `scheduler.name fcfs, concurrency 8`."""
    short = short_keys(values)
    return ", ".join(f"{short[key]} {setting(value, limit)}" for key, value in values.items())


def setting(value: Any, limit: int = 200) -> str:
    """A configuration value as YAML users write it, on one line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return clean("[" + ", ".join(setting(v) for v in value) + "]", limit)
    if isinstance(value, dict):
        return clean("{" + ", ".join(f"{k}: {setting(v)}" for k, v in value.items()) + "}", limit)
    return clean(value, limit)


def naming(values: Iterable[Any], limit: int) -> Callable[[Any], str]:
    """How to call each of `values` in at most `limit` characters, so that what differs reads differently.

    Of sections only keys are told in which they differ, as `prefill.replicas 3, decode.replicas 1`. Where that is too long to be
    told apart, a number follows: which of the values it is.
    """
    whole = {setting(value, _WHOLE): value for value in values}
    texts = dict.fromkeys(whole, "") | {text: text for text in whole}
    sections = {text: dict(_leaves(value)) for text, value in whole.items() if isinstance(value, Mapping)}
    if len(sections) == len(whole) > 1:
        first, *others = sections.values()
        common = {key for key, told in first.items() if all(other.get(key) == told for other in others)}
        for text, leaves in sections.items():
            own = ", ".join(f"{key} {told}" for key, told in leaves.items() if key not in common)
            texts[text] = own or text
    cut = {text: clean(told, limit) for text, told in texts.items()}
    found = list(cut.values())
    for number, (text, told) in enumerate(cut.items(), 1):
        if found.count(told) > 1:
            cut[text] = f"{clean(texts[text], limit - 5)} ({number})"
    return lambda value: cut.get(setting(value, _WHOLE)) or setting(value, limit)


def _leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", setting(value)


def clean(text: Any, limit: int = 2000) -> str:
    """Text from outside, cut to `limit`, without control characters (escape codes, bidirectional tricks)."""
    text = _CONTROL.sub(" ", str(text)).encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 3] + "..."


def alike(reasons: Mapping[str, int], limit: int, most: int) -> list[tuple[str, int]]:
    """Reasons with how often each was given, the most frequent first; those that differ in their numbers alone are one.

    Args:
        limit: characters of a reason.   most: reasons that are told; what is left is "others".
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    for reason, count in reasons.items():
        head, rest = reason[:_STATUS], reason[_STATUS:]  # 429 and 503 are not alike
        groups.setdefault(head + _NUMBER.sub("#", rest), []).append((count, reason))
    found = sorted(((sum(count for count, _ in group), max(group)[1]) for group in groups.values()), reverse=True)
    told = [(clean(reason, limit), count) for count, reason in found[:most]]
    left = sum(count for count, _ in found[most:])
    return [*told, ("others", left)] if left else told


def encodable(text: str, encoding: str | None) -> str:
    """What an encoding can hold of a text; the rest becomes question marks."""
    try:
        return text.encode(encoding or "utf-8", "replace").decode(encoding or "utf-8")
    except LookupError:
        return text.encode("ascii", "replace").decode()


def simulator_speed(summary: dict, host: dict, end: float) -> dict[str, float | None]:
    """How fast the run itself was made, from `host["wall_seconds"]`.

    Returns:
        `wall_seconds`, `times_real_time`, `requests_per_s`, `steps_per_s` of wall time; None where unknown.
    """
    wall = host.get("wall_seconds")
    if not isinstance(wall, int | float) or not wall > 0:
        return dict.fromkeys(("wall_seconds", "times_real_time", "requests_per_s", "steps_per_s"))
    return {
        "wall_seconds": float(wall),
        "times_real_time": end / wall,
        "requests_per_s": summary["requests"] / wall,
        "steps_per_s": summary["engine_steps"] / wall,
    }
