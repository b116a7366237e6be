"""Reading recorded traffic: `read_trace`, and the formats it knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workloads import transform
from workloads.errors import InputError, Place
from workloads.readers.registry import (
    FORMATS,
    GROUP,
    READS,
    TraceReader,
    call_reader,
    check_folder,
    find_reader,
    guess_format,
    options_of,
)
from workloads.readers.times import check_plausible
from workloads.traffic import Traffic
from workloads.units import seconds

__all__ = ["FORMATS", "GROUP", "READS", "TraceReader", "find_reader", "guess_format", "options_of", "read_trace"]


def read_trace(
    path: str | Path,
    format: str | None = None,
    *,
    start: float | str | None = None,
    duration: float | str | None = None,
    rate_scale: float = 1.0,
    sample: float | int | None = None,
    limit: int | None = None,
    arrivals: Mapping | None = None,
    seed: int = 0,
    accept_implausible: bool = False,
    **options: Any,
) -> Traffic:
    """Read a trace, and cut it to what is wanted, in the order of the arguments.

    Args:
        path: the file (plain or .gz) or folder.
        format: a name of `FORMATS`, of an installed plug-in, or `package.module:function`; None = told from
            the content.
        start, duration: window in the trace's own time, in seconds or as `10min`; `start` becomes time 0.
        rate_scale: arrivals so many times as fast.
        sample: a share (float) or number (int) of requests to draw; sessions stay whole.
        limit: at most so many rows, from the first.
        arrivals: an arrival process (as in a synthetic workload) instead of the recorded times.
        seed: of all draws.
        accept_implausible: take rates and lengths that look like swapped units.
        options: of the format, see its reader.

    Raises:
        InputError: naming the file, the line and the column, and how to mend it.
    """
    guessed = format is None
    name = guess_format(path) if guessed else format
    assert name is not None
    reader = find_reader(name)
    check_folder(Path(path), name)
    window = {"start": _span(start, "start", 0.0), "duration": _span(duration, "duration", None)}
    offered: dict[str, Any] = {"seed": seed}
    reads_window = {"start", "duration"} <= set(options_of(reader))
    if reads_window:
        offered |= window
    traffic = call_reader(reader, Path(path), options, offered)
    if not isinstance(traffic, Traffic):
        raise InputError(f"reader {name!r} gave {type(traffic).__name__}, expected Traffic")
    try:
        traffic.validate()
    except InputError as error:
        raise error.at(Place(str(path))) from None
    check_plausible(traffic, str(path), refuse=not accept_implausible, format=name)
    read = f"{name} trace{' (format told from its content)' if guessed else ''}: {_sizes(traffic)}"
    traffic = replace(traffic, notes=[read, *traffic.notes])
    if not reads_window and (start is not None or duration is not None):
        traffic = transform.window(traffic, window["start"], window["duration"])
    traffic = transform.scale_rate(traffic, rate_scale)
    if sample is not None:
        traffic = transform.sample(traffic, sample, seed)
    if limit is not None:
        traffic = transform.limit(traffic, limit)
    return traffic if arrivals is None else transform.with_arrivals(traffic, arrivals, seed)


def _span(value: float | str | None, key: str, default: Any) -> Any:
    return default if value is None else seconds(value, place=Place(key=key))


def _sizes(traffic: Traffic) -> str:
    """Duration, rate and lengths in one line: what shows swapped units at a glance."""
    size, duration = len(traffic), traffic.duration
    arrivals = int((traffic.parent < 0).sum())
    rate = f", {(arrivals - 1) / duration:.3g} a second" if duration > 0 else ""
    means = f"{traffic.input_tokens.mean():,.1f} in and {traffic.output_tokens.mean():,.1f} out"
    return f"{size:,} requests over {duration:,.1f} s{rate}; on average {means}"
