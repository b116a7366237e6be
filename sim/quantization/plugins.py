"""Finding a plug-in by name: built-ins first, then installed entry points, then a dotted path."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from workloads.errors import InputError, unknown_name

T = TypeVar("T")


def load_object(kind: str, path: str) -> Any:
    """The object named by `package.module:Name`.

    Raises:
        InputError: the module or the name in it does not exist.
    """
    module, _, attribute = path.partition(":")
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"{kind} {path!r}: cannot import {module}: {error}", hint="is it installed?"
        ) from None
    if not hasattr(loaded, attribute):
        raise InputError(f"{kind} {path!r}: module {module} has no {attribute}")
    return getattr(loaded, attribute)


def find_plugin(kind: str, group: str, name: str) -> Any:
    """An entry point of `group` called `name`, or the object at a dotted path; None if it is neither."""
    if ":" in name:
        return load_object(kind, name)
    for point in entry_points(group=group):
        if point.name == name:
            return point.load()
    return None


def resolve(kind: str, name: str, built_in: Mapping[str, T], expected: type[T], *, written: str) -> T:
    """A quantisation mode of type `expected` by name.

    Raises:
        InputError: unknown (with the nearest names), or found but of another type.
    """
    if name in built_in:
        return built_in[name]
    found = find_plugin(kind, "twinserve.quantizations", written)
    if found is None:
        raise unknown_name(kind, written, built_in)
    if not isinstance(found, expected):
        raise InputError(f"{kind} {written!r} is a {type(found).__name__}, expected a {expected.__name__}")
    return found
