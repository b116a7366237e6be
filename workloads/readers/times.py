"""Time stamps of traces: units, epochs, order, and whether they can be true.

Simulators have swapped seconds and milliseconds without anyone noticing. So a format's unit is stated, an
epoch is shifted to zero with a note, and times that cannot be meant (one request in seventeen minutes, twenty
thousand a second) are refused until the user says otherwise.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workloads.errors import InputError, Place, unknown_name
from workloads.traffic import Traffic
from workloads.transform import take

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
EPOCH = 9e8  # seconds; a first time stamp this large counts from 1970, not from the start of the trace
FAR = 9e10  # seconds; no epoch in this unit: the year would be past 4800
SLOWEST, FASTEST = 1e-3, 20_000.0
SLOW, FAST = 1e-2, 1_000.0
OWN, ASSUMED = "twinserve", ("twinserve", "csv")
SPARSE = 0.1  # a second: where numbers are whole besides, they may well be milliseconds


def to_seconds(stamps: np.ndarray, unit: str, time_unit: str, notes: list[str]) -> np.ndarray:
    """Time stamps in seconds from the start.

    Args:
        stamps: numbers in file order, at least one.
        unit: the format's own unit.
        time_unit: what the user says: a name of `UNITS`, or `auto` for the format's own.
        notes: gets a line for all that was done.

    A first stamp that counts from 1970 is shifted to 0. Where it cannot be of the format's unit (the year
    would be past 4800) and the user did not say, the unit is the next that fits.
    """
    if time_unit != "auto" and time_unit not in UNITS:
        raise unknown_name("time_unit", time_unit, ["auto", *UNITS], place=Place(key="time_unit"))
    first = float(stamps.min())
    names = list(UNITS)
    chosen = unit if time_unit == "auto" else time_unit
    while time_unit == "auto" and first * UNITS[chosen] >= FAR and chosen != names[-1]:
        chosen = names[names.index(chosen) + 1]
    if chosen != unit:
        why = "as asked" if time_unit != "auto" else f"they count from 1970: {first:.0f}"
        notes.append(f"time stamps read in {chosen} instead of the format's {unit} ({why})")
    if first * UNITS[chosen] >= EPOCH:
        stamps = stamps - first  # before scaling, where whole numbers are still exact
        notes.append(f"time stamps shifted so that the first, {first:.0f} {chosen} since 1970, is 0")
    return stamps / round(1 / UNITS[chosen])


def in_order(traffic: Traffic) -> Traffic:
    """`traffic` sorted stably by arrival, later turns staying behind their session's first; notes it."""
    roots = traffic.parent < 0
    if not np.any(np.diff(traffic.arrival[roots]) < 0):
        return traffic
    start = traffic.arrival.copy()
    for row in np.flatnonzero(~roots):
        start[row] = start[traffic.parent[row]]
    order = np.argsort(start, kind="stable")
    moved = int(np.count_nonzero(np.diff(traffic.arrival[roots]) < 0))
    note = f"sorted by arrival: {moved:,} rows came before the row in front of them"
    return replace(take(traffic, order), notes=[*traffic.notes, note])


ALARMS = ("no arrival times", "unusual rate", "unusual lengths", "time stamps look like", "a length of")
"""How the notes begin that say that a trace may not mean what it says."""


def alarming(notes: list[str], *, timed: bool = True) -> list[str]:
    """Those of a traffic's notes that nobody should miss; that there are no times is none where they are not heeded."""
    return [note for note in notes if note.startswith(ALARMS if timed else ALARMS[1:])]


def _like_milliseconds(traffic: Traffic, rate: float) -> bool:
    """Whether times are whole seconds and far apart, though not evenly: no logger of seconds is so exact about so little."""
    stamps = traffic.arrival[traffic.parent < 0]
    gaps = np.diff(stamps)
    return rate < SPARSE and bool(np.all(stamps == np.round(stamps))) and bool(np.any(gaps != gaps[0]))


def check_plausible(traffic: Traffic, file: str, *, refuse: bool, format: str = "") -> None:
    """Look for swapped units in rate and lengths; append notes, or refuse what cannot be meant.

    Args:
        format: of the file. One of ours may be of traffic made up at any rate: a high one is only noted. Where users write files
            themselves, seconds are an assumption.

    Raises:
        InputError: when `refuse` and the mean rate or the lengths are impossible for a serving trace.
    """
    duration, size = traffic.duration, int((traffic.parent < 0).sum())
    fault = hint = ""
    if size >= 20 and duration > 0:
        rate = (size - 1) / duration
        told = f"{size:,} arrivals over {duration:,.6g} s, {rate:.3g} a second"
        if rate < SLOWEST:
            fault, hint = f"time stamps look like milliseconds read as seconds: {told}", "set time_unit: ms"
        elif rate > FASTEST and format != OWN:
            fault, hint = f"time stamps look like seconds read as smaller units: {told}", "set time_unit: s"
        elif not SLOW <= rate <= FAST:
            traffic.notes.append(f"unusual rate: {told}; check the unit of the time stamps")
        elif format in ASSUMED and _like_milliseconds(traffic, rate):
            traffic.notes.append(
                f"time stamps look like milliseconds: whole numbers, and {told}; set time_unit: ms if they are"
            )
    longest = int(max(traffic.input_tokens.max(), traffic.output_tokens.max()))
    if longest > 100_000_000:
        fault, hint = f"a length of {longest:,} tokens", "lengths must be in tokens, not bytes"
    elif traffic.input_tokens.mean() > 300_000:
        mean = traffic.input_tokens.mean()
        traffic.notes.append(f"unusual lengths: mean input {mean:,.0f} tokens; are they characters?")
    if fault and refuse:
        raise InputError(fault, place=Place(file), hint=f"{hint}, or accept_implausible: true if they are right")
    if fault:
        traffic.notes.append(f"{fault} ({hint})")
