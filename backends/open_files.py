"""Connections are open files, of which many systems let a process have 1,024 unless it asks for more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

WANTED = 65_536


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    """As many as the system lets this process have, up to `WANTED`."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
