"""The counts in Prometheus's format, under the names that vLLM gave them, so that dashboards made for vLLM read ours.

Names and meanings follow `vllm/v1/metrics/loggers.py`; what vLLM renamed is told under both names. What vLLM does not have
begins with `twinserve_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from backends.server.meter import Histogram, Meter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABELS = ("model_name", "engine")

GAUGES: dict[str, tuple[str, Callable[[Meter], float]]] = {
    "vllm:num_requests_running": ("Requests with memory on the device.", lambda m: m.running),
    "vllm:num_requests_waiting": ("Requests that wait for memory or a seat.", lambda m: m.waiting),
    "vllm:num_requests_swapped": ("Requests whose KV is on the host.", lambda m: m.swapped),
    "vllm:kv_cache_usage_perc": ("Share of the KV pool in use; 1 is full.", lambda m: m.kv_use),
    "vllm:gpu_cache_usage_perc": ("As vllm:kv_cache_usage_perc, its older name.", lambda m: m.kv_use),
}
COUNTERS: dict[str, tuple[str, Callable[[Meter], float]]] = {
    "vllm:prompt_tokens": ("Prompt tokens of requests that had their first token.", lambda m: m.prompt_tokens),
    "vllm:generation_tokens": ("Tokens of answers.", lambda m: m.generation_tokens),
    "vllm:num_preemptions": ("Requests that lost their memory for a while.", lambda m: m.tally.preemptions),
    "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", lambda m: m.prefix_queries),
    "vllm:prefix_cache_hits": ("Prompt tokens found there.", lambda m: m.prefix_hits),
    "vllm:gpu_prefix_cache_queries": ("As vllm:prefix_cache_queries, its older name.", lambda m: m.prefix_queries),
    "vllm:gpu_prefix_cache_hits": ("As vllm:prefix_cache_hits, its older name.", lambda m: m.prefix_hits),
    "twinserve_engine_steps": ("Steps of the engine.", lambda m: m.tally.steps),
    "twinserve_requests_refused": ("Requests that could never be served.", lambda m: m.refusals),
}
HISTOGRAMS: dict[str, tuple[str, Callable[[Meter], Histogram]]] = {
    "vllm:time_to_first_token_seconds": ("From a request's arrival to its first token.", lambda m: m.ttft),
    "vllm:inter_token_latency_seconds": ("Between two tokens of an answer.", lambda m: m.gaps),
    "vllm:time_per_output_token_seconds": ("As vllm:inter_token_latency_seconds, its older name.", lambda m: m.gaps),
    "vllm:request_time_per_output_token_seconds": (
        "Mean time of a request's tokens after the first.",
        lambda m: m.per_token,
    ),
    "vllm:e2e_request_latency_seconds": ("From a request's arrival to its last token.", lambda m: m.e2e),
    "vllm:request_queue_time_seconds": ("Waiting for memory.", lambda m: m.queue),
    "vllm:request_prefill_time_seconds": ("From memory to the first token.", lambda m: m.prefill),
    "vllm:request_decode_time_seconds": ("From the first token to the last.", lambda m: m.decode),
    "vllm:request_inference_time_seconds": ("From memory to the last token.", lambda m: m.inference),
    "vllm:request_prompt_tokens": ("Prompt tokens of finished requests.", lambda m: m.prompts),
    "vllm:request_generation_tokens": ("Answer tokens of finished requests.", lambda m: m.answers),
    "vllm:request_params_max_tokens": ("max_tokens as declared.", lambda m: m.declared),
    "vllm:request_max_num_generation_tokens": (
        "As vllm:request_params_max_tokens: n is always 1.",
        lambda m: m.declared,
    ),
    "vllm:iteration_tokens_total": ("Tokens of a step, prompts and answers.", lambda m: m.step_tokens),
    "twinserve_step_lateness_seconds": ("How late simulated steps ended, by the wall clock.", lambda m: m.lateness),
}


class MeterCollector(Collector):
    """Tells a meter's counts to whoever scrapes.

    Args:
        meter: the counts.
        model: the model's name, a label of everything.
        speed: seconds of the engine a second of the wall.
        block: tokens a block of KV.
    """

    def __init__(self, meter: Meter, model: str, speed: float = 1.0, block: int = 1) -> None:
        self._meter, self._labels, self._speed, self._block = meter, (model, "0"), speed, block

    def collect(self) -> Iterator[Metric]:
        """Everything, as it stands."""
        meter, labels = self._meter, self._labels
        for name, (text, value) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            gauge.add_metric(labels, value(meter))
            yield gauge
        for name, (text, value) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            counter.add_metric(labels, value(meter))
            yield counter
        for name, (text, value) in HISTOGRAMS.items():
            yield self._histogram(name, text, value(meter))
        yield from self._others()

    def _others(self) -> Iterator[Metric]:
        """What has labels of its own."""
        meter, labels = self._meter, self._labels
        success = CounterMetricFamily(
            "vllm:request_success", "Requests that are over, by reason.", labels=(*_LABELS, "finished_reason")
        )
        for reason, times in meter.finished_by.items():
            success.add_metric((*labels, reason), times)
        yield success
        busy = CounterMetricFamily("twinserve_engine_busy_seconds", "Seconds with a step under way.", labels=_LABELS)
        busy.add_metric(labels, meter.tally.busy / self._speed)
        yield busy
        cache = GaugeMetricFamily(
            "vllm:cache_config_info", "The KV pool.", labels=("block_size", "engine", "num_gpu_blocks")
        )
        cache.add_metric((str(self._block), "0", str(meter.capacity // self._block)), 1)
        yield cache
        http = CounterMetricFamily("http_requests", "Responses.", labels=("handler", "method", "status"))
        for key, times in list(meter.http.items()):
            http.add_metric(key, times)
        yield http

    def _histogram(self, name: str, text: str, values: Histogram) -> Metric:
        counts = list(values.counts)
        total, buckets = 0, []
        for bound, count in zip((*values.bounds, "+Inf"), counts, strict=True):
            total += count
            buckets.append((bound if bound == "+Inf" else str(float(bound)), total))
        family = HistogramMetricFamily(name, text, labels=_LABELS)
        family.add_metric(self._labels, buckets=buckets, sum_value=values.sum)
        return family


def registry_of(collector: Collector) -> CollectorRegistry:
    """A registry with this collector alone."""
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


def exposed(registry: CollectorRegistry) -> bytes:
    """The body of a scrape, in the plain text format.

    Not in OpenMetrics, whatever a scraper would rather have: there prometheus_client writes `vllm_` for `vllm:`.
    """
    return generate_latest(registry)
