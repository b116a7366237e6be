"""What a run on a server says of itself: whether prompts were as long as they should be, whether the client kept up."""

from __future__ import annotations

import time
from array import array
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.metrics import LAG_LIMIT_S, LAG_LIMIT_SHARE
from reports.run_data import FINISHED

if TYPE_CHECKING:
    from experiments.remote import RemoteBackend
    from experiments.remote_records import Found

MISMATCH = 0.02
"""Share by which the server may count more or fewer prompt tokens than were asked for."""
LATE, BUSY = 0.005, 0.8
"""Seconds that the 99th percentile of sending may be behind, and the share of a core that the client may use."""
_FEWEST = 20
_SHORT = 0.01  # share of the tokens asked for that may be missing, or too many
_FEW = 0.5  # of chunks with text: so few tokens cannot be in them, though a stop word may hold some text back


class Overhead:
    """What the client itself took: processor time, and how late it came to things.

    Attributes:
        wall, cpu: seconds of the run, and of the processor in it.
    """

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self._late = array("d")

    def late(self, seconds: float) -> None:
        """Something that was due came so much later."""
        self._late.append(max(seconds, 0.0))

    def p99(self) -> float | None:
        """Seconds, of those that were noted; None of too few."""
        return float(np.percentile(np.array(self._late), 99)) if len(self._late) >= _FEWEST else None

    def __enter__(self) -> Overhead:
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        wall, cpu = self._began
        self.wall, self.cpu = time.perf_counter() - wall, time.process_time() - cpu


def client_facts(remote: RemoteBackend, found: Found, overhead: Overhead) -> dict[str, Any]:
    """Figures of the client, for the record: seconds, tokens and shares; None where unknown."""
    r, client = found.requests, found.client
    done = r.status == FINISHED
    counted = done & (client.counted_input > 0)
    lag = (r.sent - r.scheduled)[np.isfinite(r.sent) & np.isfinite(r.scheduled)]
    connect = (r.sent - client.begun)[np.isfinite(r.sent) & np.isfinite(client.begun)]
    return {
        "endpoint": remote.form.path,
        "lengths": remote.form.force or None,
        "prompts_counted_by": remote.counted_by,
        "prompt_tokens_wanted": int(found.wanted[counted].sum()) if counted.any() else None,
        "prompt_tokens_counted": int(client.counted_input[counted].sum()) if counted.any() else None,
        "output_tokens_wanted": int(r.target_tokens[done].sum()),
        "output_tokens_counted_by": "server" if (client.counted_output[done] >= 0).all() and done.any() else "chunks",
        "chunks": int(client.chunks.sum()),
        "cached_tokens": int(r.cached_tokens.sum()) or None,
        **_as_others_count(found, done),
        "send_lag_p50": _percentile(lag, 50),
        "send_lag_p99": _percentile(lag, 99),
        "send_lag_max": float(lag.max()) if len(lag) else None,
        "connect_p99": _percentile(connect, 99),
        "cpu_share": overhead.cpu / overhead.wall if overhead.wall else None,
        "loop_lag_p99": overhead.p99(),
        "failed_by_kind": {
            str(kind): int((client.kind == kind).sum()) for kind in sorted({str(k) for k in client.kind}) if kind
        },
    }


def _as_others_count(found: Found, done: np.ndarray) -> dict[str, float | None]:
    """Means in seconds that other clients tell under the names of ours, or that are truer where chunks hold several tokens."""
    r, client = found.requests, found.client
    more = done & (r.output_tokens > client.first_chunk)
    after_first = (r.finish - r.first_token)[more] / (r.output_tokens - client.first_chunk)[more]
    return {
        "tokens_a_chunk": float(r.output_tokens[done].sum() / client.chunks[done].sum()) if done.any() else None,
        "tpot_after_first_chunk_mean": _mean(after_first),
        "chunk_gap_mean": _mean(found.chunk_gaps),
        "ttft_any_chunk_mean": _mean((client.any_chunk - r.sent)[done]),
        "e2e_to_stream_end_mean": _mean((client.stream_end - r.sent)[done]),
    }


