"""Runs made for tests: by hand from a few numbers, or by a toy batching loop that behaves like an engine."""

from __future__ import annotations

from collections import deque

import numpy as np

from reports.run_data import FINISHED, REFUSED, UNFINISHED, Requests, RunData, Timeline, TokenTimes

STATES = (
    "running",
    "waiting",
    "swapped",
    "kv_used",
    "kv_cached",
    "kv_reserved",
    "kv_internal",
    "kv_external",
)
COUNTS = (
    "steps", "prefill_tokens", "decode_tokens", "output_tokens", "arrivals", "finished", "refused", "preemptions",
    "cached_tokens",
)  # fmt: skip


def empty_timeline(buckets: int = 0, width: float = 1.0) -> Timeline:
    """A timeline in which nothing happens."""
    floats = {name: np.zeros(buckets) for name in (*STATES, "kv_free", "busy")}
    counts = {name: np.zeros(buckets, np.int64) for name in COUNTS}
    return Timeline(width=width, time=np.arange(buckets) * width, **floats, **counts)


def make_requests(n: int, **columns) -> Requests:
    """`n` finished requests with the given columns; the rest is filled with what follows from them."""
    sent = np.broadcast_to(np.asarray(columns.get("sent", 0.0), float), n)
    values = {
        "request": np.arange(n), "session": np.arange(n), "turn": np.zeros(n), "priority": np.zeros(n, np.int32),
        "scheduled": sent, "sent": sent, "queued": sent, "admitted": sent, "first_token": sent, "finish": sent,
        "input_tokens": np.ones(n), "max_tokens": np.ones(n), "output_tokens": np.ones(n),
        "target_tokens": columns.get("output_tokens", np.ones(n)), "cached_tokens": np.zeros(n),
        "recomputed_tokens": np.zeros(n), "preemptions": np.zeros(n), "status": FINISHED, "reason": "",
    } | columns  # fmt: skip
    for name, value in values.items():
        like = object if name in ("status", "reason") else np.int32 if name == "priority" else None
        timed = name in ("scheduled", "sent", "queued", "admitted", "first_token", "finish")
        dtype = like or (np.float64 if timed else np.int64)
        values[name] = np.broadcast_to(np.asarray(value, dtype), n).copy()
    return Requests(**values)


def tokens_from_lists(times: list[list[list[float]]]) -> TokenTimes:
    """Token times from, for every request, a list of segments, each the list of its token times.

    Every token after the first of a segment gets a step of its own unless another has the same time; the times of
    one segment after its first must be consecutive among all of them, as decode steps of a batch are.
    """
    steps = sorted({t for segments in times for segment in segments for t in segment[1:]})
    rows = []
    for row, segments in enumerate(times):
        for segment in segments:
            first = steps.index(segment[1]) if len(segment) > 1 else 0
            assert segment[1:] == steps[first : first + len(segment) - 1]
            rows.append((row, segment[0], first, len(segment) - 1))
    request, start, first, length = zip(*rows, strict=True) if rows else ((), (), (), ())
    return TokenTimes(
        np.array(request, np.int64), np.array(start, float), np.array(first, np.int64),
        np.array(length, np.int64), np.array(steps, float),
    )  # fmt: skip


def make_run(requests: Requests, tokens: TokenTimes | None = None, timeline: Timeline | None = None, **info) -> RunData:
    """A run around the given columns."""
    tokens = tokens if tokens is not None else tokens_from_lists([])
    ends = requests.finish[np.isfinite(requests.finish)]
    facts = {
        "name": "by hand", "seed": 0, "backend": "sim", "load": {"mode": "open"}, "slo": {}, "kv_pool_tokens": 0,
        "kv_block_tokens": 16, "kv_bytes_per_token": 131072, "max_num_seqs": 256, "gpus": 1, "complete": True,
        "end": float(ends.max()) if len(ends) else 0.0,
    } | info  # fmt: skip
    timeline = timeline if timeline is not None else empty_timeline()
    return RunData(requests, tokens, timeline, facts, {}, [], [], [], {})


