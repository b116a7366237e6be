"""A run as columns: what `requests.parquet`, `tokens.parquet`, `steps.parquet` and `timeline.parquet` hold.

The runner fills one from the engine's records; reading a run folder gives the same object back. Times are seconds from
the start of the run, NaN where a thing never happened. Nothing here depends on how the run was made (simulator, real
engine, remote server).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FINISHED, REFUSED, CANCELLED, FAILED, UNFINISHED = "finished", "refused", "cancelled", "failed", "unfinished"
STATUSES = (FINISHED, REFUSED, CANCELLED, FAILED, UNFINISHED)


@dataclass(slots=True)
class Requests:
    """One entry a request.

    Attributes:
        request: int64, row of the traffic.
        session, turn: int64, session id (its first turn's row) and turn number from 0.
        priority: int32.
        scheduled: float64, when it should have been sent (equals `sent` in simulation).
        sent: float64, handed to the front end: latencies count from here.
        queued: float64, reached the engine's queue (sent + front-end time).
        admitted: float64, first given KV memory.
        first_token: float64, first token at the client.
        finish: float64, last token at the client.
        input_tokens, max_tokens: int64, prompt length and declared limit.
        output_tokens: int64, tokens the client received, all samples together.
        target_tokens: int64, tokens the answer truly has (what a complete run would deliver).
        cached_tokens: int64, prompt tokens served from the prefix cache at first admission.
        recomputed_tokens: int64, tokens prefilled again after preemptions.
        preemptions: int64.
        status: object array of STATUSES.
        reason: object array, why it was refused, failed or cancelled; "" otherwise.
        replica: int64, which of several replicas had it, from 0, -1 for none; None where there is one engine. With prefill apart
            from decode, which prefill engine; and then, None elsewhere:
        decode_replica: int64, which decode engine, -1 for none.
        prefilled: float64, when its prompt was computed, at the engine.   handed: when it was in the queue of the decode engine.
        reserved: when memory was set aside there.   moving: when its KV was ready to go.   received: when all of it was there.
        moved_tokens: int64, tokens whose KV was sent.
    """

    request: np.ndarray
    session: np.ndarray
    turn: np.ndarray
    priority: np.ndarray
    scheduled: np.ndarray
    sent: np.ndarray
    queued: np.ndarray
    admitted: np.ndarray
    first_token: np.ndarray
    finish: np.ndarray
    input_tokens: np.ndarray
    max_tokens: np.ndarray
    output_tokens: np.ndarray
    target_tokens: np.ndarray
    cached_tokens: np.ndarray
    recomputed_tokens: np.ndarray
    preemptions: np.ndarray
    status: np.ndarray
    reason: np.ndarray
    replica: np.ndarray | None = None
    decode_replica: np.ndarray | None = None
    moved_tokens: np.ndarray | None = None
    prefilled: np.ndarray | None = None
    handed: np.ndarray | None = None
    reserved: np.ndarray | None = None
    moving: np.ndarray | None = None
    received: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.request)

    def __repr__(self) -> str:
        return f"<Requests: {len(self):,}, {int((self.status == FINISHED).sum()):,} finished>"


@dataclass(slots=True)
class TokenTimes:
    """When every token came, without a list per token.

    A request's tokens come in segments (more than one only after preemption, or per sample). Segment `j` belongs to
    request `request[j]`: one token at `start[j]`, then one at the end of each of the decode steps
    `first_step[j] … first_step[j] + steps[j] - 1`, whose times are entries of `step_ends`.

    Attributes:
        request: int64, row of the traffic.   start: float64 seconds.
        first_step: int64.   steps: int64 (0: the segment is the single token at `start`).
        step_ends: float64, end of every decode step, non-decreasing; with several replicas those of one after those of another.
    """

    request: np.ndarray
    start: np.ndarray
    first_step: np.ndarray
    steps: np.ndarray
    step_ends: np.ndarray

    def __repr__(self) -> str:
        return f"<TokenTimes: {len(self.request):,} segments over {len(self.step_ends):,} steps>"


@dataclass(slots=True)
class Timeline:
    """The run over time in buckets of equal width; counts are sums, states are time-weighted means over the bucket.

    Attributes:
        time: float64, start of each bucket (seconds); the last may be cut short. width: float, seconds.
        running, waiting, swapped: float64, mean numbers of sequences.
        kv_used, kv_cached, kv_reserved, kv_internal, kv_external, kv_free: float64, mean tokens of KV: live; free but
            holding a cached prefix; set aside for tokens that will come; never to be used inside a block or slab; free
            but unusable in holes; truly free. They add up to the pool. NaN where nobody saw it: of a server from outside.
        steps: int64, engine steps. prefill_tokens, decode_tokens: int64, tokens computed.
        output_tokens: int64, tokens handed out. arrivals, finished, refused, preemptions: int64.
        cached_tokens: int64, prompt tokens served from cache.
        busy: float64, share of the bucket in which the engine ran.
        device_seconds, host_seconds: float64, of the bucket's steps, which device and host spent on them; they may overlap. NaN,
            and so when left out, where steps were only priced or run elsewhere.
    """

    width: float
    time: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    swapped: np.ndarray
    kv_used: np.ndarray
    kv_cached: np.ndarray
    kv_reserved: np.ndarray
    kv_internal: np.ndarray
    kv_external: np.ndarray
    kv_free: np.ndarray
    steps: np.ndarray
    prefill_tokens: np.ndarray
    decode_tokens: np.ndarray
    output_tokens: np.ndarray
    arrivals: np.ndarray
    finished: np.ndarray
    refused: np.ndarray
    preemptions: np.ndarray
    cached_tokens: np.ndarray
    busy: np.ndarray
    device_seconds: np.ndarray | None = None
    host_seconds: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("device_seconds", "host_seconds"):
            if getattr(self, name) is None:
                setattr(self, name, np.full(len(self.time), np.nan))

    def __repr__(self) -> str:
        return f"<Timeline: {len(self.time):,} buckets of {self.width:.4g} s>"


@dataclass(slots=True)
class Client:
    """What a client of a remote server saw besides, one entry a request.

    Attributes:
        request: int64, row of the traffic.
        counted_input, counted_output: int64, tokens as the server counts them, -1 where it does not. Where a prompt was made
            up, `Requests.input_tokens` is what it was to have.
        chunks: int64, chunks with text.   first_chunk: int64, tokens in the first of them.   http_status: int64, 0 for none.
        begun: float64, when the client took it up; until `Requests.sent` it waited for a connection.
        any_chunk: float64, the first chunk of any kind, where some tools end TTFT.   stream_end: float64, after the last.
        kind: object array, in which way it failed (`backends.http.answer.KINDS`); "" otherwise.
    """

    request: np.ndarray
    counted_input: np.ndarray
    counted_output: np.ndarray
    chunks: np.ndarray
    first_chunk: np.ndarray
    http_status: np.ndarray
    begun: np.ndarray
    any_chunk: np.ndarray
    stream_end: np.ndarray
    kind: np.ndarray


@dataclass(slots=True)
class RunData:
    """Everything measured in a run.

    Attributes:
        info: JSON-ready facts about the run that metrics need and columns cannot hold, always with:
            `name`, `seed`, `backend`, `load` ({"mode": "open"|"closed", "concurrency"?: int, …}), `slo`
            ({"ttft_ms"?, "tpot_ms"?, "e2e_ms"?}), `kv_pool_tokens`, `kv_block_tokens`, `kv_bytes_per_token`,
            `max_num_seqs`, `gpus` (count), `complete` (False after Ctrl-C), `end` (seconds of simulated or wall time at
            which the run stopped). `replicas`, where there are several: then `kv_pool_tokens`, `max_num_seqs` and `gpus` are
            those of all together. What another tool measured may have `sent_seen` and `tokens_seen`, False where times of
            sending or of tokens are not known, and then `reported`: the rates that it tells itself.
        config: the resolved configuration, nested dicts of plain values, and where each value came from
            ({"value": …, "source": "user"|"preset"|"derived"|"default"} leaves).
        provenance: sources of cost figures, list of {"what", "value", "source"}.
        warnings: sentences for the user. notes: things done to the traffic.
        host: not reproducible: `machine`, `wall_seconds` (of the run itself, from which reports tell the simulator's
            speed), `date`, whatever else is worth keeping. A remote run has `client` and `server`.
        client: what the client of a remote server saw besides; None elsewhere.
    """

    requests: Requests
    tokens: TokenTimes
    timeline: Timeline
    info: dict
    config: dict
    provenance: list[dict]
    warnings: list[str]
    notes: list[str]
    host: dict
    client: Client | None = None

    def __repr__(self) -> str:
        """One line, for notebooks; `reports.metrics.summarize` has the figures."""
        name, backend, end = (self.info.get(key) for key in ("name", "backend", "end"))
        return f"<RunData {name!r} on {backend}: {self.requests!r}, {self.timeline!r}, {end or 0:.4g} s>"
