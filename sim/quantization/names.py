"""From a name to a quantisation mode, of weights or of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from workloads.errors import InputError
from workloads.registry import resolve

Mode = TypeVar("Mode")


def find_mode(kind: str, name: str, modes: Mapping[str, Mode], aliases: Mapping[str, str], wanted: type[Mode]) -> Mode:
    """A mode by name, alias, entry point (`twinserve.quantizations`) or `module:OBJECT`.

    Raises:
        InputError: no such mode, with the nearest names, or something that is not `wanted`.
    """
    key = name.lower().replace("_", "-")
    key = aliases.get(key, key)
    if key in modes:
        return modes[key]
    found = resolve(kind, name, modes, "twinserve.quantizations")
    if not isinstance(found, wanted):
        raise InputError(f"{kind} {name!r} is a {type(found).__name__}, expected a {wanted.__name__}")
    return found