def simulated_run(
    n: int = 2000,
    rate: float = 8.0,
    *,
    seed: int = 0,
    pool: int = 60_000,
    max_num_seqs: int = 128,
    budget: int = 2048,
    width: float | None = None,
    cut: float | None = None,
    refuse: float = 0.0,
    **info,
) -> RunData:
    """An open-loop run of `n` requests at `rate` a second on a toy engine; `cut` ends it early (seconds)."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / rate, n))
    inputs = np.clip(rng.lognormal(6.0, 0.8, n), 8, 6000).astype(np.int64)
    outputs = np.clip(rng.lognormal(4.9, 0.7, n), 1, 1500).astype(np.int64)
    cached = np.where(rng.random(n) < 0.3, (inputs - 1) // 16 * 16 // 2, 0)
    refused = rng.random(n) < refuse
    r = make_requests(
        n, sent=arrival, queued=arrival + 0.004, input_tokens=inputs, output_tokens=0, target_tokens=outputs,
        max_tokens=2048, admitted=np.nan, first_token=np.nan, finish=np.nan, status=UNFINISHED,
    )  # fmt: skip
    r.status[refused], r.reason[refused] = REFUSED, "longer than the context"
    tokens, samples, end = _loop(r, cached, refused, pool, max_num_seqs, budget, cut or np.inf)
    here = r.queued <= end  # those that would have come after the cut never did
    r = Requests(**{n: v if (v := getattr(r, n)) is None else v[here] for n in Requests.__slots__})
    timeline = _timeline(r, samples, end, width or max(end / 300, 1e-3), pool)
    run = make_run(r, tokens, timeline, kv_pool_tokens=pool, end=end, max_num_seqs=max_num_seqs, complete=cut is None)
    run.info |= {"name": "chat on one H100", "slo": {"ttft_ms": 500, "tpot_ms": 50}, "seed": seed} | info
    run.info["load"] = run.info["load"] | {"rate": rate} if run.info["load"].get("mode") == "open" else run.info["load"]
    run.config = example_config(rate)
    run.provenance = [
        {"what": "GEMM efficiency, h100-sxm", "value": 0.62, "source": "fit to published measurements"},
        {"what": "memory bandwidth", "value": "3.35 TB/s", "source": "data sheet"},
        {"what": "host time a step", "value": "3.1 ms", "source": "constants file, vllm@0.33"},
    ]
    run.notes = ["timestamps sorted (3 rows were out of order)", "max_tokens declared by the rule context"]
    run.warnings = []
    run.host = {"machine": "2 cores, x86_64", "wall_seconds": 1.9, "date": "20260101-120000"}
    return run


def _loop(r, cached, refused, pool, max_num_seqs, budget, cut):
    """Step until everything is done; returns token times, a list of per-step samples, and the end."""
    now, nxt, n = 0.0, 0, len(r)
    waiting: deque[int] = deque()
    running: list[list] = []  # [row, prefill left, known tokens, tokens to come, segment or None]
    ends, segments, samples = [], [], []
    while (nxt < n or waiting or running) and now < cut:
        while nxt < n and r.queued[nxt] <= now:
            if not refused[nxt]:
                waiting.append(nxt)
            nxt += 1
        if not waiting and not running:
            if nxt >= n:
                break
            now = float(r.queued[nxt])
            continue
        used, preempted = sum(item[2] for item in running), 0
        while used + len(running) > pool and len(running) > 1:
            row, left, known, *_ = running.pop()
            used -= known
            r.preemptions[row] += 1
            r.recomputed_tokens[row] += known - left
            preempted += 1
            waiting.appendleft(row)
        left_budget, prefill = budget - sum(1 for item in running if not item[1]), 0
        while waiting and len(running) < max_num_seqs and left_budget > 0 and not preempted:
            row = waiting[0]
            known = int(r.input_tokens[row] + r.output_tokens[row])
            if used + known > pool * 0.97 and running:
                break
            waiting.popleft()
            hit = 0
            if np.isnan(r.admitted[row]):
                r.admitted[row], r.cached_tokens[row] = now, cached[row]
                hit = int(cached[row])
            running.append([row, known - hit, known, int(r.target_tokens[row] - r.output_tokens[row]), None])
            used += known
            break_at = min(left_budget, known - hit)
            left_budget -= break_at
        grants, spent = [], budget - sum(1 for item in running if not item[1])
        for item in running:
            if item[1] and spent > 0:
                take = min(item[1], spent)
                item[1] -= take
                spent -= take
                prefill += take
                grants.append(item)
        decode = [item for item in running if not item[1] and item not in grants]
        begin = now
        now += 0.006 + 4e-5 * len(decode) + 2.2e-8 * used + 2.4e-5 * prefill
        ends.append(now)
        out = 0
        for item in decode:
            item[2] += 1
            item[3] -= 1
            item[4][3] += 1
            out += 1
        for item in grants:
            if not item[1]:
                item[4] = [item[0], now, len(ends), 0]
                segments.append(item[4])
                item[2] += 1
                item[3] -= 1
                out += 1
                if np.isnan(r.first_token[item[0]]):
                    r.first_token[item[0]] = now
        finished = 0
        for item in decode + grants:
            if not item[1]:
                r.output_tokens[item[0]] = r.target_tokens[item[0]] - item[3]
                if item[3] == 0:
                    r.finish[item[0]], r.status[item[0]] = now, FINISHED
                    finished += 1
        samples.append((begin, now, len(running), len(waiting), used, prefill, len(decode), out, finished, preempted))
        running = [item for item in running if item[1] or item[3] > 0]
    columns = np.array(segments, float).reshape(-1, 4)
    tokens = TokenTimes(
        columns[:, 0].astype(np.int64), columns[:, 1].copy(), columns[:, 2].astype(np.int64),
        columns[:, 3].astype(np.int64), np.array(ends),
    )  # fmt: skip
    tokens.first_step[tokens.steps == 0] = 0
    return tokens, np.array(samples, float).reshape(-1, 10), float(now)


def _timeline(r, samples, end, width, pool):
    """Buckets from per-step samples: states weighted by time, counts by the step's end."""
    t = empty_timeline(max(1, int(np.ceil(end / width))), width)
    bucket = np.minimum((samples[:, 1] / width).astype(int), len(t.time) - 1)
    for name, column in (
        ("prefill_tokens", 5), ("decode_tokens", 6), ("output_tokens", 7), ("finished", 8), ("preemptions", 9),
    ):  # fmt: skip
        np.add.at(getattr(t, name), bucket, samples[:, column].astype(np.int64))
    np.add.at(t.steps, bucket, 1)
    edges = np.append(t.time, end)

    def mean(start, stop, value):
        # the integral of a step function, read off at the edges of the buckets
        times = np.concatenate([start, stop])
        change = np.concatenate([value, -value])
        order = np.argsort(times, kind="stable")
        times, level = times[order], np.cumsum(change[order])
        area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))]) if len(times) else np.zeros(1)
        whole = np.interp(edges, times, area) if len(times) else np.zeros(len(edges))
        return np.diff(whole) / np.diff(edges)

    ones = np.ones(len(r))
    leave = np.where(np.isnan(r.finish), end, r.finish)
    admitted = np.where(np.isnan(r.admitted), np.where(r.status == REFUSED, r.queued, end), r.admitted)
    leave = np.where(r.status == REFUSED, r.queued, leave)
    t.waiting = mean(r.queued, admitted, ones)
    t.running = mean(admitted, leave, ones)
    used = mean(samples[:, 0], samples[:, 1], samples[:, 4])
    t.kv_used = np.minimum(used, pool)
    t.kv_internal = np.minimum(t.running * 7.5, pool - t.kv_used)
    t.kv_cached = np.minimum(0.35 * pool, (pool - t.kv_used - t.kv_internal) * 0.8)
    t.kv_free = pool - t.kv_used - t.kv_internal - t.kv_cached
    t.busy = np.clip(mean(samples[:, 0], samples[:, 1], np.ones(len(samples))), 0, 1)
    arrived = np.minimum((r.queued / width).astype(int), len(t.time) - 1)
    np.add.at(t.arrivals, arrived[r.queued <= end], 1)
    np.add.at(t.refused, arrived[r.status == REFUSED], 1)
    return t


