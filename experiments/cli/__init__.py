"""The command line, `bench`. Commands are one file a group; whatever is heavy is imported when a command runs.

This file imports next to nothing, so that Ctrl-C and closed streams find `main` at work and not an import.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.cli.commands import app

__all__ = ["app", "main"]

INTERRUPTED = 130
# Imports and runs make many objects that stay and few cycles: Python's own limit of 700 looks through them again and again
# (a tenth of a second in a run of ten thousand requests).
_COLLECT_AFTER = 100_000


def main() -> None:
    """Entry point of the `bench` script."""
    _open_streams()
    gc.set_threshold(_COLLECT_AFTER, 10, 10)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for some reads the metadata of every package
    try:
        from experiments.cli.commands import application

        application(sys.argv[1:])()
    except KeyboardInterrupt:  # before any command ran
        sys.exit(INTERRUPTED)
    except ImportError as error:
        from experiments.shadows import shadowed

        sentences = shadowed()
        if not sentences:
            raise
        print("error: " + "; ".join(sentences), file=sys.stderr)
        raise SystemExit(2) from error
    finally:
        gc.freeze()  # the process ends: nothing is won by one more look through everything that it still holds


def _open_streams() -> None:
    """Streams that are there, whatever the caller closed, and that escape what a terminal cannot show."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def __getattr__(name: str) -> object:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from experiments.cli.commands import app

    return app
