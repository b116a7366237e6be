"""A progress bar for what takes longer than two seconds, on a terminal only; it leaves nothing behind."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

PATIENCE = 2.0
REDRAW = 0.1


class Progress:
    """Call it with (done, total, detail) as often as you like; use it as a context manager.

    Args:
        title: what is going on.
        enabled: False shows nothing. Nothing is shown either where stderr is not a terminal.
    """

    def __init__(self, title: str, *, enabled: bool = True) -> None:
        self.title = title
        self.enabled = enabled and sys.stderr.isatty()
        self._start = self._drawn = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, done: float, total: float, detail: str = "") -> None:
        """Show `done` of `total`, with a few words beside it."""
        now = time.monotonic()
        if not self.enabled or now - self._drawn < REDRAW or now - self._start < PATIENCE:
            return
        self._drawn = now
        if self._bar is None:
            self._bar, self._task = _open_bar(self.title)
        self._bar.update(self._task, completed=done, total=total, detail=detail)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()


def _open_bar(title: str) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
    )  # fmt: skip
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(title.replace("[", r"\["), total=None, detail="")
    bar.start()
    return bar, task
