"""The pool of processes: results, errors, and workers that are gone afterwards."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.worker_pool import worker_pool

ROOT = Path(__file__).parents[2]


def test_results_come_back_and_workers_go() -> None:
    before = set(multiprocessing.active_children())
    with worker_pool(2) as submit:
        futures = [submit(pow, 2, power) for power in range(5)]
        assert [future.result() for future in futures] == [1, 2, 4, 8, 16]
        with pytest.raises(ZeroDivisionError):
            submit(divmod, 1, 0).result()
    assert set(multiprocessing.active_children()) <= before


def test_an_error_ends_the_workers_at_once() -> None:
    before = set(multiprocessing.active_children())
    with pytest.raises(RuntimeError, match="enough"), worker_pool(2) as submit:
        waiting = [submit(signal.pause) for _ in range(4)]
        assert submit is not None and not waiting[0].done()
        raise RuntimeError("enough")
    assert set(multiprocessing.active_children()) <= before, "nobody waits for what would never end"


def test_ctrl_c_is_one_word() -> None:
    """To the whole group of processes, as a terminal sends it, while workers are at work; nothing but our own word is printed."""
    code = (
        "import os, signal, sys, time\n"
        "from experiments.worker_pool import worker_pool\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    try:\n"
        "        with worker_pool(2) as submit:\n"
        "            submit(abs, -1).result()\n"
        "            waiting = [submit(signal.pause) for _ in range(3)]\n"
        "            print('ready', flush=True)\n"
        "            waiting[0].result()\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout.readline() == "ready\n"
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=120)
    assert (out, err, child.returncode) == ("interrupted\n", "", 0)
