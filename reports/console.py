"""A run on the terminal: the table and what to make of it. (What comes before the run is in `plan`.)

Everything printed of ours is ASCII and everything from outside goes through `wording.clean`, so that a C locale, a
pipe, a narrow window or a hostile name changes nothing but looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.client_facts import client_rows
from reports.gate import GateResult
from reports.metrics import notices
from reports.pools import pool_rows
from reports.run_data import RunData
from reports.scaling import scaling_rows
from reports.speculation import speculation_rows
from reports.uncertainty import interval_of, told
from reports.wording import alike, between, clean, encodable, number, seconds, setting, share, simulator_speed

_REASONS = 5  # of each outcome, on the terminal
_COLOUR = {"stable": "green", "backlogged": "yellow", "overloaded": "red", "unknown": "red"}


def print_summary(
    data: RunData, summary: dict, console: Console, *, out: Path | None = None, knee: str | None = None
) -> None:
    """The table of a finished run, a sentence on saturation (and the knee), warnings, and where the files are."""
    _print(console, "")
    console.print(_table(data, summary, console))
    console.print(_latencies(summary, console))
    _print(console, told(summary), "dim")
    verdict = summary["saturation"]
    _print(console, verdict["sentence"], _COLOUR[verdict["label"]])
    if knee:
        _print(console, f"Knee: {knee}")
    _print(console, _speed(data, summary), "dim")
    for warning in [*dict.fromkeys(data.warnings), *notices(summary)]:
        _print(console, f"warning: {clean(warning)}", "yellow")
    if not data.info.get("complete", True):
        _print(console, f"warning: the run was cut short at {seconds(data.info['end'])}", "yellow")
    if out is not None:
        _print(console, f"Files: {out}   (open {Path(out) / 'report.html'})")


def print_gate(result: GateResult, console: Console) -> None:
    """The gate's table and verdict."""
    table = Table()
    for name in ("metric", "baseline", "now", "change", "allowed", "verdict"):
        table.add_column(name, justify="left" if name in ("metric", "verdict") else "right", overflow="fold")
    for row, check in zip(result.rows(), result.checks, strict=True):
        style = "" if check.passed else "red"
        table.add_row(*(Text(_shown(cell, console), style) for cell in row))
    console.print(table)
    for remark in result.remarks():
        _print(console, remark, "green" if result.passed else "red")


def _table(data: RunData, s: dict, console: Console) -> Table:
    table = Table(
        title=Text(_shown(clean(data.info.get("name", "run"), 80), console), "bold"),
        show_header=False,
        title_justify="left",
    )
    table.add_column("metric", overflow="fold")
    table.add_column("value", justify="right", overflow="fold")
    sections = [[_cells(s, *figure) for figure in section] for section in _sections(data, s)]
    wide = console.width >= 60 and any(cells[2] for section in sections for cells in section)
    if wide:
        table.add_column("range", style="dim", overflow="fold")
    for section in sections:
        table.add_section()
        for cells in section:
            table.add_row(*(Text(_shown(cell, console)) for cell in cells[: 3 if wide else 2]))
    return table


def _cells(s: dict, name: str, value: str, key: str | None = None, show: Callable = number) -> tuple[str, str, str]:
    """A figure with its range, where it has one that says more."""
    return name, value, between(interval_of(s, key) if key else None, value, show)


