"""Points of a sweep on a Ray cluster. Ray is the extra `ray`; nothing here is needed without it.

A point is run in a temporary folder of the node that Ray gives it to, and its run folder comes back whole: the nodes need
this package and the files that the workload names, under the same paths, but no folder shared with this machine for what is
written. Ray runs a point again whose node is lost.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
import socket
import tempfile
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.point import Outcome, PointTask, run_point
from workloads.errors import InputError, OutputError, TargetError

LOCAL = "local"
AHEAD = 2
"""Tasks handed to the cluster for every core that it has: the rest wait here, so that Ctrl-C leaves little behind."""
CONNECT = 10.0
"""Seconds to wait for the head of a cluster to answer."""


def on_ray(
    tasks: Mapping[int, PointTask], address: str = LOCAL, most: int | None = None
) -> Generator[tuple[int, Outcome], None, None]:
    """Each point's number with what became of it, in the order in which they finish.

    Args:
        address: of the cluster (`ray://host:10001`, `host:6379`, `auto`), or `local` for one on this machine.
        most: points at once; None leaves it to the cluster.

    Raises:
        InputError: Ray is not installed.
        TargetError: there is no such cluster, or it lost a point for good.
        OutputError: a point's folder cannot be written.
    """
    if not tasks:
        return
    ray = _ray()
    with _cluster(ray, address, most):
        remote = ray.remote(num_cpus=1, max_retries=2)(run_packed)
        cores = int(ray.cluster_resources().get("CPU", 1)) or 1
        waiting = list(tasks.items())
        flying: dict[Any, int] = {}
        try:
            while waiting or flying:
                while waiting and len(flying) < (most or cores * AHEAD):
                    number, task = waiting.pop(0)
                    flying[remote.remote(task)] = number
                ready, _ = ray.wait(list(flying), num_returns=1, timeout=1.0)
                for reference in ready:
                    number = flying.pop(reference)
                    yield number, _take(ray, reference, tasks[number])
        finally:
            for reference in flying:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)


def run_packed(task: PointTask) -> tuple[Outcome, dict[str, bytes]]:
    """On a node: run a point, and give back the files of its folder with what became of it."""
    with tempfile.TemporaryDirectory(prefix="twinserve-") as home:
        folder = Path(home) / "point"
        outcome = run_point(replace(task, folder=folder))
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.is_dir() else {}
    return outcome, files


def _take(ray: Any, reference: Any, task: PointTask) -> Outcome:
    """What became of a point, its folder written here."""
    try:
        outcome, files = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, InputError | OutputError | TargetError):
            raise cause from None
        raise
    except ray.exceptions.RayError as error:
        raise TargetError(f"the Ray cluster lost a point: {str(error).splitlines()[0]}") from error
    if files:
        _unpack(files, task.folder)
    return outcome


def _unpack(files: Mapping[str, bytes], folder: Path) -> None:
    """Write a run folder as `write_run` does: whole or not at all."""
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    try:
        temporary.mkdir(parents=True)
        for name, content in files.items():
            (temporary / Path(name).name).write_bytes(content)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    except OSError as error:
        raise OutputError(f"cannot write the run to {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise InputError(
            "--ray needs Ray, which is not installed", hint="pip install 'twinserve[ray]', or leave --ray out"
        ) from None
    return ray


def _reach(address: str) -> None:
    """Find out at once that nobody listens at `host:port`: Ray itself would wait for minutes.

    Raises:
        InputError: not an address.   TargetError: nobody answers there.
    """
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(
            f"--ray {address!r} is no address of a cluster", hint="such as ray://HOST:10001, HOST:6379, auto or local"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT).close()
    except OSError as error:
        raise TargetError(f"there is no Ray cluster at {address!r}: {error.strerror or error}") from None


@contextlib.contextmanager
def _cluster(ray: Any, address: str, most: int | None) -> Iterator[None]:
    """Connected to a cluster; one that is already connected is left so."""
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
    if address == LOCAL:
        options["num_cpus"] = most
    else:
        _reach(address)
        options = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError, OSError, TimeoutError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise TargetError(
            f"there is no Ray cluster at {address!r}: {said} (one that asks for a token wants RAY_AUTH_MODE=token here too)"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()
