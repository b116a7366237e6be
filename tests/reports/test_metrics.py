from __future__ import annotations

import json
import math

import numpy as np
import pytest
from synthetic_runs import empty_timeline, make_requests, make_run, simulated_run, tokens_from_lists

from reports.metrics import distributions, littles_law, notices, summarize
from reports.run_data import CANCELLED, FAILED, REFUSED, UNFINISHED


@pytest.fixture(scope="module")
def busy():
    return simulated_run(400, 12, pool=20_000, refuse=0.03)


def two_requests():
    """A: 2 tokens 100 ms apart. B: 101 tokens 10 ms apart. Both sent at 1 s; planned at 1 s."""
    b = [2.0 + 0.01 * i for i in range(101)]
    tokens = tokens_from_lists([[[1.5, 1.6]], [b]])
    r = make_requests(
        2, sent=1.0, first_token=[1.5, 2.0], finish=[1.6, b[-1]], output_tokens=[2, 101], input_tokens=[10, 20],
        queued=1.1, admitted=1.2,
    )  # fmt: skip
    return make_run(r, tokens)


def test_every_request_weighs_the_same_in_tpot_and_every_gap_in_itl():
    s = summarize(two_requests())
    assert s["mean_tpot_ms"] == pytest.approx(55)
    assert s["mean_itl_ms"] == pytest.approx((100 + 100 * 10) / 101)
    assert s["median_itl_ms"] == pytest.approx(10)
    assert s["latency_counts"]["itl"] == 101


def test_latencies_and_throughputs_by_hand():
    s = summarize(two_requests())
    assert s["mean_ttft_ms"] == pytest.approx(750)
    assert s["std_ttft_ms"] == pytest.approx(250)
    assert s["mean_e2el_ms"] == pytest.approx((600 + 2000) / 2)
    assert s["duration"] == pytest.approx(2.0)
    assert s["request_throughput"] == pytest.approx(1.0)
    assert s["output_throughput"] == pytest.approx(103 / 2)
    assert s["total_token_throughput"] == pytest.approx(133 / 2)
    assert s["mean_concurrency"] == pytest.approx(2.6 / 2)
    assert s["max_concurrent_requests"] == 2
    assert s["p50_ttft_ms"] == pytest.approx(750)
    assert s["p90_ttft_ms"] is s["p99_e2el_ms"] is None


def test_ttft_splits_into_what_it_is_made_of():
    s = summarize(two_requests())
    assert s["mean_front_end_ms"] == pytest.approx(100)
    assert s["mean_queue_ms"] == pytest.approx(100)
    assert s["mean_prefill_ms"] == pytest.approx(550)
    assert s["mean_front_end_ms"] + s["mean_queue_ms"] + s["mean_prefill_ms"] == pytest.approx(s["mean_ttft_ms"])


def test_peak_concurrency_is_exact():
    r = make_requests(3, sent=[0, 1, 2], first_token=[1, 2, 3], finish=[1, 2, 3])
    assert summarize(make_run(r, tokens_from_lists([[[1.0]], [[2.0]], [[3.0]]])))["max_concurrent_requests"] == 1


def test_only_finished_requests_feed_latency_and_throughput():
    r = make_requests(
        5, sent=0.0, first_token=1.0, finish=[2.0, 9.0, 9.0, np.nan, 9.0], output_tokens=[2, 3, 3, 0, 3],
        status=["finished", FAILED, CANCELLED, REFUSED, UNFINISHED],
        reason=["", "error in the stream", "client gone", "longer than the context", ""],
    )  # fmt: skip
    tokens = tokens_from_lists([[[1.0, 2.0]], [[1.0, 5.0, 9.0]], [[1.0, 5.0, 9.0]], [], [[1.0, 5.0, 9.0]]])
    s = summarize(make_run(r, tokens, slo={"ttft_ms": 1500}))
    assert s["completed"] == 1
    assert (s["failed"], s["refused"], s["cancelled"], s["unfinished"]) == (1, 1, 1, 1)
    assert s["failed_reasons"] == {"error in the stream": 1}
    assert s["refused_reasons"] == {"longer than the context": 1}
    assert s["total_output_tokens"] == 2
    assert s["latency_counts"]["e2el"] == s["latency_counts"]["itl"] == 1
    assert s["mean_itl_ms"] == pytest.approx(1000)
    assert s["slo_attainment"] == pytest.approx(1 / 5)  # of those sent
    assert s["max_output_tokens_per_s"] == 1
    assert s["duration"] == 9.0


