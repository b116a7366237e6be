"""A run on disk: a folder that is complete or absent.

It is written beside its place under a hidden name and renamed at the end, so that neither a full disk nor Ctrl-C leaves
half a run, and an older run stays until the new one is whole.

    run.json            schema version, resolved configuration, seed, versions, provenance, summary; apart: `host`
    requests.parquet    one row a request          tokens.parquet, steps.parquet    when every token came
    timeline.parquet    the run over time          report.html                      the page for people
    client.parquet      of a remote server: what its client saw besides

Everything but `host` in run.json and the report is the same, byte for byte, for the same simulated run.
"""

from __future__ import annotations

import contextlib
import errno
import platform
import secrets
import shutil
from importlib import metadata
from pathlib import Path

from reports import strict_json
from reports.columns import CLIENT, REQUESTS, STEPS, TABLES, TIMELINE, TOKENS, read_table, write_table
from reports.fingerprint import traffic_fingerprint
from reports.run_check import check_columns, check_head
from reports.run_data import Client, Requests, RunData, Timeline, TokenTimes
from workloads.errors import InputError, OutputError, Place

SCHEMA_VERSION = 2
"""1: the first. 2: the timeline has `device_seconds` and `host_seconds`."""
_OLDEST = 1
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
RUN, REPORT = "run.json", "report.html"
_KEYS = {
    "info": dict,
    "config": dict,
    "provenance": list,
    "warnings": list,
    "notes": list,
    "timeline_width": float,
}


class FolderTaken(OutputError):
    """The folder holds something already, perhaps since another run has just been written there."""


