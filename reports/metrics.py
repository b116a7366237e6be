"""Every figure of a run, under the key names of vLLM's serving benchmark.

Definitions (sent = handed to the front end; n = output tokens of a request):

* TTFT = first token − sent; E2E = last token − sent; TPOT = (E2E − TTFT) / (n − 1) for n > 1, every request weight 1.
* ITL = gap between successive tokens of a request, every gap weight 1; TTFT is never part of it.
* duration = first planned send → last token, or the last send or the end of a request that failed where that is later: requests
  that fail must not make a run shorter, and so its rates higher. Throughputs count finished requests only.
* goodput = finished requests that met every SLO / duration; attainment is over requests *sent*.
* Only finished requests feed a latency. Percentiles are withheld (None) below the sample they need.

Seconds in, milliseconds out. Everything is JSON-ready: plain numbers, None where a thing cannot be told.
"""

from __future__ import annotations

import numpy as np

from reports import intervals as bootstrap
from reports import token_series
from reports.buckets import bucket_widths
from reports.concurrency import InFlight
from reports.kv_use import kv_use
from reports.percentiles import PERCENTILES, Distribution, needed, statistics
from reports.pools import pool_figures
from reports.replicas import replica_figures
from reports.run_data import CANCELLED, FAILED, FINISHED, REFUSED, UNFINISHED, Requests, RunData
from reports.saturation import saturation
from reports.scaling import scaling_figures
from reports.speculation import speculation_figures
from reports.uncertainty import uncertain
from reports.wording import alike

LATENCIES = ("ttft", "tpot", "itl", "e2el")
STEADY_SHARE = 0.95  # of the cap: a closed loop is steady while this many are in flight
_OF_SENDING = (
    "arrival_rate", "max_output_tokens_per_s", "max_concurrent_requests", "mean_concurrency", "steady_output_throughput",
    "steady_start", "steady_end", "p99_send_lag_ms", "send_lag_ok", "rate_kept",
)  # fmt: skip
"""What cannot be told of a run whose requests have no times of sending, beside its duration and what follows from that."""
LAG_LIMIT_S, LAG_LIMIT_SHARE, RATE_KEPT = 0.010, 0.05, 0.95
FAILURES_TOLD = 0.01
"""Share of the requests that may fail without a word."""


def summarize(data: RunData, *, with_intervals: bool = True) -> dict:
    """All figures of a run.

    Args:
        with_intervals: add 80 % intervals of what matters most under `interval` (see `reports.uncertainty`), and 95 %
            bootstrap intervals of the run's own requests under `intervals` (seeded by the run's seed).

    Returns:
        A flat dict of figures by name, ordered for reading; `refused_reasons`, `cancelled_reasons`, `failed_reasons`,
        `latency_counts`, `interval`, `intervals`, `littles_law` and `saturation` are dicts of their own; with several replicas
        there are `imbalance` and a list `replicas` (see `reports.replicas`), with prefill apart from decode `pools` and more (see
        `reports.pools`).
    """
    r = data.requests
    done = r.status == FINISHED
    tokens = token_series.select(data.tokens, _by_row(r, done))
    series = token_series.token_counts(tokens)
    timed = data.info.get("sent_seen", True)
    duration = run_duration(data) if timed else None
    found = distributions(data)
    summary = _counts(r, duration)
    summary |= _rates(r, done, duration)
    summary["max_output_tokens_per_s"] = token_series.peak_rate(series)
    summary |= _concurrency(data, done, duration)
    summary |= _steady(data)
    for name in LATENCIES:
        summary |= statistics(f"{name}_ms", found[name])
    for name in ("front_end", "queue", "prefill"):
        summary |= statistics(f"{name}_ms", found[name])
    summary |= _slo(data, duration)
    summary |= _schedule(data, found)
    summary |= _engine(data)
    summary |= kv_use(data)
    summary |= speculation_figures(data)
    summary |= replica_figures(data)
    summary |= pool_figures(data)
    summary |= scaling_figures(data)
    if not timed:
        summary |= dict.fromkeys(_OF_SENDING) | data.info.get("reported", {})
    summary["latency_counts"] = {name: d.count for name, d in found.items()}
    if with_intervals:
        summary["interval"] = uncertain(data, summary, found, met_slo(data))
        seed = int(data.info.get("seed") or 0)
        summary["intervals"] = {}
        for name in ("ttft", "tpot", "e2el"):  # not ITL: the gaps of one step are one event, not many
            summary["intervals"] |= bootstrap.intervals(f"{name}_ms", found[name], seed)
    summary["littles_law"] = littles_law(data)
    summary["saturation"] = saturation(data)
    return summary