def test_itl_has_the_gap_of_a_preemption():
    r = make_requests(1, sent=0.0, first_token=1.0, finish=8.0, output_tokens=4, preemptions=1, recomputed_tokens=7)
    s = summarize(make_run(r, tokens_from_lists([[[1.0, 2.0], [7.0, 8.0]]])))
    assert s["mean_itl_ms"] == pytest.approx((1000 + 5000 + 1000) / 3)
    assert s["mean_tpot_ms"] == pytest.approx(7000 / 3)
    assert (s["preemptions"], s["recomputed_tokens"]) == (1, 7)


def test_a_single_token_passes_a_tpot_limit():
    r = make_requests(2, sent=0.0, first_token=1.0, finish=[1.0, 3.0], output_tokens=[1, 2])
    s = summarize(make_run(r, tokens_from_lists([[[1.0]], [[1.0, 3.0]]]), slo={"tpot_ms": 100}))
    assert s["slo_attainment"] == 0.5
    assert s["slo_attainment_tpot"] == 0.5
    assert s["request_goodput"] == pytest.approx(1 / 3)
    assert s["latency_counts"]["tpot"] == 1


def test_goodput_needs_every_limit():
    r = make_requests(2, sent=0.0, first_token=[0.1, 0.4], finish=[3.0, 0.6], output_tokens=2)
    tokens = tokens_from_lists([[[0.1, 3.0]], [[0.4, 0.6]]])
    s = summarize(make_run(r, tokens, slo={"ttft_ms": 200, "e2e_ms": 1000}))
    assert (s["slo_attainment_ttft"], s["slo_attainment_e2el"], s["slo_attainment"]) == (0.5, 0.5, 0.0)


def test_cap_of_one_hides_the_queue_from_service_time_only():
    """Eight requests planned at 10/s, one at a time, 0.5 s each."""
    sent = np.arange(8) * 0.5
    r = make_requests(8, scheduled=np.arange(8) * 0.1, sent=sent, first_token=sent + 0.5, finish=sent + 0.5)
    s = summarize(make_run(r, tokens_from_lists([[[t]] for t in sent + 0.5]), load={"mode": "open"}))
    assert s["mean_e2el_ms"] == pytest.approx(500)
    assert s["mean_e2el_from_schedule_ms"] == pytest.approx(1900)
    assert distributions(make_run(r))["e2el_from_schedule"].values[-1] == pytest.approx(3.3)
    assert s["send_lag_ok"] is False
    assert any("late" in n for n in notices(s))


def test_steady_window_of_an_open_loop_leaves_out_warm_up_and_drain():
    # one request a second for 100 s, each 10 s long with a token at its end
    sent = np.arange(100.0)
    r = make_requests(100, sent=sent, first_token=sent + 10, finish=sent + 10)
    s = summarize(make_run(r, tokens_from_lists([[[t + 10.0]] for t in sent])))
    assert (s["steady_start"], s["steady_end"]) == (10.0, 99.0)
    assert s["steady_output_throughput"] == pytest.approx(1.0)
    assert s["output_throughput"] == pytest.approx(100 / 109)


def test_steady_window_of_a_closed_loop_is_the_longest_full_stretch():
    # two clients; the second stops at 6 s, the first goes on alone to 10 s
    sent, end = np.array([0.0, 0, 2, 3, 4, 6]), np.array([2.0, 3, 4, 6, 6, 10])
    r = make_requests(6, sent=sent, first_token=end, finish=end)
    tokens = tokens_from_lists([[[t]] for t in end])
    s = summarize(make_run(r, tokens, load={"mode": "closed", "concurrency": 2}))
    assert (s["steady_start"], s["steady_end"]) == (0.0, 6.0)
    assert s["steady_output_throughput"] == pytest.approx(3 / 6)  # at 2, 3 and 4 s; 6 s is outside


