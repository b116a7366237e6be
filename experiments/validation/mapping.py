"""The rules of `mapping.toml`: which preset, precision and settings a measured row means, and why."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from experiments.validation.names import date_of, version_of
from experiments.validation.table import Row

_COLUMNS = ("engine", "model", "gpu", "notes", "load_kind", "weight_dtype", "kv_dtype", "source", "load", "isl", "osl")


@dataclass
class Mapped:
    """What the rules make of a row.

    Attributes:
        family: engine (`vllm`, `sglang`, `tensorrt-llm`, `pytorch`, `lightllm`, `other`). version: as the row has it.
        preset: its preset.
        known: whether the engine is one that is modelled.
        weights, kv: names of the modes; `weights` is "" where no rule knows the type, `auto` where none is stated.
        settings: dotted keys of `engine:`. by_memory: the same for (large, small) cards.
        limits: name of a sizing rule, or "". lengths: shares of the nominal length that are drawn from, or None.
        prompts: different prompts, which a client sends again and again; 0 where each is sent once.
        stream: tokens of an answer that the front end hands out as one piece.
        front_end: False where requests are timed inside the server.
        speculation: `on` where draft tokens are used, `untold` where they may be, else "".
        cold: no warm-up went before what was measured, so that kernels that are built at their first use are built in it.
        rules: names of the rules that applied, in order.
    """

    family: str = ""
    version: str = ""
    preset: str = "vllm"
    known: bool = True
    weights: str = "auto"
    kv: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)
    by_memory: tuple[dict[str, Any], dict[str, Any]] = field(default_factory=lambda: ({}, {}))
    limits: str = ""
    lengths: tuple[float, float] | None = None
    prompts: int = 0
    stream: int = 1
    front_end: bool = True
    speculation: str = ""
    cold: bool = False
    rules: list[str] = field(default_factory=list)


@cache
def rules() -> dict[str, list[dict]]:
    """The rules as written."""
    return tomllib.loads((files("experiments.validation") / "mapping.toml").read_text(encoding="utf-8"))


def map_row(row: Row) -> Mapped:
    """Apply the rules to a row."""
    mapped = Mapped(version=row.engine_version)
    for rule in rules()["rule"]:
        if not _fits(rule, row, mapped):
            continue
        mapped.rules.append(rule["name"])
        if "family" in rule and not mapped.family:
            mapped.family = rule["family"]
        mapped.preset = rule.get("preset", mapped.preset)
        mapped.known = rule.get("known", mapped.known)
        mapped.limits = rule.get("limits", mapped.limits)
        mapped.settings |= rule.get("set", {})
        large, small = mapped.by_memory
        large |= rule.get("set_on_large", {})
        small |= rule.get("set_on_small", {})
        mapped.prompts = rule.get("prompts", mapped.prompts)
        mapped.stream = rule.get("stream", mapped.stream)
        mapped.front_end = rule.get("front_end", mapped.front_end)
        mapped.speculation = rule.get("speculation", mapped.speculation)
        mapped.cold = rule.get("cold", mapped.cold)
        if "lengths" in rule:
            mapped.lengths = tuple(rule["lengths"])
    mapped.weights = _mode("weights", row, mapped) if row.weight_dtype or _always(row, mapped) else "auto"
    mapped.kv = _mode("kv", row, mapped)
    return mapped


def _always(row: Row, mapped: Mapped) -> bool:
    """Whether the model alone tells the weights' type."""
    return any(set(rule["when"]) == {"model"} and _fits(rule, row, mapped) for rule in rules()["weights"])


def states_precision(row: Row) -> bool:
    """Whether the row, or its model alone, says what type the weights have."""
    return bool(row.weight_dtype) or _always(row, Mapped())


def _mode(kind: str, row: Row, mapped: Mapped) -> str:
    for rule in rules()[kind]:
        if _fits(rule, row, mapped):
            return rule["mode"]
    return ""


def _fits(rule: dict, row: Row, mapped: Mapped) -> bool:
    def found(column: str, pattern: str) -> bool:
        text = getattr(mapped, column) if column in ("family", "preset") else getattr(row, column)
        return re.search(pattern, text, re.IGNORECASE) is not None

    if not all(found(column, pattern) for column, pattern in rule.get("when", {}).items()):
        return False
    if any(found(column, pattern) for column, pattern in rule.get("unless", {}).items()):
        return False
    return _in_time(rule, row)


def _in_time(rule: dict, row: Row) -> bool:
    """Whether the engine's version, or else the date of the source, lies in the rule's range.

    A row that tells neither is taken to be of the newest, as a preset's bare name is.
    """
    if "from" not in rule and "before" not in rule:
        return True
    version = version_of(row.engine_version)
    if version is not None:
        low, high = version_of(rule.get("from", "0.0")), version_of(rule.get("before", "9999.0"))
        return low <= version < high
    date = date_of(row.source_date)
    if date is None:
        return "before" not in rule
    low, high = date_of(rule.get("dated_from", "0001")), date_of(rule.get("dated_before", "9999"))
    return low <= date < high if "dated_from" in rule or "dated_before" in rule else False
