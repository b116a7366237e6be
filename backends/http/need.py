"""The package that only this backend needs."""

from __future__ import annotations

from importlib.util import find_spec

from workloads.errors import InputError, Place

INSTALL = "pip install 'twinserve[http]'"


def need_aiohttp(place: Place | None = None) -> None:
    """Refuse where the extra is not installed.

    Raises:
        InputError: naming the package and the command that installs it.
    """
    if find_spec("aiohttp") is None:
        raise InputError("backend http needs aiohttp, which is not installed", place=place, hint=INSTALL)
