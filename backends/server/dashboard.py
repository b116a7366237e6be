"""A Grafana dashboard of what the server counts: `python -m backends.server.dashboard > serving.json`.

Its panels are those that people who run such servers ask for: TTFT, time per token, tokens a second, KV occupancy, how busy
the device is, the queue, failures. All but one read what vLLM has too, so that one dashboard can show both side by side.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

BUNDLED = Path(__file__).parent / "dashboards" / "serving.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_OF = '{model_name=~"$model_name"}'
_RATE = "[$__rate_interval]"
_QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


class Panel(NamedTuple):
    """One picture: its queries, each with a legend, and the unit as Grafana names it."""

    title: str
    text: str
    unit: str
    queries: list[tuple[str, str]]


def _rate(counter: str, of: str = _OF) -> str:
    return f"sum(rate({counter}{of}{_RATE}))"


def _quantiles(histogram: str) -> list[tuple[str, str]]:
    """The usual quantiles of a histogram, and its mean."""
    buckets = f"sum by(le) (rate({histogram}_bucket{_OF}{_RATE}))"
    shown = [(f"histogram_quantile({share:g}, {buckets})", name) for share, name in _QUANTILES]
    return [*shown, (f"{_rate(f'{histogram}_sum')} / {_rate(f'{histogram}_count')}", "mean")]


def _share(part: str, whole: str) -> str:
    return f"{part} / clamp_min({whole}, 1e-9)"


def panels() -> list[Panel]:
    """The pictures, in reading order."""
    generating = 'handler=~"/v1/.*completions"'
    responses, failed = f"{{{generating}}}", f'{{{generating}, status=~"4xx|5xx"}}'
    return [
        Panel("Time to first token", "From a request's arrival to its first token.", "s",
              _quantiles("vllm:time_to_first_token_seconds")),
        Panel("Time per token", "Between two tokens of an answer.", "s", _quantiles("vllm:inter_token_latency_seconds")),
        Panel("Whole requests", "From a request's arrival to its last token.", "s",
              _quantiles("vllm:e2e_request_latency_seconds")),
        Panel("Tokens a second", "Of prompts and of answers.", "short",
              [(_rate("vllm:generation_tokens_total"), "answers"), (_rate("vllm:prompt_tokens_total"), "prompts")]),
        Panel("KV occupancy", "Share of the KV pool in use; at 1, requests wait or lose their memory.", "percentunit",
              [(f"vllm:kv_cache_usage_perc{_OF}", "in use")]),
        Panel("Device", "Share of the time with a step under way.", "percentunit",
              [(_rate("twinserve_engine_busy_seconds_total"), "busy")]),
        Panel("Queue", "Requests that run and that wait.", "short",
              [(f"vllm:num_requests_running{_OF}", "running"), (f"vllm:num_requests_waiting{_OF}", "waiting")]),
        Panel("Failures", "Share of the requests that were refused or went wrong, and of those that clients gave up.",
              "percentunit",
              [(_share(_rate("http_requests_total", failed), _rate("http_requests_total", responses)), "refused, failed"),
               (_share(_rate("vllm:request_success_total", '{model_name=~"$model_name", finished_reason="abort"}'),
                       _rate("vllm:request_success_total")), "given up")]),
        Panel("Requests a second", "Requests that are over, by reason.", "reqps",
              [(f"sum by(finished_reason) (rate(vllm:request_success_total{_OF}{_RATE}))", "{{finished_reason}}")]),
        Panel("Prefix cache", "Share of the prompt tokens that were found in the cache.", "percentunit",
              [(_share(_rate("vllm:prefix_cache_hits_total"), _rate("vllm:prefix_cache_queries_total")), "hits")]),
        Panel("Preemptions", "Requests a second that lost their memory for a while.", "reqps",
              [(_rate("vllm:num_preemptions_total"), "preempted")]),
        Panel("Waiting for memory", "From the engine's queue to memory.", "s",
              _quantiles("vllm:request_queue_time_seconds")),
    ]  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "title": "LLM serving", "uid": "twinserve-serving", "schemaVersion": 39, "version": 1, "editable": True,
        "tags": ["twinserve", "vllm"], "time": {"from": "now-15m", "to": "now"}, "refresh": "5s", "timezone": "",
        "templating": {"list": [
            {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus", "hide": 0},
            {"name": "model_name", "label": "model", "type": "query", "datasource": _SOURCE, "refresh": 2, "multi": True,
             "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "sort": 1,
             "query": {"query": "label_values(vllm:num_requests_running, model_name)", "refId": "models"}},
        ]},
        "panels": [_drawn(number, panel) for number, panel in enumerate(panels())],
    }  # fmt: skip


def _drawn(number: int, panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend, "datasource": _SOURCE, "range": True}
        for index, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number + 1, "type": "timeseries", "title": panel.title, "description": panel.text, "datasource": _SOURCE,
        "gridPos": {"x": number % 2 * 12, "y": number // 2 * 8, "w": 12, "h": 8}, "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 8}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }  # fmt: skip


def text() -> str:
    """The dashboard as a file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    print(text(), end="")
