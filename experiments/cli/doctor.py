"""`bench doctor`: is everything here that Twinserve needs?"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass

import typer

from experiments.cli import options

GOOD, NOTE, BAD = "ok", "note", "problem"
OLDEST_PYTHON = (3, 11)
LEAST_DISK = 1 << 30
USES = {
    "engine": "the real engine needs it",
    "http": "benchmarking a server needs it",
    "server": "bench serve needs it",
    "ray": "only sweeps on a Ray cluster need it",
    "notebooks": "only running notebooks needs it",
    "docs": "only building the documentation needs it",
    "oracles": "only tests that compare with other implementations need it",
}
"""Extras of the package, and what they are for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: what, how it stands (`ok`, `note`, `problem`) and the details."""

    what: str
    state: str
    detail: str


def doctor(json: options.Json = False) -> None:
    """Check that all is here that is needed.

    Python, packages, what hides our packages, disk and devices. The exit code is 2 where something must be mended.

    \b
    Examples:
      bench doctor
      bench doctor --json
    """
    findings = [_python(), *_packages(), *_shadows(), _disk(), *_devices(), _http(), _server()]
    if json:
        from experiments.cli.run import print_json

        print_json([asdict(finding) for finding in findings])
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            typer.echo(f"{finding.state:8} {finding.what:{width}}  {finding.detail}")
    if any(finding.state == BAD for finding in findings):
        raise typer.Exit(2)


def _python() -> Finding:
    good = sys.version_info >= OLDEST_PYTHON
    return Finding("python", GOOD if good else BAD, f"{platform.python_version()} at {sys.executable}")


def _packages() -> list[Finding]:
    """The installed versions against what the package asks for; extras only where they are there or half there."""
    from importlib.metadata import PackageNotFoundError, requires, version

    try:
        asked = requires("twinserve") or []
    except PackageNotFoundError:
        return [Finding("twinserve", BAD, "not installed; `pip install -e .` in its folder")]
    findings = [Finding("twinserve", GOOD, version("twinserve"))]
    for requirement in asked:
        text, extra = parts(requirement)
        if extra != "dev":
            findings.append(_package(text, extra))
    return findings


def parts(requirement: str) -> tuple[str, str]:
    """Name with bounds, and the extra that asks for it ("" for none), of a requirement such as `ray>=2; extra == "ray"`."""
    import re

    text, _, marker = requirement.partition(";")
    found = re.search(r"""\bextra\s*==\s*["']([^"']+)["']""", marker)
    return text.strip(), found.group(1) if found else ""


def install(extra: str) -> str:
    """The command that adds an extra to this installation: from the folder that it is from, where that is known."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        origin = json.loads(distribution("twinserve").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = urlsplit(origin.get("url", ""))
    if url.scheme != "file":
        return f"pip install 'twinserve[{extra}]'"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'{unquote(url.path)}[{extra}]'"


def _package(requirement: str, extra: str) -> Finding:
    import re
    from importlib.metadata import PackageNotFoundError, version

    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
    try:
        have = version(name)
    except PackageNotFoundError:
        if extra:
            return Finding(name, NOTE, f"not installed ({USES.get(extra, 'optional')}: {install(extra)})")
        return Finding(name, BAD, f"not installed, {requirement} is needed: pip install '{requirement}'")
    good = _satisfies(have, requirement.removeprefix(name))
    return Finding(name, GOOD if good else BAD, have if good else f"{have}, but {requirement} is needed")


def _satisfies(have: str, bounds: str) -> bool:
    """Whether a version meets bounds such as `>=2.11,<2.14` (by its numbers)."""
    import operator
    import re

    compare = {">=": operator.ge, "<": operator.lt, ">": operator.gt, "<=": operator.le, "==": operator.eq}

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3])

    for sign, version in re.findall(r"(>=|<=|==|<|>)\s*([\w.]+)", bounds):
        wanted = numbers(version)
        if not compare[sign](numbers(have)[: max(len(wanted), 1)] if sign in ("==", "<=") else numbers(have), wanted):
            return False
    return True


def _shadows() -> list[Finding]:
    from experiments.shadows import PACKAGES, shadowed

    sentences = shadowed()
    if not sentences:
        return [Finding("packages", GOOD, f"{', '.join(PACKAGES)} are Twinserve's own")]
    return [Finding("packages", BAD, sentence) for sentence in sentences]


def _disk() -> Finding:
    from pathlib import Path

    try:
        free = shutil.disk_usage(Path.cwd()).free
    except OSError as error:  # the folder was deleted, or belongs to somebody else
        return Finding("disk", BAD, f"the present folder cannot be used: {error.strerror or error}; go to another one")
    detail = f"{free / 2**30:.1f} GiB free here"
    return Finding("disk", GOOD if free >= LEAST_DISK else NOTE, detail)


def _devices() -> list[Finding]:
    """The devices that torch sees, and which backends can run here, or why not."""
    from backends.extra import missing

    simulated = Finding("backend sim", GOOD, "runs here")
    if names := missing():
        why = f"{', '.join(names)} not installed: {install('engine')}"
        return [simulated, Finding("backend torch", NOTE, why), Finding("backend triton", NOTE, why)]
    if not _has_folder():  # torch's own libraries then end the process
        return [
            simulated,
            Finding("backend torch", BAD, "torch cannot be used from a folder that is gone; cd elsewhere"),
        ]
    try:
        import torch

        gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        found = [_device(properties, i) for i, properties in enumerate(gpus)]
        return [simulated, _torch(bool(gpus)), _triton(bool(gpus)), *found]
    except Exception as error:  # a broken installation of torch fails in many ways, all worth saying
        return [simulated, Finding("backend torch", BAD, f"torch cannot be used: {type(error).__name__}: {error}")]


def _has_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _http() -> Finding:
    from importlib.util import find_spec

    if find_spec("aiohttp") is None:
        return Finding("backend http", NOTE, f"aiohttp not installed: {install('http')}")
    return Finding("backend http", GOOD, "runs here; it needs a server (--base-url)")


def _server() -> Finding:
    from backends.server.extra import missing

    if names := missing():
        return Finding("bench serve", NOTE, f"{', '.join(names)} not installed: {install('server')}")
    return Finding("bench serve", GOOD, "runs here")


def _torch(gpu: bool) -> Finding:
    from backends.weights.device import device_name, memory, pick_device

    device = pick_device("auto")
    free = memory(device).free / 2**30
    where = f"on {device_name(device)}, {free:.1f} GiB of memory free"
    return Finding("backend torch", GOOD, where if gpu else f"{where}; no GPU is seen, so models run on the CPU")


def _triton(gpu: bool) -> Finding:
    from backends.torch.operators import check_operators
    from backends.weights.device import pick_device
    from workloads.errors import InputError

    try:
        check_operators("triton", pick_device("auto"))
    except InputError as error:
        return Finding("backend triton", NOTE, error.message)
    return Finding("backend triton", GOOD, "runs here")


def _device(properties: object, index: int) -> Finding:
    name = getattr(properties, "name", "?")
    memory = getattr(properties, "total_memory", 0)
    return Finding(f"gpu {index}", GOOD, f"{name}, {memory / 2**30:.0f} GiB")
