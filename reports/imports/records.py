"""Requests as other tools record them, made into a run: the columns that every metric and figure of ours is made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from reports.run_data import FAILED, FINISHED, Requests, RunData, Timeline, TokenTimes
from workloads.errors import InputError

BUCKETS = 300
MOST_OUTPUTS = 200_000_000
"""Of a file: every one becomes a row, and more rows than this fit into no memory."""
_ROUNDING = 1e-5
"""Seconds by which two times taken from clocks of many digits may be apart."""
_COUNTS = (
    "steps", "prefill_tokens", "decode_tokens", "output_tokens", "arrivals", "finished", "refused", "preemptions",
    "cached_tokens",
)  # fmt: skip
_STATES = ("waiting", "swapped", "kv_used", "kv_cached", "kv_reserved", "kv_internal", "kv_external", "kv_free", "busy")


@dataclass(slots=True)
class Records:
    """What a tool kept of every request; arrays of one length.

    Attributes:
        ttft, latency: float64 seconds, NaN where unknown.   inputs, outputs: int64 tokens.
        ok: bool.   errors: a text each, "" for those that are ok.
        sent: float64 seconds on any clock; None where the file does not say.
        gaps: seconds between chunks of each request; None where the file does not say.
        cached: int64 prompt tokens served from cache, 0 where unknown.
    """

    ttft: np.ndarray
    latency: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    ok: np.ndarray
    errors: Sequence[str] = field(default_factory=list)
    sent: np.ndarray | None = None
    gaps: Sequence[Sequence[float]] | None = None
    cached: np.ndarray | None = None

    def check(self, fault: Callable[[int, str, str], InputError], ttft: str, latency: str) -> Records:
        """These records, if they can be true.

        Args:
            fault: an error from a request's number, the name of a field of it, and what is wrong.
            ttft, latency: what the file calls these.

        Raises:
            InputError: a request ended before its first token, or there are more tokens than can be held.
        """
        early = self.ok & (self.latency < self.ttft - _ROUNDING * np.maximum(1.0, np.nan_to_num(self.ttft)))
        for i in np.flatnonzero(early).tolist():
            raise fault(
                i, latency, f"is {self.latency[i]:g} s, less than the {self.ttft[i]:g} s to its first token ({ttft})"
            )
        over = np.flatnonzero(np.cumsum(self.outputs) > MOST_OUTPUTS)
        if len(over):
            raise fault(int(over[0]), "", f"output tokens up to here are more than {MOST_OUTPUTS:,}")
        return self


def run_of(records: Records, info: dict, notes: Sequence[str] = ()) -> RunData:
    """A run with everything that the records tell.

    A request that was answered with nothing failed ("empty"). Where a chunk brought several tokens they are spread evenly
    over the chunks. Where gaps are not known tokens are put at even distances, and `info["tokens_seen"]` is False: gaps
    between tokens must not be reported then.
    """
    size = len(records.ok)
    known = records.sent is not None
    sent = np.nan_to_num(records.sent - np.nanmin(records.sent)) if known and size else np.zeros(size)
    errors = np.array([str(e or "") for e in records.errors] or [""] * size, object)
    ok = records.ok & np.isfinite(records.ttft) & np.isfinite(records.latency) & (records.outputs > 0)
    errors[records.ok & ~ok] = "empty"
    errors[~ok & (errors == "")] = "failed"
    errors[ok] = ""
    first = np.where(ok, sent + records.ttft, np.nan)
    finish = np.where(ok, np.maximum(sent + records.latency, first), np.nan)
    tokens = _tokens(records, ok, first, finish)
    unknown = np.full(size, np.nan)
    zeros = np.zeros(size, np.int64)
    requests = Requests(
        request=np.arange(size), session=np.arange(size), turn=zeros.copy(), priority=zeros.astype(np.int32),
        scheduled=sent.copy(), sent=sent, queued=unknown.copy(), admitted=unknown, first_token=first, finish=finish,
        input_tokens=records.inputs.astype(np.int64), max_tokens=records.outputs.astype(np.int64),
        output_tokens=np.where(ok, records.outputs, 0).astype(np.int64), target_tokens=records.outputs.astype(np.int64),
        cached_tokens=zeros.copy() if records.cached is None else records.cached.astype(np.int64),
        recomputed_tokens=zeros.copy(), preemptions=zeros.copy(), status=np.where(ok, FINISHED, FAILED).astype(object),
        reason=errors,
    )  # fmt: skip
    end = float(np.nanmax(finish)) if ok.any() else float(sent.max(initial=0.0))
    facts = {
        "seed": 0, "slo": {}, "kv_pool_tokens": None, "kv_block_tokens": None, "kv_bytes_per_token": None,
        "max_num_seqs": None, "gpus": None, "complete": True, "end": end, "tokens_seen": records.gaps is not None,
    } | info  # fmt: skip
    timeline = _timeline(requests, tokens, end) if known else _nothing()
    return RunData(requests, tokens, timeline, facts, {}, [], [], list(notes), {})


def _tokens(records: Records, ok: np.ndarray, first: np.ndarray, finish: np.ndarray) -> TokenTimes:
    """Every token as a segment of its own, in order of requests."""
    rows, starts = [], []
    for row in np.flatnonzero(ok).tolist():
        count = int(records.outputs[row])
        if records.gaps is None:
            times = np.linspace(first[row], finish[row], count)
        else:
            chunks = first[row] + np.concatenate([[0.0], np.cumsum(np.maximum(records.gaps[row], 0.0))])
            # chunk k of n holds the tokens from k * count // n on; with fewer tokens than chunks some hold none
            times = np.repeat(chunks, np.diff(np.arange(len(chunks) + 1) * count // len(chunks)))
        rows.append(np.full(len(times), row, np.int64))
        starts.append(times)
    request = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    start = np.concatenate(starts) if starts else np.zeros(0)
    none = np.zeros(len(request), np.int64)
    return TokenTimes(request, start, none, none.copy(), np.zeros(0))


def _timeline(r: Requests, tokens: TokenTimes, end: float) -> Timeline:
    """What a client sees over time: requests sent, in flight and finished, and tokens. Nobody saw the engine inside."""
    width = max(end, 1e-6) / BUCKETS
    edges = np.arange(BUCKETS + 1) * width

    def counted(times: np.ndarray) -> np.ndarray:
        inside = np.clip((times[np.isfinite(times)] / width).astype(np.int64), 0, BUCKETS - 1)
        return np.bincount(inside, minlength=BUCKETS).astype(np.int64)

    until = np.where(np.isfinite(r.finish), r.finish, r.sent)
    times = np.sort(np.concatenate([r.sent, until]))
    # request-seconds up to each edge: every request counts from its sending to its end
    spent = np.array([np.clip(np.minimum(until, edge) - r.sent, 0.0, None).sum() for edge in edges])
    counts = {name: np.zeros(BUCKETS, np.int64) for name in _COUNTS}
    counts |= {"arrivals": counted(r.sent), "finished": counted(r.finish), "output_tokens": counted(tokens.start)}
    states = {name: np.zeros(BUCKETS) for name in _STATES}
    running = np.diff(spent) / width if len(times) else np.zeros(BUCKETS)
    return Timeline(width=width, time=edges[:-1], running=running, **states, **counts)


def _nothing() -> Timeline:
    counts = {name: np.zeros(0, np.int64) for name in _COUNTS}
    return Timeline(width=1.0, time=np.zeros(0), running=np.zeros(0), **{n: np.zeros(0) for n in _STATES}, **counts)