def distributions(data: RunData) -> dict[str, Distribution]:
    """Latencies in seconds of finished requests by name: those of `LATENCIES`, the three parts of TTFT
    (`front_end`, `queue`, `prefill`), `e2el_from_schedule` and `send_lag` (of every request sent)."""
    r = data.requests
    done = (r.status == FINISHED) & np.isfinite(r.first_token) & np.isfinite(r.finish)
    many = done & (r.output_tokens > 1)
    columns = {
        "ttft": (r.first_token - r.sent)[done],
        "tpot": (r.finish - r.first_token)[many] / (r.output_tokens[many] - 1),
        "e2el": (r.finish - r.sent)[done],
        "front_end": (r.queued - r.sent)[done],
        "queue": (r.admitted - r.queued)[done],
        "prefill": ((r.first_token if r.prefilled is None else r.prefilled) - r.admitted)[done],
        "e2el_from_schedule": (r.finish - r.scheduled)[done],
        "send_lag": r.sent - r.scheduled,
    }
    found = {name: Distribution.of(values[np.isfinite(values)]) for name, values in columns.items()}
    found["itl"] = token_series.gaps(token_series.select(data.tokens, _by_row(r, done)))
    return found


def run_duration(data: RunData) -> float | None:
    """Seconds from the first planned send to the last token of any request, or the last send or the end of a failed one, where
    that is later; None when no token came."""
    r = data.requests
    planned = r.scheduled[np.isfinite(r.scheduled)]
    last = np.concatenate([r.finish[np.isfinite(r.finish)], token_series.segment_ends(data.tokens)])
    if not len(planned) or not len(last):
        return None
    others = np.concatenate([r.sent, _ends(data)[r.status == FAILED]])
    last = np.concatenate([last, others[np.isfinite(others)]])
    return float(last.max() - planned.min()) or None


def _ends(data: RunData) -> np.ndarray:
    """When each request was over, in seconds: with its last token, or as the client saw it end; NaN where nobody knows."""
    r = data.requests
    return r.finish if data.client is None else np.where(np.isfinite(r.finish), r.finish, data.client.stream_end)


def littles_law(data: RunData) -> dict:
    """Request-seconds in the engine as its timeline saw them, against those of the request records.

    Two independent counts of one thing (L = λW); `error` is their relative difference, None where either is missing
    or where requests left at a time nobody recorded (cancelled or failed in the engine).
    """
    r, t = data.requests, data.timeline
    left_unseen = np.isin(r.status, (CANCELLED, FAILED)) & np.isnan(r.finish)
    if not len(t.time) or left_unseen.any() or not np.isfinite(r.queued).any():
        return {"timeline_mean": None, "requests_mean": None, "error": None}
    end = float(data.info["end"])
    until = np.where(r.status == UNFINISHED, end, r.finish)
    stays = (until - r.queued)[np.isfinite(until) & np.isfinite(r.queued) & (r.status != REFUSED)]
    width = bucket_widths(data)
    whole = float(width.sum())
    seen = float(np.dot(t.running + t.waiting + t.swapped, width)) / whole
    counted = float(np.maximum(stays, 0).sum()) / whole
    return {
        "timeline_mean": seen,
        "requests_mean": counted,
        "error": abs(seen - counted) / counted if counted else None,
    }


def _by_row(r: Requests, mask: np.ndarray) -> np.ndarray:
    """A mask over requests as a mask over rows of the traffic."""
    wanted = np.zeros(int(r.request.max()) + 1 if len(r) else 0, bool)
    wanted[r.request[mask]] = True
    return wanted


def _counts(r: Requests, duration: float | None) -> dict:
    done = r.status == FINISHED
    summary: dict = {"duration": duration, "requests": len(r), "completed": int(done.sum())}
    for status in (FAILED, REFUSED, CANCELLED, UNFINISHED):
        summary[status] = int((r.status == status).sum())
    for status in (FAILED, REFUSED, CANCELLED):
        reasons, counts = np.unique(r.reason[r.status == status].astype(str), return_counts=True)
        summary[f"{status}_reasons"] = {
            str(text) or "no reason given": int(count) for text, count in zip(reasons, counts, strict=True)
        }
    return summary


