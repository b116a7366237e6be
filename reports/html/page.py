"""The page of one run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.client_facts import client_rows, more_client_rows
from reports.fingerprint import leaves
from reports.html.charts import distribution
from reports.html.glossary import GLOSSARY
from reports.html.template import render
from reports.html.timeline_figures import timeline_figures
from reports.kv_use import KINDS
from reports.metrics import distributions, notices
from reports.pools import pool_rows
from reports.run_data import RunData
from reports.scaling import scaling_rows
from reports.speculation import speculation_rows
from reports.uncertainty import interval_of, told
from reports.wording import alike, between, clean, number, seconds, setting, share, simulator_speed, size

LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E latency"))
STATS = ("mean", "std", "p50", "p90", "p95", "p99")
_REASONS = 15  # of each outcome
REPLICA_COLUMNS = (
    ("requests", "requests", number), ("prompt tokens", "input_tokens", number), ("output tokens", "output_tokens", number),
    ("prompt from cache", "prefix_hit_rate", share), ("in flight, mean", "mean_in_flight", number),
    ("TTFT median, ms", "median_ttft_ms", number), ("TTFT p95, ms", "p95_ttft_ms", number),
)  # fmt: skip
SOURCES = ("user", "preset", "derived")


@dataclass(frozen=True, slots=True)
class Card:
    """One headline number: a label, the figure, its unit, a line below, and the range that it may lie in."""

    label: str
    value: str
    unit: str = ""
    below: str = ""
    range: str = ""


def render_report(data: RunData, summary: dict) -> str:
    """One self-contained HTML page: headline, latencies, the run over time, memory, configuration, glossary.

    Args:
        summary: what `metrics.summarize` gave for `data`.

    Returns:
        The page. Its size depends on neither requests nor tokens; names from outside are escaped.
    """
    found = distributions(data)
    shades = {"ttft": 0, "tpot": 2, "itl": 5, "e2el": 3}
    latency = [
        distribution(key, title, found[key], shade=shades[key], weight="gaps" if key == "itl" else "requests")
        for key, title in LATENCIES
    ]
    timeline = timeline_figures(data)
    facts, rows = data.host.get("client"), _latency_rows(summary)
    figures = {f.key: f.data for f in [*latency, *timeline.values()] if f.data}
    return render(
        "report.html",
        name=clean(data.info.get("name") or "run", 200),
        facts=_facts(data),
        verdict=summary["saturation"],
        ranges=told(summary),
        cut_short=None if data.info.get("complete", True) else seconds(data.info["end"]),
        warnings=[clean(w) for w in dict.fromkeys([*data.warnings, *notices(summary)])],
        cards=_cards(summary),
        latency_rows=rows,
        dashes=any("–" in row["figures"] for row in rows),
        stats=STATS,
        parts=_ttft_parts(summary),
        latency=latency,
        timeline=timeline,
        kv_rows=_kv_rows(summary),
        kv_bytes=summary["kv_used_mean_bytes"] is not None,
        memory=_memory(summary, data),
        client=client_rows(facts) if facts else [],
        more_client=more_client_rows(facts) if facts else [],
        imbalance=summary.get("imbalance"),
        replica_columns=[title for title, _, _ in REPLICA_COLUMNS],
        replica_rows=[[show(each[key]) for _, key, show in REPLICA_COLUMNS] for each in summary.get("replicas", ())],
        pool_rows=pool_rows(summary) if summary.get("pools") else [],
        scaling_rows=scaling_rows(summary) if summary.get("scaling") else [],
        outcomes=_outcomes(summary),
        config=[(key, setting(value), source) for key, value, source in leaves(data.config)],
        sources=SOURCES,
        provenance=[{k: setting(p.get(k)) for k in ("what", "value", "source")} for p in data.provenance],
        notes=[clean(n) for n in data.notes],
        host=_host(data, summary),
        glossary=GLOSSARY,
        figures=figures,
    )


def _facts(data: RunData) -> list[tuple[str, str]]:
    """What was run, for the line under the title."""
    settings = {key: value for key, value, _ in leaves(data.config)}
    load = data.info["load"]
    mode = str(load.get("mode", ""))
    if mode == "closed" and load.get("concurrency"):
        mode = f"closed loop, {load['concurrency']} clients"
    elif mode == "offline":
        mode = "offline, all at once"
    elif mode == "open":
        mode = f"open loop, {number(load['rate'])}/s" if load.get("rate") else "open loop"
        if load.get("max_concurrency"):
            mode += f", at most {number(load['max_concurrency'])} in flight"
    pairs = (
        ("model", settings.get("model") or data.info.get("model")),
        ("backend", data.info.get("backend")),
        ("server", settings.get("backend.base_url")),
        ("version", (data.host.get("server") or {}).get("version")),
        ("gpu", settings.get("backend.gpu")),
        ("gpus", data.info.get("gpus")),
        ("preset", settings.get("engine.preset")),
        ("weights", settings.get("engine.quantization")),
        ("load", mode),
        ("seed", data.info.get("seed")),
    )
    return [(label, setting(value, 80)) for label, value in pairs if value not in (None, "")]


def _cards(s: dict) -> list[Card]:
    def rate(label: str, key: str, unit: str, below: str) -> Card:
        value = number(s[key])
        return Card(label, value, unit, below, between(interval_of(s, key), value))

    def latency(label: str, name: str) -> Card:
        below = ", ".join(f"{stat} {number(s[f'{stat}_{name}_ms'])}" for stat in ("p95", "p99"))
        return rate(label, f"median_{name}_ms", "ms", below)

    steady, peak = number(s["steady_output_throughput"]), number(s["max_output_tokens_per_s"])
    cards = [
        rate("Output throughput", "output_throughput", "tokens/s", f"steady {steady}, peak second {peak}"),
        rate("Requests", "request_throughput", "requests/s", f"{s['completed']:,} of {s['requests']:,} finished"),
        *(latency(f"{title}, median", name) for name, title in LATENCIES if name != "itl"),
        Card("Concurrency, mean", number(s["mean_concurrency"]), "requests",
             f"peak {number(s['max_concurrent_requests'])}"),
    ]  # fmt: skip
    if s["slo_attainment"] is not None:
        met = share(s["slo_attainment"])
        ends = between(interval_of(s, "slo_attainment"), met, share)
        cards.append(Card("SLO met", met, "", f"goodput {number(s['request_goodput'])} requests/s", ends))
    if s["kv_used_mean"] is not None:
        cards.append(Card("KV cache used", share(s["kv_used_mean"]), "", f"peak {share(s['kv_used_peak'])}"))
    return cards


def _latency_rows(s: dict) -> list[dict]:
    names = [*LATENCIES, ("front_end", "· front end"), ("queue", "· queue"), ("prefill", "· prefill")]
    # the three parts stand below the TTFT that they add up to
    names = [names[0], *names[4:], *names[1:4]]
    if s["mean_e2el_from_schedule_ms"] not in (None, s["mean_e2el_ms"]):
        names.append(("e2el_from_schedule", "E2E from schedule"))
    rows = []
    for key, title in names:
        count = s["latency_counts"].get(key, 0)
        if title.startswith("·") and not count and s["completed"]:
            continue  # nobody saw it
        figures = {stat: number(s[f"{stat}_{key}_ms"], missing="–") for stat in STATS}
        rows.append(
            {
                "title": title.lstrip("· "),
                "part": title.startswith("·"),
                "figures": list(figures.values()),
                "ranges": [between(interval_of(s, f"{stat}_{key}_ms"), figures[stat]) for stat in STATS],
                "count": count,
            }
        )
    return rows


def _ttft_parts(s: dict) -> list[tuple[str, str, float]]:
    """(name, milliseconds, per cent of TTFT) of what a mean TTFT is spent on; empty where unknown."""
    parts = [(label, s[f"mean_{key}_ms"]) for key, label in
             (("front_end", "front end"), ("queue", "queue"), ("prefill", "prefill"))]  # fmt: skip
    if s.get("pools") and s["mean_ttft_ms"] is not None and None not in [value for _, value in parts]:
        parts.append(("on to a decode engine", s["mean_ttft_ms"] - sum(value for _, value in parts)))
    if any(value is None for _, value in parts):
        return []
    total = sum(max(value, 0.0) for _, value in parts)
    return [(label, number(value, "ms"), round(100 * max(value, 0.0) / total, 2)) for label, value in parts if total]


def _kv_rows(s: dict) -> list[tuple[str, str, str, str]]:
    if s["kv_used_mean"] is None:
        return []
    words = {"cached": "cached prefix", "internal": "internal waste", "external": "external waste"}
    return [
        (words.get(kind, kind), share(s[f"kv_{kind}_mean"]), size(s[f"kv_{kind}_mean_bytes"], "–"),
         share(s[f"kv_{kind}_peak"]))
        for kind in KINDS if s[f"kv_{kind}_mean"] is not None
    ]  # fmt: skip


def _memory(s: dict, data: RunData) -> list[tuple[str, str]]:
    law = s["littles_law"]["error"]
    inside = [
        ("Preemptions", f"{number(s['preemptions'])}, in {number(s['preempted_requests'])} requests"),
        ("Recomputed tokens", number(s["recomputed_tokens"])),
    ]
    rows = [
        *(inside if s["engine_steps"] else [(name, "n/a") for name, _ in inside]),
        ("Prompt tokens from cache", f"{number(s['cached_tokens'])} ({share(s['prefix_hit_rate'])})"),
        ("Engine steps", number(s["engine_steps"] or None)),
        ("Mean batch", number(s["mean_batch"], "sequences decoding per step")),
        ("Tokens per step", number(s["mean_tokens_per_step"])),
        *speculation_rows(s),
        ("Engine busy", share(s["busy_share"] if s["engine_steps"] else None)),
        ("Little's law", "not checked" if law is None else f"holds within {share(law)}"),
    ]
    line, steps = data.timeline, s["engine_steps"]
    if steps and np.isfinite(line.device_seconds).any():
        spent = [number(1e3 * float(each.sum()) / steps, "ms") for each in (line.device_seconds, line.host_seconds)]
        rows.insert(-1, ("Mean step", f"device {spent[0]}, host {spent[1]}"))
    return rows


def _outcomes(s: dict) -> list[tuple[str, str, str, bool]]:
    """(outcome, count, share of all, whether it is a reason under the one above)."""
    total = s["requests"] or 1
    rows = [("finished", number(s["completed"]), share(s["completed"] / total), False)]
    for status in ("failed", "refused", "cancelled", "unfinished"):
        rows.append((status, number(s[status]), share(s[status] / total), False))
        for reason, count in alike(s.get(f"{status}_reasons", {}), 200, _REASONS):
            rows.append((reason, number(count), share(count / total), True))
    return rows


def _host(data: RunData, s: dict) -> list[tuple[str, str]]:
    speed = simulator_speed(s, data.host, float(data.info["end"]))
    rows = [(clean(key, 60).replace("_", " "), setting(value)) for key, value, _ in leaves(data.host)
            if not key.startswith("client.") or key == "client.prompt_seed"]  # fmt: skip
    if speed["wall_seconds"] and data.info.get("backend") == "sim":
        rows += [
            ("simulator speed", f"{number(speed['times_real_time'])} times real time"),
            (
                "requests simulated",
                f"{number(speed['requests_per_s'])}/s, while {number(s['arrival_rate'])}/s arrived",
            ),
            ("steps simulated", f"{number(speed['steps_per_s'])}/s"),
        ]
    return rows