def _latencies(s: dict, console: Console) -> Table:
    table = Table()
    table.add_column("ms", overflow="fold")
    least = 100 if told(s) else 60
    stats = ("mean", "median", "p90", "p95", "p99") if console.width >= least else ("mean", "median", "p99")
    for stat in stats:
        table.add_column(stat, justify="right", overflow="fold")
    ranges = bool(told(s))
    for title, name in (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E latency", "e2el")):
        table.add_row(title, *(number(s[f"{stat}_{name}_ms"]) for stat in stats))
        if ranges:
            table.add_row("", *(Text(between(interval_of(s, f"{stat}_{name}_ms")), "dim") for stat in stats))
    return table


def _sections(data: RunData, s: dict) -> Iterable[list[tuple]]:
    """(name, value) of every figure, its key where it may have a range, and how the ends of that are written."""
    yield _counts(s)
    yield [
        ("Benchmark duration", seconds(s["duration"])),
        ("Total input tokens", number(s["total_input_tokens"])),
        ("Total generated tokens", number(s["total_output_tokens"])),
        ("Request throughput (req/s)", number(s["request_throughput"]), "request_throughput"),
        ("Output token throughput (tok/s)", number(s["output_throughput"]), "output_throughput"),
        ("  while steady (tok/s)", number(s["steady_output_throughput"])),
        ("  peak second (tok/s)", number(s["max_output_tokens_per_s"])),
        ("Total token throughput (tok/s)", number(s["total_token_throughput"]), "total_token_throughput"),
        (
            "Concurrency, mean / peak",
            f"{number(s['mean_concurrency'])} / {number(s['max_concurrent_requests'])}",
        ),
    ]
    if s["slo_attainment"] is not None:
        wanted = ", ".join(f"{key[:-3].upper()} {setting(v)} ms" for key, v in data.info["slo"].items())
        yield [
            (f"Met the SLO ({wanted})", share(s["slo_attainment"]), "slo_attainment", share),
            ("Goodput (req/s)", number(s["request_goodput"]), "request_goodput"),
        ]
    yield _engine(s)
    if drafts := speculation_rows(s):
        yield drafts
    if s.get("replicas"):
        yield _replicas(s)
    if s.get("scaling"):
        yield scaling_rows(s)
    if s.get("pools"):
        yield pool_rows(s)
    if data.host.get("client"):
        yield client_rows(data.host["client"])


def _counts(s: dict) -> list[tuple[str, str]]:
    rows = [("Successful requests", number(s["completed"]))]
    for status in ("failed", "refused", "cancelled", "unfinished"):
        if s[status] or status == "failed":
            rows.append((f"{status.capitalize()} requests", number(s[status])))
        rows += [
            (f"  {reason}", number(count)) for reason, count in alike(s.get(f"{status}_reasons", {}), 60, _REASONS)
        ]
    return rows


def _engine(s: dict) -> list[tuple[str, str]]:
    parts = [s[f"mean_{part}_ms"] for part in ("front_end", "queue", "prefill")]
    rows = []
    if any(part is not None for part in parts):
        rows.append(("TTFT spent in front end / queue / prefill (ms)", " / ".join(number(part) for part in parts)))
    if s["engine_steps"]:
        rows.append(("Preemptions", number(s["preemptions"])))
        rows.append(("Recomputed tokens", number(s["recomputed_tokens"])))
        rows.append(("Prefix hit rate", share(s["prefix_hit_rate"])))
    if s["kv_used_mean"] is not None:
        rows.append(("KV pool used, mean / peak", f"{share(s['kv_used_mean'])} / {share(s['kv_used_peak'])}"))
        wasted = [s[f"kv_{kind}_mean"] for kind in ("reserved", "internal", "external")]
        if s["engine_steps"] and None not in wasted:
            rows.append(("KV pool reserved or wasted, mean", share(sum(wasted))))
    return rows


def _replicas(s: dict) -> list[tuple[str, str]]:
    """How alike the replicas were."""
    rows = [("Tokens of the busiest replica over the mean", number(s["imbalance"]))]
    for title, key, show in (
        ("Requests, least / most", "requests", number), ("Prefix hit rate, least / most", "prefix_hit_rate", share),
        ("In flight, least / most", "mean_in_flight", number),
    ):  # fmt: skip
        known = [each[key] for each in s["replicas"] if each[key] is not None]
        rows.append((f"  {title}", f"{show(min(known))} / {show(max(known))}" if known else "n/a"))
    return rows


def _speed(data: RunData, s: dict) -> str:
    parts = []
    if s["engine_steps"]:
        parts.append(f"{number(s['engine_steps'])} engine steps, mean batch {number(s['mean_batch'])}")
    if s["arrival_rate"] is not None:
        parts.append(f"requests arrived at {number(s['arrival_rate'])}/s")
    speed = simulator_speed(s, data.host, float(data.info["end"]))
    if speed["wall_seconds"]:
        made = f"made in {seconds(speed['wall_seconds'])}"
        if data.info.get("backend") == "sim":
            made += (
                f" ({number(speed['times_real_time'])} times real time, {number(speed['requests_per_s'])} requests/s, "
                f"{number(speed['steps_per_s'])} steps/s)"
            )
        parts.append(made)
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "." if text else ""


def _print(console: Console, text: str, style: str = "") -> None:
    if text or not style:
        console.print(Text(_shown(text, console), style), highlight=False, soft_wrap=not console.is_terminal)


def _shown(text: str, console: Console) -> str:
    return encodable(text, console.encoding)
