"""Names of runs that are points of a sweep: the swept values in which they differ, not the numbers of their folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reports import strict_json
from reports.wording import settings_told

SWEEP, POINTS, MOST = "sweep.json", "points", 60


def point_names(sources: Sequence[str]) -> list[str]:
    """A name for each run folder; "" for one that is not of a sweep, and for those whose values are all alike.

    Args:
        sources: folders, or files in them.
    """
    known = [_values(Path(source)) for source in sources]
    points = [values for values in known if values is not None]
    keys = list(dict.fromkeys(key for values in points for key in values))
    apart = [key for key in keys if any(values.get(key) != points[0].get(key) for values in points)]
    return [_told({key: values[key] for key in apart if key in values}) if values else "" for values in known]


def _told(values: dict[str, Any]) -> str:
    """One value alone says enough; several need their keys."""
    text = settings_told(values, 40)
    return text.partition(" ")[2] if len(values) == 1 and isinstance(next(iter(values.values())), str) else text[:MOST]


def _values(path: Path) -> dict[str, Any] | None:
    folder = (path if path.is_dir() else path.parent).resolve()
    file = folder.parent.parent / SWEEP
    if folder.parent.name != POINTS or not file.is_file():
        return None
    try:
        raw = strict_json.loads(file.read_text("utf-8"))
        found = [point for point in raw["points"] if folder.parent.parent / str(point["folder"]) == folder]
        return dict(found[0]["values"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):  # a name is not worth an error
        return None
