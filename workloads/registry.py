"""Names to objects: built-ins, installed plug-ins, dotted paths.

Everything that can be plugged in is found the same way: a name of a plain dict of built-ins, a name that an
    installed
package registered under an entry-point group, or `package.module:Object`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads.errors import InputError, Place, unknown_name


def resolve(kind: str, name: str, known: Mapping[str, Any], group: str, *, place: Place | None = None) -> Any:
    """The object called `name`.

    Args:
        kind: what it is, for messages ("trace format").
        name: a key of `known`, of the entry-point group, or a dotted path `module:object`.
        known: the built-ins.
        group: entry-point group, such as `twinserve.trace_readers`.

    Raises:
        InputError: no such name (with the nearest ones), or the dotted path cannot be imported.
    """
    if name in known:
        return known[name]
    if ":" in name:
        return _import(kind, name, place)
    installed = installed_names(group)
    if name in installed:
        return installed[name].load()
    raise unknown_name(kind, name, [*known, *installed], place=place)


def installed_names(group: str) -> dict[str, Any]:
    """Entry points of `group` by name. Imported late: reading package metadata takes tens of milliseconds."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


def _import(kind: str, path: str, place: Place | None) -> Any:
    module_name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:  # a console script does not have the user's folder on its path
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"cannot load {kind} {path!r}: {error}", place=place, hint="expected package.module:object"
        ) from error
    finally:
        if added:
            sys.path.remove(here)
    return found
