"""What a step takes: time of the device, and time of the host, apart."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


class Stopwatch:
    """Times one step.

    On a GPU the device's time is from its first to its last operation, told by events, and the host works beside it. On a CPU it
    is what is spent within `device()`. Everything else from beginning to end, waiting left out, is the host's.
    """

    def __init__(self, device: torch.device) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []
        self._device = 0.0
        self._host = -time.perf_counter()
        if self._events:
            self._events[0].record()

    @contextmanager
    def device(self) -> Iterator[None]:
        """Within this a CPU computes, and a GPU is given work."""
        began = time.perf_counter()
        yield
        self._device += time.perf_counter() - began

    def stop(self) -> None:
        """All is given to the device."""
        self._host += time.perf_counter()
        if self._events:
            self._events[1].record()

    def wait(self) -> None:
        """Until the device is done; what the host does from now on counts again."""
        if self._events:
            self._events[1].synchronize()
        self._host -= time.perf_counter()

    def seconds(self) -> tuple[float, float]:
        """Of the device and of the host, up to now."""
        host = self._host + time.perf_counter()
        if self._events:
            return self._events[0].elapsed_time(self._events[1]) / 1e3, host
        return self._device, host - self._device


class StepTimes:
    """When steps ended, and seconds that device and host spent on each."""

    def __init__(self) -> None:
        self.ends, self._device, self._host = array("d"), array("d"), array("d")

    def add(self, end: float, device: float, host: float) -> None:
        """One more step."""
        self.ends.append(end)
        self._device.append(device)
        self._host.append(host)

    def columns(self) -> dict[str, np.ndarray]:
        """`end`, `device` and `host`, float64, a row a step."""
        return {"end": np.array(self.ends), "device": np.array(self._device), "host": np.array(self._host)}
