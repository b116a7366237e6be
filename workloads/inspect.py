"""Looking at traffic before it is served: rates, burstiness, lengths, sharing; numbers, text and a chart."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.sharing import prefix_sharing
from workloads.traffic import Traffic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MINUTE = 60.0
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))


def describe(traffic: Traffic, block_size: int = 16) -> dict[str, Any]:
    """What this traffic is, as plain numbers (strict JSON: None where a figure does not exist).

    Args:
        traffic: anything with at least one row.
        block_size: tokens a block, for the prefix sharing.

    Keys:
        name, requests, sessions; turns (mean and max; None without sessions);
        duration_s, rate_per_s: (arrivals - 1) / duration, over first turns; peak_minute_per_s;
        gap_cv: standard deviation of the gaps over their mean (1 = Poisson);
        minute_cv: the same of the counts a minute; minutes start at time 0, a last one that was cut short is left out;
        input_tokens, output_tokens: mean, std, min, p50, p90, p95, p99, max;
        declared_share: share of the requests whose source says max_tokens;
        prefix: block_size, token_share, block_share, request_share, blocks, distinct_blocks (infinite cache);
        notes.
    """
    roots = traffic.arrival[traffic.parent < 0]
    gaps = np.diff(roots)
    duration = traffic.duration if traffic.duration > 1e-9 else 0.0  # a rate of more says nothing
    counts = per_minute(traffic)
    whole = counts if _last_is_whole(roots) else counts[:-1]
    sharing = prefix_sharing(traffic, block_size)
    in_sessions = len(roots) < len(traffic)
    return {
        "name": traffic.name,
        "requests": len(traffic),
        "sessions": len(roots) if in_sessions else None,
        "turns": _turns(traffic) if in_sessions else None,
        "duration_s": duration,
        "rate_per_s": (len(roots) - 1) / duration if duration > 0 else None,
        "peak_minute_per_s": float(counts.max() / MINUTE) if duration > 0 and len(whole) else None,
        "gap_cv": _cv(gaps) if duration > 0 else None,
        "minute_cv": _cv(whole) if len(whole) > 1 else None,
        "input_tokens": _quantiles(traffic.input_tokens),
        "output_tokens": _quantiles(traffic.output_tokens),
        "declared_share": float((traffic.max_tokens > 0).mean()),
        "prefix": {
            "block_size": block_size,
            "token_share": sharing.token_share,
            "block_share": sharing.block_share,
            "request_share": sharing.request_share,
            "blocks": sharing.blocks,
            "distinct_blocks": sharing.distinct_blocks,
        },
        "notes": list(traffic.notes),
    }


def per_minute(traffic: Traffic) -> np.ndarray:
    """Arrivals (of first turns) in each minute from the first one's (int64)."""
    roots = traffic.arrival[traffic.parent < 0]
    first = roots[0] // MINUTE
    return np.bincount((roots // MINUTE - first).astype(np.int64))


def _last_is_whole(roots: np.ndarray) -> bool:
    """Whether the minute of the last arrival ends with it, as far as a tenth of it or a mean gap tell."""
    missing = MINUTE - roots[-1] % MINUTE
    return bool(missing <= max(0.1 * MINUTE, float(np.ptp(roots)) / max(len(roots) - 1, 1)))


def _turns(traffic: Traffic) -> dict[str, float]:
    from workloads.transform import roots_of

    sizes = np.unique(roots_of(traffic), return_counts=True)[1]
    return {"mean": float(sizes.mean()), "max": int(sizes.max())}


def _cv(values: np.ndarray) -> float | None:
    mean = values.mean() if len(values) else 0.0
    return float(values.std() / mean) if mean > 0 else None


def _quantiles(values: np.ndarray) -> dict[str, float]:
    figures = {"mean": float(values.mean()), "std": float(values.std()), "min": int(values.min())}
    at = np.quantile(values, [q for _, q in QUANTILES])
    figures |= {name: float(value) for (name, _), value in zip(QUANTILES, at, strict=True)}
    return figures | {"max": int(values.max())}


def histogram(values: np.ndarray, bins: int = 12, width: int = 40, *, log: bool = True) -> str:
    """A histogram in text, one bin a line: its range, a bar, and its count.

    Args:
        values: positive numbers if `log`.
        bins: most lines.
        width: characters of the longest bar.
        log: bins of equal ratio rather than equal width.
    """
    low, high = float(np.min(values)), float(np.max(values))
    if low == high:
        edges = np.array([low, high])
        counts = np.array([len(values)])
    else:
        edges = np.geomspace(low, high, bins + 1) if log else np.linspace(low, high, bins + 1)
        edges[0], edges[-1] = low, high  # rounding must not push an end out
        counts, _ = np.histogram(values, edges)
    labels = [f"{a:,.4g} – {b:,.4g}" for a, b in itertools.pairwise(edges)]
    room = max(map(len, labels))
    most = counts.max()
    lines = []
    for label, count in zip(labels, counts, strict=True):
        bar = "█" * round(width * int(count) / int(most)) or ("▏" if count else "")
        lines.append(f"{label:>{room}}  {bar:<{width}}  {count:,}")
    return "\n".join(lines)


def figure(traffic: Traffic) -> Figure:
    """Four panels: arrivals a minute, gaps between arrivals, input and output lengths. Needs matplotlib."""
    from matplotlib.figure import Figure

    chart = Figure(figsize=(10, 6.5), layout="constrained")
    rate, gap, inputs, outputs = chart.subplots(2, 2).ravel()
    counts = per_minute(traffic)
    rate.step(np.arange(len(counts)), counts / MINUTE, where="post")
    rate.set(title="arrivals", xlabel="minute", ylabel="requests a second", ylim=(0, None))
    roots = traffic.arrival[traffic.parent < 0]
    gaps = np.sort(np.diff(roots))
    gaps = gaps[gaps > 0]
    if len(gaps):
        beyond = 1 - np.arange(len(gaps)) / len(gaps)
        gap.loglog(gaps, beyond, label=f"CV {np.std(gaps) / gaps.mean():.2f}")
        gap.loglog(gaps, np.maximum(np.exp(-gaps / gaps.mean()), 1 / len(gaps)), ":", label="Poisson")
        gap.legend()
    gap.set(title="gaps between arrivals", xlabel="seconds", ylabel="share longer")
    for panel, values, title in (
        (inputs, traffic.input_tokens, "input"),
        (outputs, traffic.output_tokens, "output"),
    ):
        edges = np.geomspace(max(values.min(), 1), values.max() + 1, 41)
        panel.hist(values, edges)
        panel.axvline(np.median(values), ls="--", color="k", label=f"median {np.median(values):,.0f}")
        panel.set(title=f"{title} lengths", xlabel="tokens", ylabel="requests", xscale="log")
        panel.legend()
    chart.suptitle(f"{traffic.name}: {len(traffic):,} requests")
    return chart