def test_littles_law_holds_and_a_wrong_timeline_is_noticed(busy):
    assert littles_law(busy)["error"] < 1e-9
    s = summarize(busy)
    assert not any("Little" in n for n in notices(s))
    wrong = simulated_run(200, 12)
    wrong.timeline.running = wrong.timeline.running * 1.1
    assert any("Little" in n for n in notices(summarize(wrong)))


def test_littles_law_by_hand():
    t = empty_timeline(4, 1.0)
    t.running[:] = [1, 2, 1, 0]
    r = make_requests(2, sent=[0.0, 1.0], first_token=[1, 2], finish=[2.0, 3.0])
    run = make_run(r, tokens_from_lists([[[2.0]], [[3.0]]]), t, end=4.0)
    assert littles_law(run) == {"timeline_mean": 1.0, "requests_mean": 1.0, "error": 0.0}


def test_kv_shares_average_over_time_with_a_short_last_bucket():
    t = empty_timeline(2, 10.0)
    t.kv_used[:], t.kv_free[:] = [50, 100], [50, 0]
    r = make_requests(1, first_token=1.0, finish=15.0)
    run = make_run(r, tokens_from_lists([[[1.0]]]), t, kv_pool_tokens=100, kv_bytes_per_token=8, end=15.0)
    s = summarize(run)
    assert s["kv_used_mean"] == pytest.approx((50 * 10 + 100 * 5) / 15 / 100)
    assert (s["kv_used_peak"], s["kv_pool_bytes"]) == (1.0, 800)
    kinds = ("used", "cached", "reserved", "internal", "external", "free")
    assert sum(s[f"kv_{kind}_mean"] for kind in kinds) == pytest.approx(1.0)


def test_batch_and_cache_figures():
    t = empty_timeline(2, 1.0)
    t.steps[:], t.decode_tokens[:], t.prefill_tokens[:] = [3, 1], [10, 2], [100, 0]
    r = make_requests(3, input_tokens=[100, 100, 50], cached_tokens=[40, 0, 9], admitted=[0.0, 0.0, np.nan])
    s = summarize(make_run(r, timeline=t, end=2.0))
    assert (s["engine_steps"], s["mean_batch"], s["mean_tokens_per_step"]) == (4, 3.0, 28.0)
    assert s["prefix_hit_rate"] == pytest.approx(40 / 200)  # only what was admitted


def test_nothing_finished_gives_nulls_not_errors():
    r = make_requests(
        3, status=REFUSED, reason="no", first_token=np.nan, finish=np.nan, admitted=np.nan, output_tokens=0
    )
    s = summarize(make_run(r))
    assert (s["completed"], s["refused"], s["output_throughput"], s["mean_ttft_ms"]) == (0, 3, None, None)
    assert s["saturation"]["label"] == "unknown"


def test_no_requests_at_all():
    assert summarize(make_run(make_requests(0)))["requests"] == 0


def test_summary_is_strict_json(busy):
    def walk(value):
        if isinstance(value, dict):
            return all(isinstance(k, str) and walk(v) for k, v in value.items())
        if isinstance(value, list):
            return all(walk(v) for v in value)
        return value is None or type(value) in (int, str, bool) or (type(value) is float and math.isfinite(value))

    s = summarize(busy)
    assert walk(s)
    assert json.loads(json.dumps(s, allow_nan=False)) == s


def test_counts_add_up_and_rows_may_have_gaps(busy):
    s = summarize(busy)
    assert s["requests"] == s["completed"] + s["failed"] + s["refused"] + s["cancelled"] + s["unfinished"]
    assert s["total_output_tokens"] == busy.requests.target_tokens[busy.requests.status == "finished"].sum()
    assert s["latency_counts"]["itl"] <= s["total_output_tokens"] - s["completed"]


def test_request_ids_need_not_be_places():
    run = two_requests()
    plain = summarize(run)
    run.requests.request += 1000
    run.tokens.request += 1000
    assert summarize(run) == plain
