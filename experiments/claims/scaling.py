"""When would a reactive autoscaler notice? Signals against the moment at which users do.

One replica under load that rises steadily until it is far beyond what it can serve. Three signals that an overview of serving
engines names are watched as a monitor would (means of 10 s): KV use above 85 %, a queue, and time to first token near its
SLO. Each fires when it has held for 30 seconds. What counts is how long before or after the SLO is broken (p95 TTFT
of the requests of 30 s beyond it) that is, against the time that an instance takes to start: tens of seconds to
minutes.
"""

from __future__ import annotations

import numpy as np

from experiments.claims.base import Chart, Check, Result, Table, Verdict, per_cent
from experiments.claims.simulate import Run, simulate

NAME, TITLE = "scaling-signals", "Signals for scaling out, and how late they come"
WORKLOAD = """
name: a rising load
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: l40s}
engine: {preset: vllm}
traffic:
  max_tokens: exact
  synthetic:
    duration: 20min
    arrivals: {process: diurnal, rate: 4.0, amplitude: 0.95, period: 80min}
    input_tokens: {distribution: lognormal, mean: 1000, std: 900, high: 6000}
    output_tokens: {distribution: lognormal, mean: 250, std: 200, high: 1500}
load: {mode: open}
slo: {ttft_ms: 1000}
"""
SLO, WINDOW, HOLD = 1.0, 10.0, 30.0
STARTS = (30.0, 120.0)  # seconds that an instance takes to start: tens of seconds to minutes
RATES = (3.0, 4.0, 6.0)


def windows(one: Run) -> dict[str, np.ndarray]:
    """What a monitor sees, one value for each `WINDOW` seconds: KV use, waiting, p95 TTFT of those who got a first token."""
    line, r = one.data.timeline, one.data.requests
    end = float(r.sent.max())
    edges = np.arange(0.0, end + WINDOW, WINDOW)
    pool = one.data.info["kv_pool_tokens"]
    place = np.digitize(line.time + line.width / 2, edges) - 1
    first = np.digitize(r.first_token, edges) - 1

    def mean(values: np.ndarray) -> np.ndarray:
        return np.array([values[place == i].mean() if (place == i).any() else 0.0 for i in range(len(edges) - 1)])

    def tail(low: int, high: int) -> float:
        waits = (r.first_token - r.sent)[(first >= low) & (first <= high)]
        return float(np.percentile(waits, 95)) if len(waits) else 0.0

    return {
        "time": edges[1:],
        "kv": mean((line.kv_used + line.kv_internal + line.kv_reserved) / pool),
        "waiting": mean(line.waiting),
        "ttft": np.array([tail(i, i) for i in range(len(edges) - 1)]),
        "breach": np.array([tail(i - 2, i) for i in range(len(edges) - 1)]),
    }


def first_held(time: np.ndarray, fired: np.ndarray) -> float | None:
    """When something has been true for `HOLD` seconds for the first time."""
    need = int(HOLD / WINDOW)
    for i in range(need - 1, len(fired)):
        if fired[i - need + 1 : i + 1].all():
            return float(time[i])
    return None


def signals(seen: dict[str, np.ndarray]) -> dict[str, float | None]:
    """When each signal fires, and when the SLO is broken."""
    time = seen["time"]
    broken = np.flatnonzero(seen["breach"] > SLO)
    return {
        "KV use > 85 %": first_held(time, seen["kv"] > 0.85),
        "queue > 5": first_held(time, seen["waiting"] > 5),
        "TTFT > 80 % of SLO": first_held(time, seen["ttft"] > 0.8 * SLO),
        "SLO broken": float(time[broken[0]]) if len(broken) else None,
    }


def run(small: bool = False) -> Result:
    """The experiment; `small` looks at one steepness of the rise alone."""
    rates = RATES[1:2] if small else RATES
    runs = {rate: simulate(WORKLOAD, {"traffic.synthetic.arrivals.rate": rate}) for rate in rates}
    seen = {rate: windows(one) for rate, one in runs.items()}
    fired = {rate: signals(found) for rate, found in seen.items()}
    names = ("KV use > 85 %", "queue > 5", "TTFT > 80 % of SLO")
    rows = tuple(
        (f"to {rate * 1.95:.1f}/s", times["SLO broken"], *(_lead(times, name) for name in names))
        for rate, times in fired.items()
    )
    table = Table(
        "Seconds by which each signal leads the break of the SLO (negative: comes after it)",
        ("load rises", "SLO broken after s", *names), rows,
    )  # fmt: skip
    shown = seen[RATES[1]]
    chart = Chart(
        "A rising load on one L40S", "lines", tuple(float(t) for t in shown["time"]),
        {
            "KV use (%)": [float(v) * 100 for v in shown["kv"]],
            "waiting (requests)": [float(v) for v in shown["waiting"]],
            "p95 TTFT (% of SLO, at most 300)": [min(float(v) / SLO * 100, 300.0) for v in shown["breach"]],
        },
        "seconds", "", level=(100.0, "SLO"),
    )  # fmt: skip
    return Result(NAME, TITLE, (table,), (chart,), (_verdict(fired, names, seen),), small)


def _lead(times: dict, name: str) -> float | None:
    return None if times["SLO broken"] is None or times[name] is None else times["SLO broken"] - times[name]


def _verdict(fired: dict, names: tuple[str, ...], seen: dict) -> Verdict:
    broken = {rate: times for rate, times in fired.items() if times["SLO broken"] is not None}
    leads = {name: [_lead(times, name) for times in broken.values()] for name in names}
    known = [lead for each in leads.values() for lead in each if lead is not None]
    best = max(known, default=0.0)
    kv = [lead for lead in leads[names[0]] if lead is not None]
    full = [
        float(seen[rate]["kv"][list(seen[rate]["time"]).index(times["SLO broken"])]) for rate, times in broken.items()
    ]
    late = bool(broken) and all(lead is None or lead < STARTS[0] for each in leads.values() for lead in each)

    def words(values: list[float | None]) -> str:
        return (
            ", ".join("never fires" if value is None else f"{value:+.0f} s" for value in values) or "SLO never broken"
        )

    return Verdict(
        "scale out on KV use above 85 %, on queue length, on TTFT against its SLO; instances take tens of seconds "
        "to minutes to start, so that reacting is too late without headroom",
        "an overview of serving engines",
        (
            *(
                Check(f"{name} fires before the SLO is broken", "yes", words(values),
                      bool(values) and all(value is not None and value > 0 for value in values))
                for name, values in leads.items()
            ),
            Check(f"no signal leads by the {STARTS[0]:.0f} s that the quickest start takes", "yes",
                  f"at most {best:+.0f} s", late),
        ),
        f"Watched over {len(fired)} rises of the load; the SLO was broken in {len(broken)}, with the pool "
        f"{', '.join(per_cent(share) for share in full) or 'never'} full at that moment; KV use fired in {len(kv)}, "
        f"{words(kv)} before it (minus: after). A signal must hold for {HOLD:.0f} s before anybody acts on it, and "
        "users are hurt as soon as requests queue, so that watching the queue tells of damage done. Only headroom, "
        "a forecast of the load or lower thresholds help. One replica is simulated.",
        "when signals fire on one replica; there is no autoscaler to try",
    )  # fmt: skip
