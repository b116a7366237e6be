"""Packages that only the server needs."""

from __future__ import annotations

from importlib.util import find_spec

from workloads.errors import InputError

NEEDED = ("uvicorn", "starlette", "prometheus_client")
INSTALL = "pip install 'twinserve[server]'"


def missing() -> list[str]:
    """Packages of the extra that are not installed."""
    return [name for name in NEEDED if find_spec(name) is None]


def need_server(what: str) -> None:
    """Refuse where the extra is not installed.

    Raises:
        InputError: naming the packages and the command that installs them.
    """
    if names := missing():
        verb = "is" if len(names) == 1 else "are"
        raise InputError(f"{what} needs {', '.join(names)}, which {verb} not installed", hint=INSTALL)