def client_warnings(remote: RemoteBackend, found: Found, facts: dict[str, Any]) -> list[str]:
    """What a reader of the run must know."""
    warnings = []
    wanted, counted = facts["prompt_tokens_wanted"], facts["prompt_tokens_counted"]
    own_words = remote.counted_by == "words of the trace"
    if wanted and not own_words and abs(counted - wanted) > MISMATCH * wanted:
        warnings.append(
            f"token mismatch: the server counts {counted:,} prompt tokens where {wanted:,} were asked for "
            f"({counted / wanted - 1:+.1%})"
        )
    done = found.requests.status == FINISHED
    got = int(found.requests.output_tokens[done].sum())
    if remote.forced and facts["output_tokens_wanted"] and got < (1 - _SHORT) * facts["output_tokens_wanted"]:
        short = int((found.requests.output_tokens < found.requests.target_tokens)[done].sum())
        warnings.append(
            f"{short:,} of {int(done.sum()):,} answers are shorter than asked for: the server takes {remote.form.force} "
            "and does not do it"
        )
    warnings += _miscounted(remote, found, facts, done)
    if found.mixed:
        warnings.append("the server counted the tokens of some answers and not of others; of those a chunk is a token")
    return warnings + _slow(remote, found, facts)


def _miscounted(remote: RemoteBackend, found: Found, facts: dict[str, Any], done: np.ndarray) -> list[str]:
    """Whether answers are longer than anybody asked for, or have fewer tokens than came."""
    warnings = []
    r = found.requests
    got, wanted = int(r.output_tokens[done].sum()), facts["output_tokens_wanted"]
    if remote.forced and got > (1 + _SHORT) * wanted:
        longer = int((r.output_tokens > r.target_tokens)[done].sum())
        warnings.append(
            f"{longer:,} of {int(done.sum()):,} answers are longer than asked for ({got:,} tokens in all where {wanted:,} were "
            "asked for): the server does not keep to max_tokens, or counts something else"
        )
    counted = done & (found.client.counted_output >= 0)
    tokens, chunks = int(r.output_tokens[counted].sum()), int(found.client.chunks[counted].sum())
    if tokens < _FEW * chunks:
        warnings.append(
            f"the server counts {tokens:,} tokens in answers of {chunks:,} chunks with text: its count (usage) cannot be right, "
            "nor what follows from it (throughput, TPOT)"
        )
    return warnings


def _slow(remote: RemoteBackend, found: Found, facts: dict[str, Any]) -> list[str]:
    """Whether the client, and not the server, was measured."""
    warnings = []
    lag, connect = facts["send_lag_p99"], facts["connect_p99"] or 0.0
    r = found.requests
    ttft = (r.first_token - r.sent)[r.status == FINISHED]
    told_anyway = (
        lag is not None and lag > min(LAG_LIMIT_S, LAG_LIMIT_SHARE * float(np.median(ttft))) if len(ttft) else False
    )
    if lag is not None and lag > LATE and connect > lag / 2:
        warnings.append(
            f"requests waited {connect * 1e3:.3g} ms (p99) for new connections, most of the {lag * 1e3:.3g} ms of being late"
        )
    elif lag is not None and lag > LATE and not told_anyway:
        warnings.append(f"requests were sent late: p99 {lag * 1e3:.3g} ms")
    if (facts["cpu_share"] or 0.0) > BUSY:
        warnings.append(
            f"the client used {facts['cpu_share']:.0%} of a core: times are partly its own; send less, or from several machines"
        )
    elif (facts["loop_lag_p99"] or 0.0) > LATE:
        warnings.append(
            f"the client came late to things (p99 {facts['loop_lag_p99'] * 1e3:.3g} ms): its machine is busy, and times of "
            "tokens are as much too late"
        )
    return warnings


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _percentile(values: np.ndarray, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None
