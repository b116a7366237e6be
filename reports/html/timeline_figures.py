"""Figures over the time of a run: tokens, queues, batches, memory."""

from __future__ import annotations

import numpy as np

from reports.buckets import bucket_widths
from reports.gantt import MOST_REQUESTS, bars, order, phases_of
from reports.html.charts import Series, gantt, over_time, stacked
from reports.html.svg import Figure
from reports.kv_use import KINDS
from reports.replicas import in_flight_over
from reports.run_data import RunData
from reports.scaling import replicas_over
from reports.wording import number, seconds, size

POINTS, HIT_POINTS = 280, 120
MOST_REPLICAS = 6
_KV_NAMES = {
    "used": "used", "cached": "cached prefix", "reserved": "reserved", "internal": "internal waste",
    "external": "external waste", "free": "free",
}  # fmt: skip
_KV_SHADES = {"used": 0, "cached": 5, "reserved": 1, "internal": 4, "external": 3, "free": -1}


class Thinned:
    """The timeline in at most `POINTS` wider buckets: counts add up, states average by time.

    What is left at the end of a run and shorter than half a bucket belongs to the bucket before it: one request that ends in a
    hundredth of a second would be a peak of a hundred a second.
    """

    def __init__(self, data: RunData) -> None:
        self.line = data.timeline
        self.width = bucket_widths(data)
        size = len(self.width)
        self.seen = bool(self.line.steps.any())  # else nobody looked into the engine: a server, seen from outside
        self.starts = np.arange(0, size, max(1, -(-size // POINTS)))
        if len(self.starts) > 1:
            last, usual = (self.width[a:b].sum() for a, b in ((self.starts[-1], size), self.starts[:2]))
            if last < 0.5 * usual:
                self.starts = self.starts[:-1]
        self.span = np.add.reduceat(self.width, self.starts) if size else np.zeros(0)
        self.time = self.line.time[self.starts] if size else np.zeros(0)

    def sums(self, name: str) -> np.ndarray:
        """Counts of each wide bucket."""
        return np.add.reduceat(getattr(self.line, name), self.starts) if len(self.time) else np.zeros(0)

    def rate(self, name: str) -> np.ndarray:
        """Counts per second."""
        return self.sums(name) / self.span

    def mean(self, name: str) -> np.ndarray:
        """Time-averaged state."""
        values = getattr(self.line, name) * self.width
        return np.add.reduceat(values, self.starts) / self.span if len(self.time) else np.zeros(0)


def timeline_figures(data: RunData) -> dict[str, Figure]:
    """All of them by key: `throughput`, `requests`, `queue`; `batch`, `step_rate` and `kv` unless nobody saw them, as of a
    server; `hits` where a prefix was hit, `scaling` where
    replicas come and go, `replicas` where there are several, and `gantt` of small runs."""
    thin = Thinned(data)
    figures = [
        _throughput(thin),
        _requests(thin),
        _queue(data, thin),
    ]
    inside = thin.seen or not len(thin.time)
    if inside:
        figures += [_batch(thin), _steps(thin)]
    if inside or (data.info.get("kv_pool_tokens") and np.isfinite(data.timeline.kv_used).all()):
        figures.append(_kv(data, thin))
    figures += [figure for figure in (_hits(data), _scaling(data), _replicas(data), _gantt(data)) if figure is not None]
    return {figure.key: figure for figure in figures}


def hit_rates(data: RunData) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """How much of the prompts came from the prefix cache over time.

    Returns:
        Seconds; per cent of the prompt tokens admitted in the stretch that ends there (NaN where there were none), and of all
        since the start. None where nothing was ever hit.
    """
    r = data.requests
    known = np.isfinite(r.admitted)
    end = float(data.info["end"])
    if not (r.cached_tokens[known] > 0).any() or not end > 0:
        return None
    count = min(HIT_POINTS, max(int(known.sum()) // 5, 2))
    edges = np.linspace(0, end, count + 1)
    place = np.clip(np.searchsorted(edges, r.admitted[known], side="right") - 1, 0, count - 1)
    prompt, cached = (np.bincount(place, column[known], count) for column in (r.input_tokens, r.cached_tokens))
    with np.errstate(divide="ignore", invalid="ignore"):
        return edges[1:], cached / prompt * 100, np.cumsum(cached) / np.cumsum(prompt) * 100


def _hits(data: RunData) -> Figure | None:
    found = hit_rates(data)
    if found is None:
        return None
    times, rates, running = found
    series = [Series("now", rates, 5), Series("since the start", running, 0)]
    return over_time("hits", "Prompt tokens from cache", times, series, "% of prompt tokens", top=100.0)


def _replicas(data: RunData) -> Figure | None:
    """How evenly requests lay on the replicas: a line for each, or the range where there are many."""
    if data.requests.replica is None or not data.info.get("replicas") or not float(data.info["end"]) > 0:
        return None
    edges = np.linspace(0, float(data.info["end"]), HIT_POINTS + 1)
    found = in_flight_over(data, edges)
    if len(found) <= MOST_REPLICAS:
        series = [Series(f"replica {number}", values, number) for number, values in enumerate(found)]
    else:
        pairs = (("most", np.max(found, axis=0)), ("mean", np.mean(found, axis=0)), ("least", np.min(found, axis=0)))
        series = [Series(name, values, shade) for shade, (name, values) in enumerate(pairs)]
    return over_time("replicas", "In flight at each replica", edges[1:], series, "requests")


def _scaling(data: RunData) -> Figure | None:
    """How many replicas there were."""
    if not data.info.get("scaling") or not float(data.info["end"]) > 0:
        return None
    edges = np.linspace(0, float(data.info["end"]), HIT_POINTS + 1)
    series = [Series(name, values, shade) for shade, (name, values) in enumerate(replicas_over(data, edges).items())]
    return over_time("scaling", "Replicas", edges[1:], series, "replicas")


def _gantt(data: RunData) -> Figure | None:
    if not 0 < len(data.requests) <= MOST_REQUESTS:
        return None
    rows = order(data)
    names = [f"request {data.requests.request[i]}: {data.requests.status[i]}" for i in rows]
    return gantt("gantt", "Every request", bars(data), names, phases_of(data), float(data.info["end"]))


def _throughput(t: Thinned) -> Figure:
    series = [Series("output", t.rate("output_tokens"), 0, "area")]
    if t.seen or not t.line.output_tokens.any():
        series.append(Series("prefill (computed)", t.rate("prefill_tokens"), 1))
    if t.line.cached_tokens.any():
        series.append(Series("prompt from cache", t.rate("cached_tokens"), 5))
    return over_time("throughput", "Tokens in and out", t.time, series, "tokens/s")


def _requests(t: Thinned) -> Figure:
    series = [Series("arrived", t.rate("arrivals"), 1), Series("finished", t.rate("finished"), 2)]
    if t.line.refused.any():
        series.append(Series("refused", t.rate("refused"), 4))
    return over_time("requests", "Requests in and out", t.time, series, "requests/s")


def _queue(data: RunData, t: Thinned) -> Figure:
    running = t.mean("running")
    if not t.seen and running.any() and not t.line.waiting.any():
        return over_time("queue", "In flight", t.time, [Series("in flight", running, 0, "area")], "requests")
    series = [Series("running", running, 0, "area"), Series("waiting", t.mean("waiting"), 1)]
    if t.line.swapped.any():
        series.append(Series("swapped out", t.mean("swapped"), 3))
    if t.line.preemptions.any():
        series.append(Series("preempted", t.sums("preemptions").astype(float), 4, "bar"))
    if t.line.refused.any():
        series.append(Series("refused", t.sums("refused").astype(float), 6, "bar"))
    most = data.info.get("max_num_seqs")
    near = most and len(running) and running.max() > 0.5 * most
    limit = (float(most), f"max_num_seqs {most}") if near else None
    bars = any(s.kind == "bar" for s in series)
    note = f"bars: how many in each {seconds(float(t.span[0]))}" if bars else ""
    return over_time("queue", "Running and waiting", t.time, series, "sequences", limit=limit, note=note)


def _batch(t: Thinned) -> Figure:
    steps = np.maximum(t.sums("steps"), 1)
    series = [
        Series("decode", t.sums("decode_tokens") / steps, 0),
        Series("prefill", t.sums("prefill_tokens") / steps, 1),
    ]
    return stacked("batch", "What a step computes", t.time, series, "tokens per step")


def _steps(t: Thinned) -> Figure:
    return over_time("step_rate", "Engine steps", t.time, [Series("steps", t.rate("steps"), 2, "area")], "steps/s")


def _kv(data: RunData, t: Thinned) -> Figure:
    pool = data.info.get("kv_pool_tokens") or 0
    title = "KV cache occupancy"
    if not pool:
        return stacked("kv", title, np.zeros(0), [], "% of the pool")
    series = []
    for kind in KINDS:
        values = t.mean(f"kv_{kind}") / pool * 100
        # a kind that never showed adds nothing but a line to the legend
        if kind in ("used", "free") or np.nan_to_num(values).any():
            series.append(Series(_KV_NAMES[kind], values, _KV_SHADES[kind]))
    note = f"pool of {number(pool)} tokens"
    if data.info.get("kv_bytes_per_token"):
        note += f", {size(pool * data.info['kv_bytes_per_token'])}"
    return stacked("kv", title, t.time, series, "% of the pool", note=note, top=100.0)
