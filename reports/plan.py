"""The resolved plan of a run on the terminal, before it starts: one subject a line, only what has a say.

Settings that nobody touched are left out; what the user wrote comes first and is bold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.text import Text

from reports.fingerprint import leaves
from reports.wording import clean, encodable, seconds, setting, size

_INDENT = 11
_LINES = (
    ("model", ("model",)),
    ("backend", ("backend",)),
    ("engine", ("engine",)),
    ("scheduler", ("engine.scheduler",)),
    ("kv cache", ("engine.kv",)),
    ("parallel", ("engine.parallel",)),
    ("cluster", ("cluster",)),
    ("traffic", ("traffic.trace", "traffic.synthetic", "traffic")),
    ("load", ("load",)),
    ("slo", ("slo",)),
)
# What a line is about stands first in it, without its key.
_SUBJECTS = (
    "model", "backend.name", "backend.gpu", "engine.preset", "engine.scheduler.name", "engine.kv.allocator",
    "cluster.router", "load.mode", "traffic.trace.path",
)  # fmt: skip
_KINDS = ("distribution", "process")  # the same inside a group such as `arrivals`
_SECONDS = ("start", "duration", "batch_wait", "latency")
_TITLES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2E"}
# told also where it was left at its default
_DECIDING = ("cluster.router", "engine.kv.slab", "load.mode", "traffic.max_tokens")
_OF_ENGINES = ("engine", "scheduler", "kv cache", "parallel")  # not told of a server that somebody else set up
_ELSEWHERE = ("engine.kv.capacity_tokens",)  # told in another line


def print_plan(info: dict, config: dict, console: Console, without: Iterable[str] = ()) -> None:
    """Ten subjects, a line each where the window is wide enough.

    Args:
        without: subjects that are left out.
        info: `RunData.info` as far as it is known (`name`, `seed`, `gpus`, `kv_pool_tokens`, `kv_bytes_per_token`).
        config: the resolved configuration with the source of every value.
    """
    name = Text(clean(info.get("name", "run"), 80), "bold")
    _print(console, "run", [name, Text(f"seed {setting(info.get('seed'))}")])
    lines: dict[str, list[tuple[str, str, str]]] = {label: [] for label, _ in _LINES}
    for key, value, source in leaves(config):
        label, rest = _line_of(key)
        told = (source != "default" or key in _DECIDING) and key not in _ELSEWHERE
        if label and value is not None and told:
            lines[label].append((key, rest, source))
    values = {key: value for key, value, _ in leaves(config)}
    for label, found in lines.items():
        if label in without:
            continue
        parts = [Text(text, style) for text, style in _parts(found, values)]
        if not parts and label in _OF_ENGINES and info.get("backend") == "http":
            continue
        if not parts and label == "cluster":
            continue
        if label == "parallel" and "pools" not in info:
            parts.append(Text(_gpus((info.get("gpus") or 1) // info.get("replicas", 1))))
        if label == "parallel" and "pools" in info:
            for name, pool in info["pools"].items():
                parts.append(Text(f"{_gpus(pool['gpus'] // pool['replicas'])} an engine for {name}"))
        if label == "cluster" and (info.get("replicas") or "pools" in info):
            parts.append(Text(f"{_gpus(info.get('gpus'))} in all"))
        if label == "kv cache" and info.get("kv_pool_tokens"):
            parts.append(Text(_pool(info)))
        _print(console, label, parts or [Text("none", "dim")])


def _line_of(key: str) -> tuple[str, str]:
    """The line that a setting stands in, and its key there."""
    best = ("", "", "")
    for label, prefixes in _LINES:
        for prefix in prefixes:
            if (key == prefix or key.startswith(prefix + ".")) and len(prefix) > len(best[2]):
                best = (label, key[len(prefix) + 1 :], prefix)
    return best[:2]


def _parts(found: Iterable[tuple[str, str, str]], values: dict) -> Iterator[tuple[str, str]]:
    """(text, style) of the settings in a line: its subject, what the user wrote, the rest."""
    found = sorted(found, key=lambda leaf: (leaf[0] not in _SUBJECTS, leaf[2] != "user"))
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for key, rest, source in found:
        groups.setdefault(rest.partition(".")[0] or key, []).append((key, rest, source))
    for name, members in groups.items():
        style = "bold" if any(source == "user" for _, _, source in members) else ""
        if len(members) == 1 and "." not in members[0][1]:
            yield _one(members[0][0], name, values), style
        else:
            yield _group(name, members, values), style


def _one(key: str, name: str, values: dict) -> str:
    text = _value(name, values[key])
    return text if key in _SUBJECTS else f"{_TITLES.get(name, name)} {text}"


def _group(name: str, members: list[tuple[str, str, str]], values: dict) -> str:
    """`arrivals poisson (rate 60)` of what stands in a section of its own."""
    kind, rest = "", []
    for key, path, _ in members:
        last = path.partition(".")[2]
        if last in _KINDS:
            kind = " " + setting(values[key], 60)
        else:
            rest.append(f"{last} {_value(last, values[key])}" if last else _value(name, values[key]))
    if not kind and len(rest) == 1:
        return f"{name} {rest[0]}"
    return f"{name}{kind}" + (f" ({', '.join(rest)})" if rest else "")


def _value(name: str, value: object) -> str:
    if name in _SECONDS and isinstance(value, int | float):
        return seconds(value)
    if name == "bandwidth" and isinstance(value, int | float):
        return f"{size(value)}/s"
    return setting(value, 60) + (" ms" if name in _TITLES else "")


def _gpus(count: int | None) -> str:
    return "one GPU" if count in (None, 1) else f"{count} GPUs"


def _pool(info: dict) -> str:
    tokens, each = info["kv_pool_tokens"], info.get("kv_bytes_per_token")
    where = f" in {info['replicas']} replicas" if info.get("replicas") else ""
    if "pools" in info:
        where = " (" + ", ".join(f"{name} {pool['kv_pool_tokens']:,}" for name, pool in info["pools"].items()) + ")"
    return f"{tokens:,} tokens{where}" + (f" ({size(tokens * each)})" if each else "")


def _print(console: Console, label: str, parts: list[Text]) -> None:
    """A label and its parts, wrapped between parts and indented."""
    width = max(console.width - _INDENT, 8)
    line, used = Text().append(f"{label:<{_INDENT}}"[:_INDENT], "dim"), 0
    lines = [line]
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        text = encodable(part.plain, console.encoding)
        room = width - (not last)
        if len(text) > room:
            text = text[: max(room - 3, 1)] + "..."
        if used and used + 1 + len(text) > room:
            line, used = Text(" " * _INDENT), 0
            lines.append(line)
        if used:
            line.append(" ")
        line.append(text, part.style)
        line.append("" if last else ",")
        used += len(text) + (not last) + (used > 0)
    for each in lines:
        console.print(each, no_wrap=True, overflow="crop", highlight=False)