def example_config(rate: float = 8.0) -> dict:
    """A resolved configuration as the runner records it."""

    def leaf(value, source="derived"):
        return {"value": value, "source": source}

    return {
        "model": leaf("meta-llama/Meta-Llama-3-8B", "user"),
        "backend": {"name": leaf("sim", "user"), "gpu": leaf("h100-sxm", "user")},
        "engine": {
            "preset": leaf("vllm@0.33", "user"),
            "scheduler": {
                "name": leaf("chunked-prefill", "preset"), "max_num_seqs": leaf(128, "user"),
                "max_num_batched_tokens": leaf(2048, "preset"), "policy": leaf("fcfs", "preset"),
                "gate": leaf("full-prompt", "preset"), "victim": leaf("last-admitted", "preset"),
            },
            "kv": {
                "allocator": leaf("paged", "preset"), "block_size": leaf(16, "preset"),
                "prefix_caching": leaf(True, "preset"), "dtype": leaf("auto", "preset"),
                "memory_utilization": leaf(0.9, "user"), "capacity_tokens": leaf(60000),
            },
            "quantization": leaf("fp8", "user"),
            "parallel": {"tensor": leaf(1, "preset"), "pipeline": leaf(1, "preset")},
        },
        "traffic": {
            "max_tokens": leaf("context", "user"),
            "synthetic": {
                "requests": leaf(2000, "user"),
                "arrivals": {"process": leaf("poisson", "user"), "rate": leaf(rate, "user")},
            },
        },
        "load": {"mode": leaf("open", "user")},
        "slo": {"ttft_ms": leaf(500, "user"), "tpot_ms": leaf(50, "user")},
    }  # fmt: skip
