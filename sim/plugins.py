"""Finding plug-ins: a built-in by name, an installed package's entry point, or `module:Name` of your own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads.errors import InputError, unknown_name


def find(kind: str, name: str, builtin: Mapping[str, Any], group: str) -> Any:
    """The object that `name` stands for.

    Args:
        kind: what it is, for messages ("scheduler").
        builtin: names of our own.
        group: entry-point group of installed packages ("twinserve.schedulers").

    Raises:
        InputError: nothing of that name, or it cannot be imported.
    """
    if name in builtin:
        return builtin[name]
    if ":" in name:
        return _dotted(kind, name)
    installed = {entry.name: entry for entry in _entry_points(group)}
    if name in installed:
        return installed[name].load()
    raise unknown_name(kind, name, [*builtin, *installed])


def _entry_points(group: str):
    from importlib.metadata import entry_points

    return entry_points(group=group)


def _dotted(kind: str, name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # a plug-in file usually lies beside the workload
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(
            f"{kind} {name!r} cannot be imported: {error}",
            hint="module:Name, with the module on PYTHONPATH or in this folder",
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise InputError(f"{kind} {name!r}: module {module_name} has no {attribute!r}") from None
