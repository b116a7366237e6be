"""Stands in for `experiments.runner` where a test is about the front door and not about the engine."""

from __future__ import annotations

from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

import numpy as np

from experiments.schema import Workload
from reports.run_data import FINISHED, Requests, RunData, Timeline, TokenTimes

TIMELINE = tuple(
    each.name for each in fields(Timeline) if each.name not in ("width", "time") and each.default is MISSING
)


class FakeRunner:
    """`resolve` and `run` as the real runner has them, over four requests that take as long as their concurrency.

    Attributes:
        runs: workloads that were run.   fails: concurrency at which resolving fails.   status: of every request.
        interrupt_at: how many runs are done when Ctrl-C comes.   error: what `run` raises.
    """

    def __init__(self) -> None:
        self.runs: list[Workload] = []
        self.fails: int | None = None
        self.status = FINISHED
        self.interrupt_at: int | None = None
        self.error: BaseException | None = None
        self.stretch: bool | None = None

    def resolve(self, workload: Workload) -> Any:
        if self.fails is not None and workload.load.concurrency == self.fails:
            raise workload.error("load.concurrency", "does not fit")
        config = {
            "model": {"value": workload.model, "source": "user"},
            "seed": {"value": workload.seed, "source": "user"},
        }
        return SimpleNamespace(
            workload=workload, cost=None, config=config, info={"name": workload.name, "seed": workload.seed}
        )

    def run(self, resolved: Any, *, stretch: bool = True, progress: Any = None) -> RunData:
        self.stretch = stretch
        if self.error is not None:
            raise self.error
        complete = self.interrupt_at is None or len(self.runs) < self.interrupt_at
        self.runs.append(resolved.workload)
        if progress is not None:
            progress(4, 4, "done")
        return run_data(resolved.workload, self.status, complete)


def run_data(workload: Workload, status: str = FINISHED, complete: bool = True) -> RunData:
    """A run of four requests of eight tokens."""
    n, width = 4, float(workload.load.concurrency or 1)
    good = status == FINISHED
    first = np.arange(n) + 0.1 * width
    times = np.where(good, 1.0, np.nan)
    zeros = np.zeros(n, np.int64)
    requests = Requests(
        request=np.arange(n),
        session=np.arange(n),
        turn=zeros,
        priority=np.zeros(n, np.int32),
        scheduled=np.arange(n, dtype=float),
        sent=np.arange(n, dtype=float),
        queued=np.arange(n, dtype=float),
        admitted=np.arange(n) * times,
        first_token=first * times,
        finish=(first + 0.7) * times,
        input_tokens=zeros + 16,
        max_tokens=zeros + 8,
        output_tokens=zeros + 8 * good,
        target_tokens=zeros + 8,
        cached_tokens=zeros,
        recomputed_tokens=zeros,
        preemptions=zeros,
        status=np.full(n, status, object),
        reason=np.full(n, "" if good else "longer than the context", object),
    )
    ends = np.concatenate([f + 0.1 * np.arange(1, 8) for f in first]) if good else np.zeros(0)
    tokens = TokenTimes(
        np.arange(n * good), first[: n * good], np.arange(n * good) * 7, np.full(n * good, 7), np.sort(ends)
    )
    timeline = Timeline(5.0, np.zeros(1), **{name: np.zeros(1) for name in TIMELINE})
    info = {
        "name": workload.name,
        "seed": workload.seed,
        "backend": "sim",
        "load": workload.load.plain() or {"mode": "open"},
        "slo": workload.slo.plain(),
        "kv_pool_tokens": 1000,
        "kv_block_tokens": 16,
        "kv_bytes_per_token": 1024,
        "max_num_seqs": 8,
        "gpus": 1,
        "complete": complete,
        "end": 5.0,
    }
    config = {"seed": {"value": workload.seed, "source": "user"}}
    return RunData(requests, tokens, timeline, info, config, [], [], [], {"wall_seconds": 0.1})
