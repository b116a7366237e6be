"""From what a server's answers were to `RunData`: columns a request, a time for every token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from backends.http.answer import Answer
from backends.http.metrics import KV_USE, RUNNING, WAITING, Watch
from backends.http.tokens import USAGE, source_of, tokens_of_chunks, total_of
from experiments.driver import LoadDriver
from experiments.records import rows_only, sessions
from experiments.timeline import client_timeline, mean_between
from reports.run_data import CANCELLED, FAILED, FINISHED, REFUSED, UNFINISHED, Client, Requests, Timeline, TokenTimes
from workloads.traffic import Traffic

EARLIER_TURN = "an earlier turn of its session failed"


@dataclass(slots=True)
class Found:
    """What a run on a server gave.

    Attributes:
        chunk_gaps: seconds between successive chunks of finished requests.
        wanted: int64, tokens that the prompt of each request was to have, by row of `requests`.
        last: seconds, when the last token came.   mixed: whether some answers were counted by the server and others were not.
    """

    requests: Requests
    tokens: TokenTimes
    timeline: Timeline
    client: Client
    wanted: np.ndarray
    last: float
    mixed: bool
    chunk_gaps: np.ndarray


def collect_remote(
    driver: LoadDriver, traffic: Traffic, answers: Mapping[int, Answer], end: float, complete: bool, stopped_early: bool
) -> Found:
    """All columns of a run.

    Args:
        end: seconds, when it stopped.   complete: whether everything was served.
        stopped_early: whether requests were left unsent on purpose; those are not told of.
    """
    size = len(traffic)
    first, finish, until, sent = (np.full(size, np.nan) for _ in range(4))
    output = np.zeros(size, np.int64)
    status, reason = np.full(size, UNFINISHED, object), np.full(size, "", object)
    client, cached = _nothing_seen(size), np.zeros(size, np.int64)
    for row, answer in answers.items():
        sent[row] = answer.sent if np.isfinite(answer.sent) else answer.begun
        if len(answer.times):
            first[row], output[row] = answer.times[0], total_of(answer) if answer.good else len(answer.times)
        if answer.good:
            status[row], finish[row] = FINISHED, answer.times[-1]
        elif answer.kind:
            status[row], reason[row] = FAILED, answer.reason
        until[row], cached[row] = answer.end, max(answer.cached_tokens, 0)
        _note(client, row, answer)
    orphans = np.isnan(sent)
    if complete and not stopped_early:
        status[orphans], reason[orphans] = REFUSED, EARLIER_TURN
    tokens = _tokens(answers, client)
    requests = _requests(traffic, driver.due.copy(), sent, first, finish, output, status, reason, client)
    requests.cached_tokens = cached
    timeline = client_timeline(requests, tokens, until, end)
    wanted = traffic.input_tokens
    if not complete or stopped_early:
        keep = ~orphans
        requests, client, wanted = rows_only(requests, keep), rows_only(client, keep), wanted[keep]
    last = max((float(answer.times[-1]) for answer in answers.values() if len(answer.times)), default=0.0)
    sources = {source_of(answer) for answer in answers.values() if answer.good}
    gaps = np.concatenate([np.diff(answer.times) for answer in answers.values() if answer.good] or [np.zeros(0)])
    return Found(requests, tokens, timeline, client, wanted, last, len(sources) > 1, gaps)


def see_inside(found: Found, watch: Watch, end: float) -> None:
    """Put what a server told of itself into the timeline: who ran and waited, and how full its KV pool was."""
    t = found.timeline
    edges = np.append(t.time, max(end, t.time[-1] + 1e-9))
    times = np.array(watch.times)
    pool = watch.pool_tokens or 0
    for name, column, scale in ((RUNNING, "running", 1.0), (WAITING, "waiting", 1.0), (KV_USE, "kv_used", float(pool))):
        values = np.array(watch.seen.get(name, []) if scale else []) * scale
        if len(values) and np.isfinite(values).all():
            setattr(t, column, np.maximum(mean_between(times, values, edges), 0.0))
    if pool:
        t.kv_free = np.maximum(pool - t.kv_used, 0.0)  # what holds a cached prefix is in it: nobody tells that


def _nothing_seen(size: int) -> Client:
    unknown = np.full(size, -1, np.int64)
    never = np.full(size, np.nan)
    return Client(
        np.arange(size), unknown, unknown.copy(), *(np.zeros(size, np.int64) for _ in range(3)), never, never.copy(),
        never.copy(), np.full(size, "", object),
    )  # fmt: skip


def _note(client: Client, row: int, answer: Answer) -> None:
    client.counted_input[row], client.counted_output[row] = answer.prompt_tokens, answer.output_tokens
    client.chunks[row], client.http_status[row] = len(answer.times), answer.status
    client.begun[row], client.any_chunk[row], client.stream_end[row] = answer.begun, answer.any_chunk, answer.end
    client.kind[row] = CANCELLED if answer.cancelled else answer.kind


def _requests(
    traffic: Traffic, scheduled: np.ndarray, sent: np.ndarray, first: np.ndarray, finish: np.ndarray, output: np.ndarray,
    status: np.ndarray, reason: np.ndarray, client: Client,
) -> Requests:  # fmt: skip
    """The prompt of a made-up request counts as it was to be, one of words as the server counts it. Nobody sees inside."""
    size = len(traffic)
    said = np.array([words is not None for words in traffic.texts], bool) if traffic.texts else np.zeros(size, bool)
    inputs = np.where(said & (client.counted_input > 0), client.counted_input, traffic.input_tokens)
    session, turn = sessions(traffic)
    return Requests(
        request=np.arange(size), session=session, turn=turn, priority=traffic.priority, scheduled=scheduled, sent=sent,
        queued=np.full(size, np.nan), admitted=np.full(size, np.nan), first_token=first, finish=finish, input_tokens=inputs,
        max_tokens=traffic.max_tokens, output_tokens=output,
        target_tokens=np.minimum(traffic.output_tokens, traffic.max_tokens) * traffic.n,
        cached_tokens=np.zeros(size, np.int64), recomputed_tokens=np.zeros(size, np.int64),
        preemptions=np.zeros(size, np.int64), status=status, reason=reason,
    )  # fmt: skip


def _tokens(answers: Mapping[int, Answer], client: Client) -> TokenTimes:
    """Every token a segment of its own, at the time of its chunk; how many the first chunks have goes to `client`."""
    rows, starts = [np.zeros(0, np.int64)], [np.zeros(0)]
    for row in sorted(answers):
        answer = answers[row]
        times = np.array(answer.times, np.float64)
        if not len(times):
            continue
        if answer.good and source_of(answer) == USAGE:
            counts = tokens_of_chunks(answer)
            times = np.repeat(times, counts)
            client.first_chunk[row] = counts[0]
        else:
            client.first_chunk[row] = 1
        rows.append(np.full(len(times), row, np.int64))
        starts.append(times)
    request, start = np.concatenate(rows), np.concatenate(starts)
    none = np.zeros(len(request), np.int64)
    return TokenTimes(request, start, none, none.copy(), np.zeros(0))
