"""Finding the operating point: throughput and latency as more requests are in flight.

A closed loop on the chat trace with Llama-3-8B on one H100. The knee is found by the project's stated rule
(`reports/knee.py`), not by eye; the same sweep says whether larger batches raise throughput and latency together.
"""

from __future__ import annotations

import itertools

from experiments.claims.base import Chart, Check, Result, Table, Verdict, more
from experiments.claims.simulate import Run, simulate

NAME, TITLE = "operating-point", "The operating point: just before the knee"
WORKLOAD = """
name: operating point
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
engine: {preset: vllm}
traffic:
  trace: {format: twinserve, path: chat.jsonl.gz, limit: 3000}
load: {mode: closed, concurrency: 1}
slo: {ttft_ms: 500, tpot_ms: 50}
"""
LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def run(small: bool = False) -> Result:
    """The experiment; `small` stops at 400 requests and 128 in flight."""
    loads, limit = (LOADS[:8], 400) if small else (LOADS, 3000)
    runs = {n: simulate(WORKLOAD, {"load.concurrency": n, "traffic.trace.limit": max(limit, 3 * n)}) for n in loads}
    rates = [_rate(one) for one in runs.values()]
    waits = [one["p95_e2el_ms"] for one in runs.values()]
    from reports.knee import find_knee

    knee = find_knee(loads, rates, waits)
    table = Table(
        "Closed loop, chat, Llama-3-8B on one H100",
        ("in flight", "output tokens/s", "p95 TTFT ms", "p50 TPOT ms", "p95 E2E ms", "good requests/s"),
        tuple(
            (n, _rate(one), one["p95_ttft_ms"], one["median_tpot_ms"], one["p95_e2el_ms"], one["request_goodput"])
            for n, one in runs.items()
        ),
    )  # fmt: skip
    marks = {float(knee.load): "knee"} if knee else {}
    charts = (
        Chart("Throughput", "lines", loads, {"output tokens/s": rates}, "requests in flight", "tokens/s", log_x=True,
              marks=marks),
        Chart("Latency", "lines", loads, {
            "p95 E2E": waits, "p95 TTFT": [one["p95_ttft_ms"] for one in runs.values()],
            "p50 TPOT": [one["median_tpot_ms"] for one in runs.values()],
        }, "requests in flight", "ms", log_x=True, log_y=True, marks=marks),
    )  # fmt: skip
    return Result(
        NAME, TITLE, (table,), charts, (_beyond(runs, loads, rates, waits, knee), _together(runs, loads, rates)), small
    )


def _rate(one: Run) -> float:
    """Tokens a second while the loop was full."""
    return one["steady_output_throughput"] or one["output_throughput"]


def _beyond(runs: dict, loads: tuple, rates: list, waits: list, knee: object) -> Verdict:
    place = loads.index(int(knee.load)) if knee else len(loads) - 1
    gain, pain = rates[-1] / rates[place], waits[-1] / waits[place]
    more_load = loads[-1] / loads[place]
    good = [one["request_goodput"] for one in runs.values()]
    best = loads[good.index(max(good))]
    return Verdict(
        "past the knee more concurrency only adds latency; the operating point is just before it",
        "an overview of serving engines",
        (
            Check("there is a knee in the range", "yes", str(loads[place]) if knee else "no", knee is not None),
            Check("beyond it throughput gains a third at most", "little", more(gain), gain <= 1.34),
            Check("beyond it latency grows faster than throughput", "yes", f"{pain:.3g}x against {gain:.3g}x", pain > gain),
            Check("most good requests a second (TTFT 500 ms, TPOT 50 ms)", "at the knee or one step beside it", str(best),
                  abs(loads.index(best) - place) <= 1),
        ),
        f"From {loads[place]} to {loads[-1]} in flight ({more_load:.0f} times the load) throughput changes by "
        f"{more(gain)} and p95 latency by {more(pain)}. Each request's share of a step goes on falling, but "
        "attention reads each one's own cache, and when the pool is full requests are preempted"
        f"{_times(runs[loads[-1]], loads[-1])} or wait. With an SLO the best point is the one "
        f"with most requests inside it, {best} here, whatever the curve looks like.",
    )  # fmt: skip


def _together(runs: dict, loads: tuple, rates: list) -> Verdict:
    gaps = [one["median_tpot_ms"] for one in runs.values()]
    up = all(a < b for a, b in itertools.pairwise(rates))
    slower = all(a < b for a, b in itertools.pairwise(gaps))
    top = rates.index(max(rates))
    return Verdict(
        "larger batches raise throughput and latency together",
        "an overview of serving engines",
        (
            Check("tokens a second rise at every step", "yes", f"{rates[0]:,.0f} to {rates[-1]:,.0f}", up),
            Check("TPOT rises at every step", "yes", f"{gaps[0]:.2f} to {gaps[-1]:.1f} ms", slower),
        ),
        f"{loads[-1]} times as many in flight give {rates[-1] / rates[0]:.0f} times the tokens at "
        f"{gaps[-1] / gaps[0]:.1f} times the gap between them. Up to {loads[3]} the bargain is good: "
        f"{rates[3] / rates[0]:.1f} times the tokens for {more(gaps[3] / gaps[0])} in TPOT. Throughput is highest "
        f"at {loads[top]}{_pool(runs[loads[-1]], loads[-1])}.",
    )  # fmt: skip


def _preempted(one: Run) -> int | None:
    """How often requests were preempted; None where a server does not tell."""
    if one.data.client is None:
        return one["preemptions"]
    return one.data.host["client"].get("server_counters", {}).get("preemptions")


def _times(one: Run, load: int) -> str:
    times = _preempted(one)
    return "" if times is None else f" ({times:,} times at {load})"


def _pool(one: Run, load: int) -> str:
    """What binds at the highest load, as far as it is known."""
    used, times = one["kv_used_peak"], _preempted(one)
    if used is None or times is None:
        return ""
    return f"; at {load} the pool is {used * 100:.0f} % used at its peak and {times:,} preemptions undo work"
