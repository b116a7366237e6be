"""What a metric's name means: a quantity, a statistic of it, and whether it is per GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workloads.errors import Place, unknown_name

THROUGHPUTS = ("output_tokens_per_s", "total_tokens_per_s", "input_tokens_per_s", "request_per_s")
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_latency_ms")
SINGLE = ("kv_capacity_tokens", "speedup_vs_fp16", "makespan_s")
QUANTITIES = (*THROUGHPUTS, *LATENCIES, *SINGLE)
ALIASES = {"requests_per_s": "request_per_s", "e2e_ms": "e2e_latency_ms", "latency_ms": "e2e_latency_ms"}
_SUFFIX = re.compile(r"_(mean|p\d{2}(?:\.\d+)?|median)$")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Attributes:
        quantity: one of `QUANTITIES`. statistic: `mean` or a percentile such as `p99`. per_gpu: divided by the GPUs.
    """

    quantity: str
    statistic: str = "mean"
    per_gpu: bool = False

    @property
    def key(self) -> str:
        """Its key among the figures of a point."""
        return f"{self.quantity}_{self.statistic}" if self.quantity in LATENCIES else self.quantity

    @property
    def is_throughput(self) -> bool:
        """More is better."""
        return self.quantity in THROUGHPUTS


def parse_metric(name: str, place: Place | None = None) -> Metric:
    """The meaning of a metric's name.

    Raises:
        InputError: unknown, with the nearest names.
    """
    base, statistic, per_gpu = name, "mean", False
    if base.endswith("_per_gpu"):
        base, per_gpu = base.removesuffix("_per_gpu"), True
    if found := _SUFFIX.search(base):
        base, statistic = base[: found.start()], found.group(1).replace("median", "p50")
    base = ALIASES.get(base, base)
    latency = base in LATENCIES
    if base not in QUANTITIES or (per_gpu and base not in THROUGHPUTS) or (statistic != "mean" and not latency):
        raise unknown_name("metric", name, QUANTITIES, place=place)
    return Metric(base, statistic, per_gpu)
