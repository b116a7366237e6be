"""What `/metrics` tells: vLLM's names, histograms that add up, and a dashboard that asks for nothing else."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="the extra server is not installed")

from prometheus_client.parser import text_string_to_metric_families
from serving_harness import made, running

from backends.server import dashboard
from backends.server.exposition import MeterCollector, exposed, registry_of
from backends.server.meter import Histogram, Meter

# What vLLM's own dashboard reads (examples/observability/prometheus_grafana/grafana.json), and names that it had before.
VLLM = {
    "vllm:e2e_request_latency_seconds", "vllm:generation_tokens", "vllm:inter_token_latency_seconds",
    "vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:prompt_tokens",
    "vllm:request_decode_time_seconds", "vllm:request_generation_tokens", "vllm:request_max_num_generation_tokens",
    "vllm:request_prefill_time_seconds", "vllm:request_prompt_tokens", "vllm:request_queue_time_seconds",
    "vllm:request_success", "vllm:time_to_first_token_seconds", "vllm:gpu_cache_usage_perc",
    "vllm:time_per_output_token_seconds", "vllm:num_preemptions", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits",
    "vllm:request_time_per_output_token_seconds", "vllm:request_inference_time_seconds", "vllm:iteration_tokens_total",
    "vllm:cache_config_info", "vllm:num_requests_swapped", "http_requests",
}  # fmt: skip


def told(meter: Meter, speed: float = 1.0) -> dict[str, object]:
    """Families by name, of a meter."""
    body = exposed(registry_of(MeterCollector(meter, "a model", speed, 16)))
    return {family.name: family for family in text_string_to_metric_families(body.decode())}


def test_vllms_names_are_all_there() -> None:
    families = told(Meter(8192, 16_000, True))
    assert set(families) >= VLLM
    ours = {name for name in families if not name.startswith("vllm:")} - {"http_requests"}
    assert all(name.startswith("twinserve_") for name in ours)


def test_a_histogram_adds_up() -> None:
    meter = Meter(8192, 16_000, True)
    for value in (0.001, 0.0011, 0.3, 1e6):
        meter.ttft.add(value)
    meter.step(7, {0.02: 3, 0.5: 4})
    families = told(meter)
    for name, count, total in (
        ("vllm:time_to_first_token_seconds", 4, 1_000_000.3021),
        ("vllm:inter_token_latency_seconds", 7, 2.06),
    ):
        samples = families[name].samples
        buckets = [sample.value for sample in samples if sample.name.endswith("_bucket")]
        assert buckets == sorted(buckets) and buckets[-1] == count
        (told_count,) = [sample.value for sample in samples if sample.name.endswith("_count")]
        (told_sum,) = [sample.value for sample in samples if sample.name.endswith("_sum")]
        assert told_count == count and told_sum == pytest.approx(total)
    at = {sample.labels["le"]: sample.value for sample in families["vllm:time_to_first_token_seconds"].samples
          if sample.name.endswith("_bucket")}  # fmt: skip
    assert at["0.001"] == 1 and at["0.002"] == 2 and at["2560.0"] == 3 and at["+Inf"] == 4


def test_a_bound_is_part_of_its_bucket() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 2, 2.5):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1] and histogram.sum == 7.5


def test_names_are_the_same_for_those_who_would_rather_have_openmetrics(tmp_path: Path) -> None:
    """Prometheus asks for it first, and would get `vllm_` for `vllm:`."""
    accept = (
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;q=0.5"
    )
    served, _ = made(tmp_path)
    with running(served) as client:
        request = urllib.request.Request(f"http://127.0.0.1:{client.port}/metrics", headers={"accept": accept})
        with urllib.request.urlopen(request, timeout=20) as response:
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert 'vllm:num_requests_running{engine="0"' in response.read().decode()


def test_the_dashboard_asks_for_what_there_is(tmp_path: Path) -> None:
    served, _ = made(tmp_path, speed=50.0)
    with running(served) as client:
        client.good("/v1/completions", {"prompt": "x", "max_tokens": 3})
        families = list(text_string_to_metric_families(client.good("/metrics")))
    labels: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    asked = [query for panel in dashboard.panels() for query, _ in panel.queries]
    for query in asked:
        names = re.findall(r"(?:vllm:|twinserve_)\w+|http_requests_total", query)
        assert names
        for name, selector in re.findall(r"((?:vllm:|twinserve_)\w+|http_requests_total)\{([^}]*)\}", query):
            assert name in labels, name
            assert set(re.findall(r"(\w+)=~?", selector)) <= labels[name], query
        assert all(name in labels for name in names) and query.count("(") == query.count(")")


def test_the_dashboard_that_is_bundled_is_the_one_that_is_made() -> None:
    assert dashboard.BUNDLED.read_text("utf-8") == dashboard.text(), (
        "renew it: python -m backends.server.dashboard > backends/server/dashboards/serving.json"
    )
    made_ = json.loads(dashboard.text())
    titles = " ".join(panel["title"] for panel in made_["panels"])
    for subject in ("first token", "per token", "Tokens a second", "KV occupancy", "Device", "Queue", "Failures"):
        assert subject in titles
    places = [tuple(panel["gridPos"].values()) for panel in made_["panels"]]
    assert len(set(places)) == len(places)
