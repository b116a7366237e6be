"""Points of a sweep in processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from experiments.point import Outcome, PointTask, run_point


def in_processes(tasks: Mapping[int, PointTask], workers: int) -> Iterator[tuple[int, Outcome]]:
    """Each point's number with what became of it, in the order in which they finish.

    Args:
        workers: processes; with 1, or a single task, this one does the work.
    """
    if workers == 1 or len(tasks) < 2:
        for number, task in tasks.items():
            yield number, run_point(task)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    from experiments.point import start_worker

    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        min(workers, len(tasks)), mp_context=multiprocessing.get_context("spawn"), initializer=start_worker
    )
    try:
        futures = {pool.submit(run_point, task): number for number, task in tasks.items()}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BaseException:
        # Finished points are on disk; the others would only delay the answer to Ctrl-C.
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    pool.shutdown()
