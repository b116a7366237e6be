"""One point of a sweep, run in this process or in another."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.schema import Workload
from experiments.workload_file import Source, build_workload
from workloads.errors import InputError, TargetError
from workloads.registry import MARK, fault_of_plugin

if TYPE_CHECKING:
    from experiments.resolve import Resolved
    from workloads.traffic import Traffic

CODE = ("workloads", "sim", "backends", "experiments")


@dataclass(frozen=True, slots=True)
class PointTask:
    """What a worker needs: the workload's source, the run folder to write, the fingerprint to leave in it."""

    source: Source
    folder: Path
    fingerprint: str
    stretch: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a point: the summary of its run, the GPUs it had and its settings (dotted key → value), or why it could
    not be run (`unreached`: since the server could not be reached)."""

    summary: dict = field(default_factory=dict)
    gpus: int = 1
    config: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    unreached: bool = False


def run_point(task: PointTask) -> Outcome:
    """Run a point and write its folder. That a model does not fit is an outcome, not an exception.

    Raises:
        KeyboardInterrupt: Ctrl-C; a half-finished point is not kept.
        OutputError: its folder cannot be written.
    """
    from experiments import runner
    from experiments.intervals import add_spread
    from reports.fingerprint import settings
    from reports.metrics import summarize
    from reports.run_folder import write_run

    try:
        resolved = runner.resolve(build_workload(task.source))
        share_traffic(resolved)
        data = runner.run(resolved, stretch=task.stretch)
    except (InputError, TargetError) as error:
        return Outcome(error=str(error), unreached=isinstance(error, TargetError))
    except (Exception, SystemExit) as error:  # told here, since the trace does not leave a worker
        fault = fault_of_plugin(error)
        if fault is None:
            raise
        return Outcome(error=str(fault))
    if not data.info.get("complete", True):
        raise KeyboardInterrupt
    data.info["point_fingerprint"] = task.fingerprint
    summary = summarize(data)
    add_spread(resolved, data, summary)
    write_run(data, task.folder, overwrite=True, summary=summary)
    return Outcome(summary, data.info.get("gpus", 1), settings(data.config))


def ignore_interrupts() -> None:
    """In a worker: Ctrl-C is the parent's to handle."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def start_worker() -> None:
    """In a worker: Ctrl-C is the parent's to handle, and when the parent is gone, however it went, so is the worker."""
    import multiprocessing
    import os
    import threading

    ignore_interrupts()
    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow() -> None:
            parent.join()
            os._exit(1)  # a worker of a killed parent would wait for work for ever

        threading.Thread(target=follow, daemon=True).start()


def share_traffic(resolved: Resolved) -> None:
    """Points that differ in the engine or in the load alone have the same requests: they are read or made once a process."""
    if getattr(resolved, "real", None) is None and getattr(resolved, "budget", None) is not None:
        workload, context = resolved.workload, resolved.budget.max_model_len
        files = tuple((str(file), file.stat().st_mtime_ns) for file in _files(workload))
        plain = json.dumps(workload.traffic.plain(), sort_keys=True, default=str)
        resolved._traffic = _traffic(_Shared(plain, workload.seed, workload.name, context, files, workload))


@dataclass(frozen=True, slots=True)
class _Shared:
    """What a traffic depends on, and the workload that it is made from."""

    section: str
    seed: int
    name: str
    context: int
    files: tuple[tuple[str, int], ...]
    workload: Workload = field(compare=False)


@lru_cache(maxsize=2)
def _traffic(key: _Shared) -> Traffic:
    from experiments.traffic import make_traffic

    traffic = make_traffic(key.workload, key.context)
    traffic.validate()
    return traffic


def fingerprint(workload: Workload) -> str:
    """Digest of what a point's result depends on: the workload, the files it reads and the code that runs it."""
    digest = hashlib.sha256(_code().encode())
    digest.update(json.dumps(workload.plain(), sort_keys=True, default=str).encode("utf-8", "backslashreplace"))
    for file in [*_files(workload), *_plugin_files(workload)]:
        digest.update(_content(str(file.resolve()), file.stat().st_mtime_ns))
    return digest.hexdigest()[:24]


def _files(workload: Workload) -> list[Path]:
    """Files that the workload names, wherever in it they stand."""
    found: list[Path] = []

    def look(value: object) -> None:
        if isinstance(value, dict):
            for item in value.values():
                look(item)
        elif isinstance(value, list | tuple):
            for item in value:
                look(item)
        elif isinstance(value, str) and len(value) < 1000 and "\0" not in value:
            path = workload.folder / value
            if path.is_file():
                found.append(path)

    look(workload.plain())
    return found


def _plugin_files(workload: Workload) -> list[Path]:
    """The code of the user's own that the workload names, and what lies beside it and may be imported by it."""
    files: set[Path] = set()
    for name in re.findall(r"\b([A-Za-z_]\w*)(?:\.\w+)*:[A-Za-z_][\w.]*", json.dumps(workload.plain(), default=str)):
        module = sys.modules.get(name)
        if hasattr(module, MARK):
            home = Path(module.__file__).parent
            files.update(home.rglob("*.py") if hasattr(module, "__path__") else home.glob("*.py"))
    return sorted(files)


@cache
def _content(path: str, modified: int) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


@cache
def _code() -> str:
    """Digest of our own source and data files."""
    home = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for package in CODE:
        for path in sorted((home / package).rglob("*")):
            if path.suffix in (".py", ".csv", ".toml", ".json") and path.is_file():
                digest.update(str(path.relative_to(home)).encode() + path.read_bytes())
    return digest.hexdigest()