def _rates(r: Requests, done: np.ndarray, duration: float | None) -> dict:
    inputs, outputs = int(r.input_tokens[done].sum()), int(r.output_tokens[done].sum())
    sent = r.sent[np.isfinite(r.sent)]
    span = float(sent.max() - sent.min()) if len(sent) > 1 else 0.0

    def rate(amount: float) -> float | None:
        return amount / duration if duration else None

    return {
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "arrival_rate": (len(sent) - 1) / span if span else None,
        "request_throughput": rate(int(done.sum())),
        "output_throughput": rate(outputs),
        "total_token_throughput": rate(inputs + outputs),
    }


def _in_flight(data: RunData) -> InFlight:
    r = data.requests
    until = np.where((r.status == UNFINISHED), float(data.info["end"]), _ends(data))
    return InFlight.of(r.sent, until)


def _concurrency(data: RunData, done: np.ndarray, duration: float | None) -> dict:
    r = data.requests
    total = float((r.finish - r.sent)[done].sum())
    return {
        "max_concurrent_requests": _in_flight(data).peak(),
        "mean_concurrency": total / duration if duration else None,
    }


def _steady(data: RunData) -> dict:
    """Output tokens a second while the load was steady, every token credited at its own time.

    Closed loop: the longest stretch with at least 95 % of the cap in flight (dips of up to 5 % of the median E2E, in
    which a client turns round, are bridged). Open loop: from one median E2E after the first send, but at least a tenth
    and at most half of the arrival window (warm-up), to the last send (drain).
    """
    r, load = data.requests, data.info["load"]
    summary: dict = dict.fromkeys(("steady_output_throughput", "steady_start", "steady_end"))
    done = r.status == FINISHED
    sent = r.sent[np.isfinite(r.sent)]
    if not done.any() or len(sent) < 2:
        return summary
    typical = float(np.percentile((r.finish - r.sent)[done], 50))
    if load.get("mode") == "closed" and load.get("concurrency"):
        window = _in_flight(data).longest_at_least(STEADY_SHARE * load["concurrency"], 0.05 * typical)
    else:
        first, last = float(sent.min()), float(sent.max())
        warm_up = min(max(typical, 0.1 * (last - first)), 0.5 * (last - first))
        window = (first + warm_up, last) if last > first else None
    if window is None:
        return summary
    low, high = window
    counted = token_series.select(data.tokens, _by_row(r, done | (r.status == UNFINISHED)))
    total = token_series.tokens_between(token_series.token_counts(counted), low, high)
    return {"steady_output_throughput": total / (high - low), "steady_start": low, "steady_end": high}


def _slo(data: RunData, duration: float | None) -> dict:
    """Goodput and attainment. A request with one token passes a TPOT limit; one that did not finish passes none."""
    good, sent = met_slo(data), int(np.isfinite(data.requests.sent).sum())
    summary: dict = {"request_goodput": None, "slo_attainment": None}
    if good is None:
        return summary
    for name, met in _met(data).items():
        summary[f"slo_attainment_{name}"] = int(met.sum()) / sent if sent else None
    summary["request_goodput"] = int(good.sum()) / duration if duration else None
    summary["slo_attainment"] = int(good.sum()) / sent if sent else None
    return summary


def met_slo(data: RunData) -> np.ndarray | None:
    """Which requests met every limit (bool); None where there is none."""
    met = _met(data)
    return np.logical_and.reduce(list(met.values())) if met else None


def _met(data: RunData) -> dict[str, np.ndarray]:
    """Which requests met each limit of the SLO, by latency."""
    r, slo = data.requests, data.info.get("slo") or {}
    limits = {
        name: slo[key] for name, key in (("ttft", "ttft_ms"), ("tpot", "tpot_ms"), ("e2el", "e2e_ms")) if slo.get(key)
    }
    took = {
        "ttft": r.first_token - r.sent,
        "tpot": (r.finish - r.first_token) / np.maximum(r.output_tokens - 1, 1) * (r.output_tokens > 1),
        "e2el": r.finish - r.sent,
    }
    with np.errstate(invalid="ignore"):
        return {name: (r.status == FINISHED) & (took[name] * 1e3 <= limit) for name, limit in limits.items()}


