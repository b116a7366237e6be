"""SLOs and prices as they are written, and how mistakes in them are answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.planner.prices import parse_prices, prices_for
from experiments.planner.slo import METRICS, STATS, Limit, limits_of, parse_slo, told
from sim.hardware import load_gpu
from workloads.errors import InputError


def test_limits_are_read() -> None:
    limits = parse_slo(" ttft_p95=500ms , tpot=0.05s, e2e_mean=1min,ITL-P99=80ms ")
    assert [(limit.metric, limit.stat, limit.seconds) for limit in limits] == [
        ("ttft", "p95", 0.5), ("tpot", "p95", 0.05), ("e2e", "mean", 60.0), ("itl", "p99", 0.08),
    ]  # fmt: skip
    assert [limit.key for limit in limits] == ["p95_ttft_ms", "p95_tpot_ms", "mean_e2el_ms", "p99_itl_ms"]
    assert [limit.fewest for limit in limits] == [20, 20, 2, 100]
    assert told(limits) == "TTFT p95 <= 500ms, TPOT p95 <= 50ms, E2E mean <= 60s, ITL p99 <= 80ms"
    assert limits_of({"ttft_ms": 500.0}) == (Limit("ttft", "p95", 0.5),)


@given(st.sampled_from(sorted(METRICS)), st.sampled_from(STATS), st.integers(1, 10**8))
def test_what_is_written_is_read_again(metric: str, stat: str, milliseconds: int) -> None:
    (limit,) = parse_slo(f"{metric}_{stat}={milliseconds}ms")
    (again,) = parse_slo(str(limit))
    assert (again.metric, again.stat) == (metric, stat)
    assert again.seconds == pytest.approx(milliseconds / 1e3, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected METRIC_STAT=TIME, got ''"),
        ("ttft", "expected METRIC_STAT=TIME, got 'ttft' (such as ttft_p95=500ms"),
        ("ttft=1s,", "expected METRIC_STAT=TIME"),
        ("=1s", "expected METRIC_STAT=TIME"),
        ("ttft_p95=500", "--slo ttft_p95: expected a unit after 500"),
        ("ttft=5m", "unknown unit 'm'; write min for minutes"),
        ("ttft_p97=1s", "unknown statistic 'p97' (did you mean"),
        ("tftt=1s", "unknown latency 'tftt' (did you mean"),
        ("<script>alert(1)</script>=1s", "unknown latency '<script>alert(1)</script>'"),
        ("ttft=0s", "ttft must be above 0"),
        ("ttft=-1s", "expected a duration"),
        ("ttft=nan", "expected a duration"),
        ("ttft=1e300s", "at most 1e+06 s"),
        ("ttft=1s,ttft_p95=2s", "ttft_p95 is given twice"),
        ("ü" * 10_000 + "=1s", "unknown latency"),
    ],
)
def test_slos_that_are_none(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_slo(text)
    assert says in str(caught.value) and len(str(caught.value)) < 300


def test_prices_are_read() -> None:
    prices = parse_prices(["h100=2.5/h,l40s=$0.9", "A100 = 1_0.5 / hour"])
    assert {name: price.usd_per_hour for name, price in prices.items()} == {
        "h100-sxm": 2.5, "l40s": 0.9, "a100-sxm": 10.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("h100", "expected GPU=DOLLARS/h"),
        ("=2", "expected GPU=DOLLARS/h"),
        ("h100=", "expected dollars an hour"),
        ("h100=2€", "expected dollars an hour for h100, got '2€'"),
        ("h100=2/day", "expected dollars an hour"),
        ("h100=-2", "an hour, got -2"),
        ("h100=0", "must be above 0"),
        ("h100=nan", "must be above 0"),
        ("h100=inf", "must be above 0"),
        ("h1000=2", "unknown GPU 'h1000' (did you mean"),
        ("h100=2,h100-sxm=3", "the price of h100-sxm is given twice"),
    ],
)
def test_prices_that_are_none(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_prices([text])
    assert says in str(caught.value) and str(caught.value).startswith("--price")


def test_prices_that_nobody_gave() -> None:
    cards = [load_gpu("h100"), load_gpu("h200")]
    prices, notes = prices_for(cards, {})
    assert set(prices) == {"h100-sxm"} and prices["h100-sxm"].source.startswith("list price")
    assert "list prices" in notes[0] and "no price is known for h200-sxm" in notes[1]
    prices, notes = prices_for(cards, parse_prices(["h100=2,h200=3"]))
    assert len(prices) == 2 and notes == []
    assert prices_for([load_gpu("h200")], {}) == ({}, ["no prices are known: the fewest GPUs count as cheapest"])
    with pytest.raises(InputError, match="l40s has a price but is not among the GPUs"):
        prices_for(cards, parse_prices(["l40s=1"]))
