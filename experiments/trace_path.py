"""Finding the trace that a workload file names."""

from __future__ import annotations

from pathlib import Path

from workloads.errors import InputError


def bundled_traces() -> list[Path]:
    """The traces that come with Twinserve, by name."""
    from importlib.resources import files

    folder = Path(str(files("workloads"))) / "examples" / "traces"
    endings = (".csv", ".jsonl", ".json", ".gz")
    return sorted(p for p in folder.glob("*") if p.suffix in endings) if folder.is_dir() else []


def find_trace(path: str, folder: Path) -> Path:
    """The file behind `traffic.trace.path`: relative to the workload file's folder, or the name of a bundled trace.

    A `.gz` at the end may be left out.

    Raises:
        InputError: there is none, with the nearest names.
    """
    from workloads.readers.files import existing

    try:
        given = Path(path).expanduser()
        places = [folder / given, folder / f"{given}.gz"]
        if given.name == path:
            places += [p for p in bundled_traces() if p.name.removesuffix(".gz") == path.removesuffix(".gz")]
        found = next((place for place in places if place.exists()), None)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"not a usable path: {getattr(error, 'strerror', None) or error}") from None
    if found is not None:
        return found
    try:
        return existing(folder / given)
    except InputError as error:
        if error.message != "no such file":
            raise
        raise InputError(f"no trace at {folder / given}", hint=_hint(given, error.hint)) from None


def _hint(given: Path, near: str | None) -> str | None:
    if given.exists():
        return "paths start from the workload file's folder, not from where you are"
    names = [p.name for p in bundled_traces()]
    if (near and near.startswith("did you mean")) or not names:
        return near
    return f"{near}; bundled: {', '.join(names)}"
