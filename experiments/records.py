"""From an engine's records to `RunData`: columns a request, token times as the client saw them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from experiments.delivery import Delivery
from experiments.driver import LoadDriver
from experiments.timeline import build_timeline
from reports.run_data import CANCELLED, FINISHED, REFUSED, UNFINISHED, Requests, Timeline, TokenTimes
from sim.engine.engine import Engine
from workloads.traffic import Traffic

Columns = TypeVar("Columns")
EARLIER_TURN = "an earlier turn of its session was refused"


@dataclass(slots=True)
class Ledger:
    """What the runner knows and the engine does not.

    Attributes:
        refused: row → why it was refused.
        delivery: from a step's end to the client.
        end: seconds, when the run stopped. complete: whether everything was served.
        lengths_known: whether answers have the lengths of the traffic; else each is as long as it came out.
    """

    refused: dict[int, str]
    delivery: Delivery
    end: float
    complete: bool
    lengths_known: bool = True


def collect(
    engine: Engine, driver: LoadDriver, traffic: Traffic, ledger: Ledger
) -> tuple[Requests, TokenTimes, Timeline]:
    """All columns of a run."""
    tokens, counts = tokens_of(engine)
    requests = requests_of(engine, driver, traffic, ledger, tokens)
    timeline = build_timeline(engine, requests, tokens, ledger.end)
    ledger.delivery.apply(tokens, requests.first_token, requests.finish, counts=counts)
    if not ledger.complete:
        requests = rows_only(requests, np.isfinite(requests.sent) & (requests.sent <= ledger.end))
    return requests, tokens, timeline


def tokens_of(engine: Engine) -> tuple[TokenTimes, np.ndarray | None]:
    """Token times at the engine, and tokens of every decode step where it gave sequences several.

    A stay after a swap has no token of its own at its start: its first step gives it one.
    """
    recorder = engine.recorder
    columns = recorder.segments.array()
    row, tick, ticks = (columns[name].astype(np.int64) for name in ("row", "tick", "ticks"))
    start, ends = columns["start"].copy(), np.array(recorder.step_ends, np.float64)
    if engine.config.speculation.active:
        return _one_by_one(row, start, tick, ticks, np.array(recorder.gains, np.int64), ends)
    back = np.isnan(start)
    if back.any():
        keep = ~(back & (ticks == 0))
        row, tick, ticks, start, back = row[keep], tick[keep], ticks[keep], start[keep], back[keep]
        start[back] = ends[tick[back]]
        tick[back] += 1
        ticks[back] -= 1
    if engine.held_back:
        return _delivered_at_once(engine, row, ticks), None
    return TokenTimes(row, start, tick, ticks, ends), None


def _one_by_one(
    row: np.ndarray, start: np.ndarray, tick: np.ndarray, ticks: np.ndarray, gains: np.ndarray, ends: np.ndarray
) -> tuple[TokenTimes, np.ndarray]:
    """Segments of one token each, for steps that give several: `gains[i]` at the i-th step of all segments together."""
    before = np.cumsum(ticks) - ticks
    step = np.repeat(tick - before, ticks) + np.arange(len(gains))
    began = ~np.isnan(start)
    rows = np.concatenate([row[began], np.repeat(np.repeat(row, ticks), gains)])
    starts = np.concatenate([start[began], np.repeat(ends[step], gains)])
    nothing = np.zeros(len(rows), np.int64)
    counts = np.bincount(step, gains, len(ends))
    return TokenTimes(rows, starts, nothing, nothing.copy(), ends), counts


def _delivered_at_once(engine: Engine, row: np.ndarray, ticks: np.ndarray) -> TokenTimes:
    """Every answer of a batch comes whole, when the batch ends: as many equal step ends as its longest answer needs."""
    delivered = engine.recorder.deliveries.array()
    time_of = dict(zip(delivered["row"].astype(np.int64).tolist(), delivered["time"].tolist(), strict=True))
    keep = np.fromiter((r in time_of for r in row.tolist()), bool, len(row))
    row, ticks = row[keep], ticks[keep]
    start = np.array([time_of[r] for r in row.tolist()])
    batches, batch = np.unique(start, return_inverse=True)
    longest = np.zeros(len(batches), np.int64)
    np.maximum.at(longest, batch, ticks)
    offset = np.concatenate([[0], np.cumsum(longest)[:-1]]) if len(batches) else longest
    return TokenTimes(row, start, offset[batch] if len(batches) else row, ticks, np.repeat(batches, longest))


def requests_of(engine: Engine, driver: LoadDriver, traffic: Traffic, ledger: Ledger, tokens: TokenTimes) -> Requests:
    """Columns of every row of the traffic, as one engine has it; first tokens and finishes are at the engine."""
    size = len(traffic)
    left = engine.recorder.departures.array()
    row = left["row"].astype(np.int64)
    admitted = np.full(size, np.nan)
    cached, recomputed, preemptions = (np.zeros(size, np.int64) for _ in range(3))
    np.fmin.at(admitted, row, left["admitted"])
    np.maximum.at(cached, row, left["cached"].astype(np.int64))
    np.add.at(recomputed, row, left["recomputed"].astype(np.int64))
    np.add.at(preemptions, row, left["preemptions"].astype(np.int64))

    output = np.bincount(tokens.request, 1 + tokens.steps, size).astype(np.int64)
    first, last = np.full(size, np.nan), np.full(size, np.nan)
    np.fmin.at(first, tokens.request, tokens.start)
    ends = tokens.start.copy()
    longer = tokens.steps > 0
    ends[longer] = tokens.step_ends[tokens.first_step[longer] + tokens.steps[longer] - 1]
    np.fmax.at(last, tokens.request, ends)

    status, reason = np.full(size, UNFINISHED, object), np.full(size, "", object)
    done = np.zeros(size, bool)
    done[row[left["finished"] == 1]] = True
    for other in row[left["finished"] == 0].tolist():
        done[other] = False
        status[other] = CANCELLED
    done &= ~np.isin(np.arange(size), engine.unfinished_rows())
    status[done] = FINISHED
    for refused, why in ledger.refused.items():
        status[refused], reason[refused] = REFUSED, why
    if ledger.complete:
        orphans = (status == UNFINISHED) & np.isnan(driver.sent)
        status[orphans], reason[orphans] = REFUSED, EARLIER_TURN
    session, turn = sessions(traffic)
    target = np.minimum(traffic.output_tokens, traffic.max_tokens) * traffic.n
    if not ledger.lengths_known:
        target = np.where(done, output, target)
    return Requests(
        request=np.arange(size), session=session, turn=turn, priority=traffic.priority,
        scheduled=driver.due.copy(), sent=driver.sent.copy(), queued=driver.queued, admitted=admitted,
        first_token=first, finish=np.where(done, last, np.nan), input_tokens=traffic.input_tokens,
        max_tokens=traffic.max_tokens, output_tokens=output, target_tokens=target, cached_tokens=cached,
        recomputed_tokens=recomputed, preemptions=preemptions, status=status, reason=reason,
    )  # fmt: skip


def sessions(traffic: Traffic) -> tuple[np.ndarray, np.ndarray]:
    """The first turn's row, and the turn number, of every row."""
    session, turn = np.arange(len(traffic)), np.zeros(len(traffic), np.int64)
    for row in np.flatnonzero(traffic.parent >= 0).tolist():
        parent = traffic.parent[row]
        session[row], turn[row] = session[parent], turn[parent] + 1
    return session, turn


def rows_only(columns: Columns, keep: np.ndarray) -> Columns:
    """The rows to be kept of a table of columns, such as `Requests`."""
    kept = ((name, getattr(columns, name)) for name in columns.__slots__)
    return type(columns)(**{name: values if values is None else values[keep] for name, values in kept})
