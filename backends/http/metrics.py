"""What vLLM, SGLang, and our own server tell of themselves at /metrics, in Prometheus's text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import aiohttp

from backends.http.client import Client

EVERY = 1.0
"""Seconds between two looks: as often as a dashboard's."""
RUNNING, WAITING, KV_USE = "running", "waiting", "kv_use"
GAUGES = {
    RUNNING: ("vllm:num_requests_running", "sglang:num_running_reqs"),
    WAITING: ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    KV_USE: ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
}
"""Figures of a moment, and the names that servers have for them, the newest first."""
COUNTERS = {
    "preemptions": ("vllm:num_preemptions_total",),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "generation_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
}
"""Figures that only grow: what a run did is their difference. (In tokens; hits are those of the prefix cache.)"""
_POOL = ("vllm:cache_config_info", "sglang:max_total_num_tokens")
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(\{.*\})?\s+(\S+)")
_LABELS = 10_000  # characters of labels that are read: for more the search would take long
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(slots=True)
class Watch:
    """A server's own figures over a run.

    Attributes:
        times: seconds of every look.   seen: gauge → its values, one a look.
        first, last: counters at the first look and at the last.   pool_tokens: of KV; None where it does not say.
    """

    times: list[float] = field(default_factory=list)
    seen: dict[str, list[float]] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    pool_tokens: int | None = None

    def note(self, now: float, text: str) -> None:
        """A look at `now`."""
        values, pool = parse(text)
        gauges = {name: _first(values, names) for name, names in GAUGES.items()}
        self.times.append(now)
        for name, value in gauges.items():
            self.seen.setdefault(name, []).append(value)
        self.last = {name: _first(values, names) for name, names in COUNTERS.items()}
        self.first = self.first or self.last
        self.pool_tokens = self.pool_tokens or pool

    def gained(self) -> dict[str, int]:
        """What each counter gained."""
        return {
            name: round(value - self.first[name])
            for name, value in self.last.items()
            if math.isfinite(value) and value >= self.first[name]
        }


def _first(values: dict[str, float], names: tuple[str, ...]) -> float:
    return next((values[name] for name in names if name in values), float("nan"))


def parse(text: str) -> tuple[dict[str, float], int | None]:
    """Values by name, of all engines of a server together (shares in their mean), and the tokens that its KV pool has."""
    wanted = {name for names in (*GAUGES.values(), *COUNTERS.values(), _POOL) for name in names}
    found: dict[str, list[float]] = {}
    pool = 0
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or match.group(1) not in wanted:
            continue
        name, labels, value = match.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        if name == _POOL[0]:
            said = dict(_LABEL.findall((labels or "")[:_LABELS]))
            size, blocks = said.get("block_size", ""), said.get("num_gpu_blocks", "")
            pool += int(size) * int(blocks) if size.isdecimal() and blocks.isdecimal() else 0
        elif name == _POOL[1]:
            pool += int(number) if 0 < number < 1e12 else 0
        else:
            found.setdefault(name, []).append(number)
    shares = GAUGES[KV_USE]
    values = {name: sum(each) / (len(each) if name in shares else 1) for name, each in found.items()}
    return values, pool or None


async def look(client: Client) -> str | None:
    """The text of /metrics, if it is one of a server that we know."""
    try:
        status, said = await client.get("/metrics")
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    known = status == 200 and isinstance(said, str) and any(name in said for names in GAUGES.values() for name in names)
    return said if known else None
