"""The traffic of a workload, read or made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from experiments.schema import Workload
from experiments.trace_path import find_trace
from workloads.errors import InputError
from workloads.registry import plugins_from
from workloads.traffic import Traffic


def make_traffic(workload: Workload, context: int | None = None) -> Traffic:
    """The requests of a workload.

    Args:
        context: longest prompt plus answer that the model takes, in tokens; with it, `max_tokens` is filled by the
            workload's rule where the source does not say. None leaves it as the source has it.

    Raises:
        InputError: the trace cannot be read, or the traffic cannot be made; placed at its file or at the key.
    """
    with plugins_from(workload.folder):
        return _make(workload, context)


def _make(workload: Workload, context: int | None) -> Traffic:
    section = workload.traffic
    try:
        if section.synthetic is not None:
            from workloads.synthetic import synthesize

            traffic = synthesize(section.synthetic, workload.seed, base=workload.folder, name=workload.name)
        else:
            traffic = _read(workload)
        if workload.load.mode == "offline":
            traffic = replace(traffic, arrival=np.zeros(len(traffic)), notes=_untimed(traffic.notes))
        if context is None:
            return traffic
        from workloads.transform import declare

        return declare(traffic, section.max_tokens, context)
    except InputError as error:
        if error.place.file is not None:
            raise
        key = error.place.key or ("trace" if section.trace else "synthetic")
        key = key if key.startswith("traffic") else f"traffic.{key}"
        raise InputError(error.message, place=workload.place(key), hint=error.hint) from None


def _untimed(notes: list[str]) -> list[str]:
    """A traffic's notes without those on times, which nobody heeds."""
    from workloads.readers.times import alarming

    return [note for note in notes if note not in alarming(notes) or note in alarming(notes, timed=False)]


def _read(workload: Workload) -> Traffic:
    from workloads.readers import read_trace

    trace = workload.traffic.trace
    assert trace is not None
    return read_trace(
        find_trace(trace.path, workload.folder),
        trace.format,
        start=trace.start,
        duration=trace.duration,
        rate_scale=trace.rate_scale or 1.0,
        sample=trace.sample,
        limit=trace.limit,
        arrivals=trace.arrivals,
        seed=workload.seed,
        accept_implausible=bool(trace.accept_implausible),
        **trace.options,
    )