def _schedule(data: RunData, found: dict[str, Distribution]) -> dict:
    """Whether requests were sent when they should have been; E2E from schedule survives coordinated omission."""
    r = data.requests
    summary = statistics("e2el_from_schedule_ms", found["e2el_from_schedule"])
    lag = found["send_lag"]
    worst = lag.percentile(99) if lag.count >= needed(99) else (float(lag.values[-1]) if lag.count else None)
    summary["p99_send_lag_ms"] = None if worst is None else worst * 1e3
    summary["send_lag_ok"] = summary["rate_kept"] = None
    load = data.info["load"]
    summary["held_back_requests"] = int((r.sent > r.scheduled).sum()) if load.get("max_concurrency") else None
    if (
        worst is None or load.get("mode") == "closed" or load.get("max_concurrency")
    ):  # who is held back is late on purpose
        return summary
    ttft = found["ttft"].median()
    summary["send_lag_ok"] = worst <= min(LAG_LIMIT_S, LAG_LIMIT_SHARE * ttft if ttft is not None else LAG_LIMIT_S)
    first_turns = (r.turn == 0) & np.isfinite(r.sent)
    if first_turns.any():
        planned, sent = np.ptp(r.scheduled[first_turns]), np.ptp(r.sent[first_turns])
        summary["rate_kept"] = bool(sent <= 0 or planned / sent >= RATE_KEPT)
    return summary


def _engine(data: RunData) -> dict:
    r, t = data.requests, data.timeline
    steps = int(t.steps.sum())
    admitted = np.isfinite(r.admitted)
    prompt = int(r.input_tokens[admitted].sum())
    share = float(np.dot(t.busy, bucket_widths(data)) / bucket_widths(data).sum()) if len(t.time) else None

    def per_step(column: np.ndarray) -> float | None:
        return int(column.sum()) / steps if steps else None

    return {
        "preemptions": int(r.preemptions.sum()),
        "preempted_requests": int((r.preemptions > 0).sum()),
        "recomputed_tokens": int(r.recomputed_tokens.sum()),
        "cached_tokens": int(r.cached_tokens[admitted].sum()),
        "prefix_hit_rate": int(r.cached_tokens[admitted].sum()) / prompt if prompt else None,
        "engine_steps": steps,
        "mean_batch": per_step(t.decode_tokens),
        "mean_tokens_per_step": per_step(t.prefill_tokens + t.decode_tokens),
        "busy_share": share,
    }


def notices(summary: dict) -> list[str]:
    """Sentences about figures that need care, for the console and the page."""
    found = []
    if summary["failed"] > FAILURES_TOLD * summary["requests"]:
        common = "".join(f" (most often {reason})" for reason, _ in alike(summary["failed_reasons"], 200, 1)[:1])
        found.append(
            f"{summary['failed']:,} of {summary['requests']:,} requests failed{common}: latencies and rates are those of the "
            "others, under a lighter load than was asked for"
        )
    if summary.get("send_lag_ok") is False:
        found.append(
            f"requests were sent late (p99 {summary['p99_send_lag_ms']:.3g} ms behind schedule): latencies count from sending, "
            "the E2E from schedule from when each was due"
        )
    if summary.get("held_back_requests"):
        found.append(
            f"{summary['held_back_requests']:,} of {summary['requests']:,} requests were held back until one before was over "
            "(load.max_concurrency): latencies count from sending, the E2E from schedule from when each was due"
        )
    if summary.get("rate_kept") is False and summary["saturation"]["label"] != "overloaded":
        found.append("less than 95 % of the asked rate was sent: this point is not valid")
    error = summary["littles_law"]["error"]
    if error is not None and error > 0.02:
        found.append(f"Little's law is off by {error:.1%}: the timeline and the request records disagree")
    short = {f"p{p}": needed(p) for p in PERCENTILES if summary.get(f"p{p}_e2el_ms") is None and summary["completed"]}
    if short:
        wants = ", ".join(f"{name} needs {count}" for name, count in short.items())
        found.append(f"too few finished requests ({summary['completed']}) for every percentile: {wants}")
    return found
