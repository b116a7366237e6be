"""Points of a sweep in processes of this machine."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from experiments.point import Outcome, PointTask, run_point


def in_processes(tasks: Mapping[int, PointTask], workers: int) -> Generator[tuple[int, Outcome], None, None]:
    """Each point's number with what became of it, in the order in which they finish.

    Args:
        workers: processes; with 1, or a single task, this one does the work.
    """
    if workers == 1 or len(tasks) < 2:
        for number, task in tasks.items():
            yield number, run_point(task)
        return
    from concurrent.futures import as_completed

    from experiments.worker_pool import worker_pool

    # finished points are on disk; where this is left early, the others would only delay the answer to Ctrl-C
    with worker_pool(min(workers, len(tasks))) as submit:
        futures = {submit(run_point, task): number for number, task in tasks.items()}
        for future in as_completed(futures):
            yield futures[future], future.result()
