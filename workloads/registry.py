"""Names to objects: built-ins, installed plug-ins, dotted paths.

Everything that can be plugged in is found the same way: a name of a plain dict of built-ins, a name that an installed
package registered under an entry-point group, or `package.module:Object`. Modules of the user's own are looked for
beside the workload file and in the present folder, after everything that is installed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from workloads.errors import InputError, Place, unknown_name

MARK = "__twinserve_plugin__"
"""Attribute of a module that was imported from a user's folder: (folder, time of its last change)."""

_beside: ContextVar[Path | None] = ContextVar("plugin folder", default=None)


@contextmanager
def plugins_from(folder: Path) -> Iterator[None]:
    """Within, modules of plug-ins are also looked for in `folder`: where the workload file lies."""
    token = _beside.set(folder)
    try:
        yield
    finally:
        _beside.reset(token)


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
        try:
            return installed[name].load()
        except (Exception, SystemExit) as error:  # whatever is wrong with somebody's package
            what = f"{type(error).__name__}: {error}"
            raise InputError(f"the installed {kind} {name!r} cannot be loaded: {what}", place=place) from error
    raise unknown_name(kind, name, [*known, *installed], place=place)


def installed_names(group: str) -> dict[str, Any]:
    """Entry points of `group` by name. Imported late: reading package metadata takes tens of milliseconds."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


def _import(kind: str, path: str, place: Place | None) -> Any:
    module_name, _, attribute = path.partition(":")
    beside = _beside.get()
    folders = [str(folder.absolute()) for folder in (beside, Path.cwd()) if folder is not None]
    added = [folder for folder in dict.fromkeys(folders) if folder not in sys.path]
    top = module_name.partition(".")[0]
    _make_room(top, folders)
    new = top not in sys.modules  # what was there before, such as our own packages, is nobody's plug-in
    importlib.invalidate_caches()  # the file may have been written a moment ago
    sys.path += added  # a console script has neither folder on its path
    try:
        found: Any = importlib.import_module(module_name)
        if new:
            _mark(top, folders)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # whatever is wrong with a module of the user's own
        what = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise InputError(
            f"cannot load {kind} {path!r}: {what}", place=place, hint="expected package.module:object"
        ) from error
    finally:
        for folder in added:
            sys.path.remove(folder)
    return found


def fault_of_plugin(error: BaseException) -> InputError | None:
    """An error that passed through a user's own module, as that module's: with its innermost line there.

    None where the module had no part in it.
    """
    where, trace = "", error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        module = sys.modules.get(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        if hasattr(module, MARK):
            where = f"{frame.f_code.co_filename}:{trace.tb_lineno}: in {frame.f_code.co_name}"
        trace = trace.tb_next
    return InputError(f"{where}: {type(error).__name__}: {error}") if where else None


def _mark(top: str, folders: list[str]) -> None:
    """Note on a module that it is a user's own, so that it can be told from others of its name and from ours."""
    module = sys.modules[top]
    file = getattr(module, "__file__", None)
    if file is None:
        return
    path = Path(file).absolute()
    folder = path.parent.parent if hasattr(module, "__path__") else path.parent
    if str(folder) in folders:
        setattr(module, MARK, (str(folder), path.stat().st_mtime_ns))


def _make_room(top: str, folders: list[str]) -> None:
    """Forget a user's module that lies in another folder or was changed since, so that it is read again."""
    module = sys.modules.get(top)
    mark = getattr(module, MARK, None)
    if mark is None:
        return
    folder, changed = mark
    file = Path(module.__file__)  # type: ignore[union-attr, arg-type]
    nearest = next((f for f in folders if (Path(f) / f"{top}.py").is_file() or (Path(f) / top).is_dir()), folder)
    if nearest == folder and file.is_file() and file.stat().st_mtime_ns == changed:
        return
    for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
        del sys.modules[name]