def write_run(
    data: RunData, out: Path, *, overwrite: bool = False, summary: dict | None = None, report: bool = True
) -> Path:
    """Write a run folder.

    Args:
        out: the folder to make. It may exist if it is empty, or if it holds a run and `overwrite` is set.
        summary: what `metrics.summarize` gave; made here when None.
        report: also write `report.html`.

    Returns:
        The folder.

    Raises:
        OutputError: it cannot be written; nothing is left half-written and an older run is untouched.
        FolderTaken: it is there already, were it only since a moment ago.
    """
    from reports.metrics import summarize

    out = Path(out)
    try:
        place = out.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError up to Python 3.12
        raise OutputError(f"cannot write the run to {out}: {getattr(error, 'strerror', None) or error}") from None
    check_free(out, overwrite=overwrite)
    temporary = place.with_name(f".{place.name[:200]}.{secrets.token_hex(4)}.partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        _fill(temporary, data, summary if summary is not None else summarize(data), report)
        _move_into(temporary, place, out, overwrite)
    except OSError as error:
        raise OutputError(f"cannot write the run to {out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out


def check_free(out: Path, *, overwrite: bool = False) -> None:
    """Say before a long run, rather than after it, that its folder is taken.

    Raises:
        FolderTaken: `out` is a file, a run that may not be overwritten, or a folder with something else in it.
    """
    try:
        if not out.exists():
            return
        if not out.is_dir():
            raise FolderTaken(f"cannot write the run to {out}: it is a file (name a folder that does not exist yet)")
        if not any(out.iterdir()):
            return
        if not (out / RUN).is_file():
            raise FolderTaken(
                f"cannot write the run to {out}: the folder holds something that is not a run (name a new folder)"
            )
    except OSError as error:
        raise OutputError(f"cannot write the run to {out}: {error.strerror or error}") from error
    if not overwrite:
        raise FolderTaken(f"{out} already holds a run (name another folder, or --overwrite)")


def read_run(path: Path) -> RunData:
    """Read a run folder back.

    Raises:
        InputError: it is not a run folder, is of another schema version, or something in it is missing or broken.
    """
    folder = Path(path)
    head = read_head(folder)
    columns = {table.file: read_table(table, folder, head["schema_version"]) for table in TABLES}
    data = RunData(
        requests=Requests(**columns[REQUESTS.file]),
        tokens=TokenTimes(**columns[TOKENS.file], **columns[STEPS.file]),
        timeline=Timeline(width=head["timeline_width"], **columns[TIMELINE.file]),
        info=head["info"],
        config=head["config"],
        provenance=head["provenance"],
        warnings=head["warnings"],
        notes=head["notes"],
        host=head.get("host") or {},
        client=_read_client(folder, head["schema_version"]),
    )
    check_columns(data, folder)
    return data


def _read_client(folder: Path, version: int) -> Client | None:
    """What the client of a remote server saw, where the run has it."""
    return Client(**read_table(CLIENT, folder, version)) if (folder / CLIENT.file).is_file() else None


def read_head(path: Path) -> dict:
    """The contents of `run.json` alone: summary, configuration, fingerprint … without the columns.

    Raises:
        InputError: as `read_run`.
    """
    folder = Path(path)
    file = folder / RUN
    place = Place(file=str(file))
    if folder.is_file():
        from reports.imports import fault_of

        raise fault_of(folder) or InputError("is a file, not a run folder", place=Place(file=str(folder)))
    if not folder.is_dir():
        raise InputError("there is no such run folder", place=Place(file=str(folder)))
    if not file.is_file():
        sweep = (folder / "sweep.json").is_file()
        hint = f"a sweep: its runs are in {folder / 'points'}; its own command with --out {folder} renews its page"
        raise InputError(
            "not a run folder: run.json is missing", place=Place(file=str(folder)), hint=hint if sweep else None
        )
    try:
        head = strict_json.loads(file.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"is not readable JSON ({error})", place=place) from error
    version = head.get("schema_version") if isinstance(head, dict) else None
    if type(version) is not int or not _OLDEST <= version <= SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        hint = "upgrade Twinserve to read it" if newer else "run the workload again to renew it"
        reads = f"{_OLDEST} to {SCHEMA_VERSION}"
        raise InputError(f"has schema_version {version!r}, this version reads {reads}", place=place, hint=hint)
    for key, kind in {**_KEYS, "summary": dict}.items():
        if not isinstance(head.get(key), kind):
            raise InputError("is missing or of the wrong type", place=Place(file=str(file), key=key))
    check_head(head, file)
    return head


def head_of(data: RunData, summary: dict) -> dict:
    """What `run.json` holds, `host` last."""
    return {
        "schema_version": SCHEMA_VERSION,
        "name": data.info.get("name"),
        "seed": data.info.get("seed"),
        "fingerprint": traffic_fingerprint(data),
        "versions": versions(),
        "info": data.info,
        "config": data.config,
        "summary": summary,
        "warnings": data.warnings,
        "notes": data.notes,
        "provenance": data.provenance,
        "timeline_width": float(data.timeline.width),
        "host": data.host,
    }


def versions() -> dict[str, str | None]:
    """Versions of what a result may depend on."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("twinserve", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def _fill(folder: Path, data: RunData, summary: dict, report: bool) -> None:
    for table, source in zip(TABLES, (data.requests, data.tokens, data.tokens, data.timeline), strict=True):
        write_table(table, source, folder)
    if data.client is not None:
        write_table(CLIENT, data.client, folder)
    (folder / RUN).write_text(strict_json.dumps(head_of(data, summary)) + "\n", "utf-8")
    if report:
        from reports.html import render_report

        (folder / REPORT).write_text(render_report(data, summary), "utf-8")


def _move_into(temporary: Path, place: Path, out: Path, overwrite: bool) -> None:
    """Put the finished folder in its place; what was there comes back if that fails.

    The rename itself says whether the place is free, since another run may have been written there meanwhile.
    """
    while True:
        try:
            temporary.rename(place)
            return
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        check_free(out, overwrite=overwrite)
        if not overwrite:
            with contextlib.suppress(OSError):
                place.rmdir()  # only an empty folder goes; not every system renames onto one
            continue
        older = temporary.with_suffix(".older")
        try:
            place.rename(older)
        except FileNotFoundError:
            continue  # it went just now
        try:
            temporary.rename(place)
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in _TAKEN:  # a third run was quicker: it is the older one now
                shutil.rmtree(older, ignore_errors=True)
                continue
            older.rename(place)
            raise
        shutil.rmtree(older, ignore_errors=True)
        return
