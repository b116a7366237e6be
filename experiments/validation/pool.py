"""Simulating points: several at once, each once, with what is known already left out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from experiments.validation.points import Point
from experiments.validation.simulate import Result, simulate
from workloads.errors import OutputError

Progress = Callable[[float, float, str], None]
_AHEAD = 4  # points handed to each worker before it has finished one


class Store:
    """Results by the key of their point, kept in a file of JSON lines; without a path, in memory only."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.results: dict[str, Result] = {}
        if path is not None and path.is_file():
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):  # a line cut short by the end of a process
                    entry = json.loads(line)
                    self.results[entry["key"]] = Result.from_plain(entry["result"])
        self._file = None

    def add(self, key: str, result: Result) -> None:
        """Keep a result.

        Raises:
            OutputError: the file cannot be written.
        """
        self.results[key] = result
        if self.path is None:
            return
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("a", encoding="utf-8")
            self._file.write(json.dumps({"key": key, "result": result.plain()}) + "\n")
            self._file.flush()
        except OSError as error:
            raise OutputError(f"cannot write to {self.path}: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def run_points(points: dict[str, Point], store: Store, jobs: int, progress: Progress | None = None) -> bool:
    """Simulate the points that `store` does not have.

    Returns:
        Whether all are done; False after Ctrl-C, with everything finished until then kept.
    """
    wanted = [(key, point) for key, point in points.items() if key not in store.results]
    done = 0

    def finished(key: str, result: Result) -> None:
        nonlocal done
        store.add(key, result)
        done += 1
        if progress is not None:
            progress(
                done, len(wanted), f"{len(points) - len(wanted):,} were known" if len(points) > len(wanted) else ""
            )

    try:
        if jobs == 1 or len(wanted) < 3:
            for key, point in wanted:
                finished(key, simulate(point))
        else:
            _in_processes(wanted, jobs, finished)
    except KeyboardInterrupt:
        return False
    finally:
        store.close()
    return True


def _in_processes(wanted: Iterable[tuple[str, Point]], jobs: int, finished: Callable[[str, Result], None]) -> None:
    from multiprocessing import get_context

    from experiments.point import ignore_interrupts

    queue = iter(wanted)
    running: dict[Future, str] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=ignore_interrupts) as pool:
        try:
            while True:
                while len(running) < jobs * _AHEAD and (item := next(queue, None)) is not None:
                    running[pool.submit(simulate, item[1])] = item[0]
                if not running:
                    return
                ready, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ready:
                    finished(running.pop(future), future.result())
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
