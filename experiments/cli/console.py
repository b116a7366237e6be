"""The console that commands print on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def stdout() -> Console:
    """A console on the present stdout. No colour and no cutting of lines where it is not a terminal."""
    import sys

    from rich.console import Console

    class Quiet(Console):
        """Leaves a reader that went away to the command line, which knows the exit code; rich would exit with 1."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Quiet(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 120)
