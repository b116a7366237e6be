"""ServeGen's client statistics (alibaba/ServeGen, arXiv 2505.09999): not requests, but what makes them.

For each client there are a rate and a law of the gaps for every window of 600 s (`chunk-i-trace.csv`, no
header: start, requests a second, CV of the gaps, law, its two parameters), and tables of lengths for every 6
hours (`chunk-i-dataset.json`). A workload is the sum of independent clients.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from workloads.errors import InputError, Place, unknown_name
from workloads.readers.files import decoded, existing, read_text, stem
from workloads.streams import Streams
from workloads.synthetic.laws import choose
from workloads.traffic import Traffic

WINDOW = 600.0
MOST = 20_000_000
_MEMBER = re.compile(r"chunk-(\d+)-(trace\.csv|dataset\.json)$")


@dataclass(slots=True)
class Client:
    """One client: `windows` rows of (start, rate, law, shape), and tables by start second, still as text."""

    number: int
    file: str = ""
    windows: list[tuple[float, float, str, float]] = field(default_factory=list)
    tables: dict[float, dict[str, str]] = field(default_factory=dict)


def read_servegen(
    path: Path, *, start: float = 0.0, duration: float | None = None, missing: str = "borrow", seed: int = 0
) -> Traffic:
    """Requests drawn for `[start, start + duration)` from a folder or .tar.gz of client statistics.

    In each window a client sends rate × 600 requests. Their gaps follow the law that ServeGen fitted (its
    shape), stretched to fill the window, since a fitted scale does not give back the rate where a client was
    silent for a part of the window.

    Args:
        path: folder with `chunk-*` files, or an archive of them.
        start, duration: seconds from the start of the statistics; without a duration, to their end.
        missing: clients without tables of lengths: `borrow` those of the other clients (by their share of
            requests), or `skip` the client.
        seed: of the draws.

    Image, audio and video tokens are added to the input (an item's tokens for each item), and reasoning is
    part of the output.
    """
    if missing not in ("borrow", "skip"):
        raise unknown_name("missing", missing, ("borrow", "skip"), place=Place(key="missing"))
    clients = _load(existing(path))
    end = np.inf if duration is None else start + duration
    _check_size(path, clients, start, end)
    streams = Streams(seed)
    drawn = {c.number: _arrivals(c, start, end, streams) for c in clients if missing == "borrow" or c.tables}
    if not any(len(times) for times in drawn.values()):
        last = max(w[0] for c in clients for w in c.windows) + WINDOW
        raise InputError(
            f"no client sends anything from {start:g} s for {duration} s",
            place=Place(str(path)),
            hint=f"the statistics end at {last:,.0f} s",
        )
    inputs, outputs = _lengths(clients, drawn, streams)
    arrival = np.concatenate([drawn[c.number] for c in clients if c.number in drawn])
    order = np.argsort(arrival, kind="stable")
    notes = [
        f"drawn from the statistics of {len(drawn)} clients, seed {seed}, from {start:g} s"
        + ("" if duration is None else f" for {duration:g} s")
    ]
    bare = [c.number for c in clients if not c.tables]
    if bare:
        what = "their lengths are drawn as the other clients'" if missing == "borrow" else "left out"
        notes.append(f"clients without tables of lengths: {', '.join(map(str, bare))}; {what}")
    return Traffic(arrival[order] - start, inputs[order], outputs[order], name=stem(path), notes=notes)


def _check_size(path: Path, clients: list[Client], start: float, end: float) -> None:
    expected = sum(rate * WINDOW for c in clients for at, rate, _, _ in c.windows if at + WINDOW > start and at < end)
    if expected > MOST:
        raise InputError(
            f"{expected:,.0f} requests in this window, more than {MOST:,}",
            place=Place(str(path)),
            hint="ask for a part: start: 12h, duration: 10min",
        )


def holds_statistics(folder: Path) -> bool:
    """Whether a folder has files of client statistics, at any depth."""
    return any(_MEMBER.search(file.name) for file in folder.rglob("chunk-*"))


def _load(path: Path) -> list[Client]:
    clients: dict[int, Client] = {}
    for name, text in _members(path):
        match = _MEMBER.search(name)
        if match is None:
            continue
        client = clients.setdefault(int(match[1]), Client(int(match[1])))
        if match[2] == "trace.csv":
            client.file = name
            client.windows = _windows(name, text)
        else:
            client.tables = _tables(name, text)
    found = [clients[number] for number in sorted(clients) if clients[number].windows]
    if not found:
        raise InputError("no client statistics found", place=Place(str(path)), hint="expected chunk-*-trace.csv files")
    return found


def _members(path: Path):
    """Name and text of each file of a folder (at any depth) or archive."""
    if path.is_dir():
        for file in sorted(path.rglob("chunk-*")):
            yield str(file), read_text(file)
        return
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and _MEMBER.search(member.name):
                    content = archive.extractfile(member)
                    assert content is not None
                    yield f"{path}:{member.name}", decoded(content.read(), f"{path}:{member.name}")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(f"not a readable archive: {error}", place=Place(str(path))) from error


def _windows(name: str, text: str) -> list[tuple[float, float, str, float]]:
    rows = []
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row:
            continue
        if len(row) != 6:
            raise InputError(
                f"has {len(row)} fields",
                place=Place(name, number),
                hint="expected start, rate, CV, law, parameter, parameter",
            )
        try:
            at, rate, shape = float(row[0]), float(row[1]), float(row[4])
        except ValueError as error:
            raise InputError(str(error), place=Place(name, number)) from None
        law = row[3].strip().lower()
        if rate > 0:
            if not np.isfinite([at, rate]).all() or (law and not (np.isfinite(shape) and shape > 0)):
                raise InputError("rate and shape must be finite and positive", place=Place(name, number))
            if law not in ("gamma", "weibull", ""):
                raise InputError(f"unknown law {row[3]!r}", place=Place(name, number, 4), hint="Gamma or Weibull")
        rows.append((at, max(rate, 0.0), law, shape))
    return rows


def _tables(name: str, text: str) -> dict[float, dict[str, str]]:
    """Tables by start second, without the empty ones."""
    try:
        data = json.loads(text)
        tables = {float(at): table for at, table in data.items()}
    except (ValueError, AttributeError) as error:
        raise InputError(f"not a table of lengths: {error}", place=Place(name)) from error
    return {at: t for at, t in tables.items() if t.get("output_tokens", "{}").strip() != "{}"}


def _arrivals(client: Client, start: float, end: float, streams: Streams) -> np.ndarray:
    """Arrival times of one client in `[start, end)`."""
    parts = [np.zeros(0)]
    for index, (at, rate, law, shape) in enumerate(client.windows):
        count = round(rate * WINDOW)
        if count == 0 or at + WINDOW <= start or at >= end:
            continue
        rng = streams.get("servegen.arrivals", client.number, index)
        if law == "gamma":
            gaps = rng.gamma(shape, 1.0, count + 1)
        elif law == "weibull":
            gaps = rng.weibull(shape, count + 1)
        else:
            gaps = rng.exponential(1.0, count + 1)
        sums = np.cumsum(gaps)
        times = at + WINDOW * (sums[:-1] / sums[-1] if sums[-1] > 0 else rng.random(count))
        parts.append(times[(times >= start) & (times < end)])
    return np.concatenate(parts)


def _lengths(clients: list[Client], drawn: dict[int, np.ndarray], streams: Streams) -> tuple[np.ndarray, np.ndarray]:
    """Input and output lengths of all drawn requests, client after client."""
    donors = [c for c in clients if c.tables]
    if not donors:
        raise InputError("no client has tables of lengths", hint="chunk-*-dataset.json files are missing")
    weights = np.array([max(len(drawn[c.number]), 1e-9) for c in donors])
    inputs, outputs = [], []
    for client in clients:
        times = drawn.get(client.number)
        if times is None:
            continue
        rng = streams.get("servegen.lengths", client.number)
        if client.tables:
            source = np.zeros(len(times), np.int64)
            owners = [client]
        else:
            source, owners = choose(rng, weights, len(times)), donors
        got = np.ones((2, len(times)), np.int64)
        for number in np.unique(source):
            here = source == number
            got[:, here] = _draw(owners[number], times[here], rng)
        inputs.append(got[0])
        outputs.append(got[1])
    return np.concatenate(inputs), np.concatenate(outputs)


def _draw(client: Client, times: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Lengths of requests at `times`, from the client's nearest tables in time; shape (2, requests)."""
    starts = np.array(sorted(client.tables))
    which = np.abs(times[:, None] - (starts + 10_800.0)).argmin(axis=1)  # nearest middle of a 6-hour table
    result = np.ones((2, len(times)), np.int64)
    for number in np.unique(which):
        here = which == number
        table = client.tables[starts[number]]
        size = int(here.sum())
        text = "input_tokens" if "input_tokens" in table else "text_tokens"
        total = _values(client, table, text, size, rng)
        for kind in ("image", "audio", "video"):
            if f"{kind}_count" in table:
                items = _values(client, table, f"{kind}_count", size, rng)
                owner = np.repeat(np.arange(size), items)
                tokens = _values(client, table, f"{kind}_tokens", len(owner), rng)
                total = total + np.bincount(owner, tokens, size).astype(np.int64)
        result[0, here] = np.maximum(total, 1)
        result[1, here] = np.maximum(_values(client, table, "output_tokens", size, rng), 1)
    return result


def _values(client: Client, table: dict[str, str], name: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """`size` draws from the table `name`, which is written as a Python dict of value to probability."""
    if size == 0:
        return np.zeros(0, np.int64)
    try:
        law = ast.literal_eval(table[name])
        values = np.array(list(law), np.int64)
        weights = np.array(list(law.values()), np.float64)
        if not len(values) or weights.min() < 0 or not weights.sum() > 0:
            raise ValueError("no probabilities")
    except (KeyError, ValueError, SyntaxError, TypeError, AttributeError) as error:
        raise InputError(f"bad table {name}: {error}", place=Place(client.file)) from error
    return values[choose(rng, weights, size)]
