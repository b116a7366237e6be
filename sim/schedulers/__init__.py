"""Schedulers, and the small decisions they are made of."""

from __future__ import annotations

from sim.schedulers.base import Scheduler
from sim.schedulers.chunked import ChunkedPrefill
from sim.schedulers.continuous import ContinuousBatching
from sim.schedulers.gates import GATES, Gate, make_gate
from sim.schedulers.queue import POLICIES, WaitingQueue, make_queue
from sim.schedulers.static import StaticBatching
from sim.schedulers.victims import VICTIMS, VictimRule

SCHEDULERS: dict[str, type[Scheduler]] = {
    "static": StaticBatching,
    "continuous": ContinuousBatching,
    "chunked-prefill": ChunkedPrefill,
}

__all__ = [
    "GATES", "POLICIES", "SCHEDULERS", "VICTIMS", "ChunkedPrefill", "ContinuousBatching", "Gate", "Scheduler", "StaticBatching",
    "VictimRule", "WaitingQueue", "make_gate", "make_queue",
]  # fmt: skip
