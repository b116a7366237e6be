"""A pool of processes that ends quietly: on Ctrl-C, on an error, and when its parent is killed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

Submit = Callable[..., Future]


@contextlib.contextmanager
def worker_pool(workers: int) -> Iterator[Submit]:
    """`submit(function, *arguments)` for as long as the block lasts.

    Whatever leaves the block by an exception ends the workers at once: what they were at is lost. Nobody waits for them.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    from experiments.point import start_worker

    before = set(multiprocessing.active_children())
    context: Any = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=start_worker)

    def submit(function: Callable, *arguments: Any) -> Future:
        with _interrupts_held():
            return pool.submit(function, *arguments)

    try:
        yield submit
    except BaseException:
        # without cancelling what waits: the pool would fail over that, aloud, when it finds its workers gone
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        pool.shutdown()
        raise
    pool.shutdown()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C comes after the block; processes that are started in it never see one, not even while they start up."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
