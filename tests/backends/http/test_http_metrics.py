"""A server's own figures, read from its /metrics."""

from __future__ import annotations

import math

from backends.http.metrics import Watch, parse

VLLM = """# HELP vllm:num_requests_running x
vllm:num_requests_running{{engine="0"}} {running}
vllm:num_requests_running{{engine="1"}} 1.0
vllm:num_requests_waiting{{engine="0"}} 4
vllm:kv_cache_usage_perc{{engine="0"}} 0.5
vllm:kv_cache_usage_perc{{engine="1"}} 0.25
vllm:gpu_cache_usage_perc{{engine="0"}} 0.9
vllm:num_preemptions_total{{engine="0"}} {preempted}
vllm:prefix_cache_queries_total 100
vllm:cache_config_info{{block_size="16",cache_dtype="auto",num_gpu_blocks="1000"}} 1.0
vllm:e2e_request_latency_seconds_bucket{{le="0.3"}} 3.0
process_open_fds NaN
"""
SGLANG = """sglang:num_running_reqs{model_name="m"} 7.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:token_usage{model_name="m"} 0.28
sglang:max_total_num_tokens 5e4
"""


def test_engines_of_a_server_are_added_and_shares_averaged() -> None:
    values, pool = parse(VLLM.format(running=3.0, preempted=5))
    assert values["vllm:num_requests_running"] == 4.0 and values["vllm:kv_cache_usage_perc"] == 0.375
    assert pool == 16_000 and "process_open_fds" not in values


def test_a_watch_tells_what_counters_gained() -> None:
    watch = Watch()
    watch.note(0.0, VLLM.format(running=3.0, preempted=5))
    watch.note(1.0, VLLM.format(running=5.0, preempted=9))
    assert watch.seen["running"] == [4.0, 6.0] and watch.seen["kv_use"] == [0.375, 0.375]
    assert watch.gained() == {"preemptions": 4, "prefix_queries": 0} and watch.pool_tokens == 16_000


def test_sglang_has_names_of_its_own() -> None:
    watch = Watch()
    watch.note(0.5, SGLANG)
    assert (watch.seen["running"], watch.seen["waiting"], watch.seen["kv_use"]) == ([7.0], [2.0], [0.28])
    assert watch.pool_tokens == 50_000 and watch.gained() == {}


def test_what_is_broken_is_left_out() -> None:
    values, pool = parse('vllm:num_requests_running{a="b"} many\nvllm:cache_config_info{block_size="x"} 1\n\x00\n')
    assert values == {} and pool is None
    watch = Watch()
    watch.note(0.0, "vllm:num_requests_waiting 1")
    assert math.isnan(watch.seen["running"][0])
