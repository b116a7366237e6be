import json

import numpy as np
import pytest

from workloads.inspect import describe, figure, histogram, per_minute
from workloads.readers import read_trace
from workloads.synthetic import synthesize
from workloads.traffic import Traffic


def test_figures_of_a_small_traffic():
    traffic = Traffic([0, 10, 20, 30, 130], [1, 2, 3, 4, 10], [5] * 5, [0, 0, 0, 0, 9], name="t", notes=["n"])
    found = describe(traffic)
    assert (found["name"], found["requests"], found["sessions"], found["notes"]) == ("t", 5, None, ["n"])
    assert found["duration_s"] == 130 and found["rate_per_s"] == 4 / 130
    assert found["peak_minute_per_s"] == 4 / 60
    assert found["gap_cv"] == pytest.approx(np.std([10, 10, 10, 100]) / 32.5)
    assert found["minute_cv"] == pytest.approx(1)  # of 4 and 0: the last, with 1, is cut short
    wanted = {
        "mean": 4,
        "std": np.sqrt(10),
        "min": 1,
        "p50": 3,
        "p90": 7.6,
        "p95": 8.8,
        "p99": 9.76,
        "max": 10,
    }
    assert found["input_tokens"] == pytest.approx(wanted)
    assert found["declared_share"] == 0.2
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("arrival", [[5.0], [5.0, 5.0]])
def test_what_does_not_exist_is_none(arrival):
    found = describe(Traffic(arrival, [3] * len(arrival), [4] * len(arrival)))
    assert found["rate_per_s"] is found["gap_cv"] is found["minute_cv"] is None
    json.dumps(found, allow_nan=False)


def test_sessions():
    spec = {
        "requests": 100,
        "input_tokens": 20,
        "output_tokens": 12,
        "sessions": {"turns": 4},
        "arrivals": {"process": "constant", "rate": 1},
    }
    found = describe(synthesize(spec), 16)
    assert (found["sessions"], found["turns"], found["rate_per_s"]) == (25, {"mean": 4, "max": 4}, 1)
    # prompts of 20, 52, 84, 116 tokens; earlier turn and answer seen: 32, 64, 96
    assert found["prefix"]["token_share"] == pytest.approx((32 + 64 + 96) / (20 + 52 + 84 + 116))
    assert found["prefix"]["request_share"] == 0.75


@pytest.mark.parametrize("seconds", [180, 184, 210, 239])
def test_a_last_minute_that_is_cut_short_is_no_burst(seconds):
    steady = np.arange(0, seconds, 0.25)
    found = describe(Traffic(steady, [1] * len(steady), [1] * len(steady)))
    assert found["minute_cv"] <= 0.01
    assert found["peak_minute_per_s"] == 4


def test_less_than_a_minute_has_no_busiest():
    assert describe(Traffic([0, 1, 2], [1] * 3, [1] * 3))["peak_minute_per_s"] is None


def test_minutes_start_at_the_first_arrival():
    assert per_minute(Traffic([125, 130, 185], [1] * 3, [1] * 3)).tolist() == [2, 1]


def test_histogram():
    text = histogram(np.array([1, 1, 1, 1, 10, 100]), 2, 8)
    assert text == "  1 – 10  ████████  4\n10 – 100  ████      2"
    assert histogram(np.array([7, 7])).split() == ["7", "–", "7", "█" * 40, "2"]
    lines = histogram(np.arange(0, 101), 4, log=False).splitlines()
    assert [line.split()[-1] for line in lines] == ["25", "25", "25", "26"]
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.integers(1, 10**6, 30)
        assert sum(int(line.split()[-1]) for line in histogram(values, 7).splitlines()) == 30


def test_figure():
    spec = {
        "requests": 300,
        "arrivals": {"process": "poisson", "rate": 2},
        "input_tokens": 5,
        "output_tokens": 7,
    }
    chart = figure(synthesize(spec))
    assert [axes.get_title() for axes in chart.axes] == [
        "arrivals", "gaps between arrivals", "input lengths", "output lengths"
    ]  # fmt: skip
    figure(Traffic([0.0], [3], [4])).canvas.draw()


SHARING = {
    "mooncake_conversation_trace.jsonl.gz": (36.6, 37.4, 99.99, 182_790, 288_500),
    "mooncake_synthetic_trace.jsonl.gz": (64.0, 65.1, 44.6, 43_924, 121_877),
}


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "rows", "span", "rate", "cv", "inputs", "outputs"),
    [
        (
            "AzureLLMInferenceTrace_conv.csv.gz", 19_366, 3501.7, (5.53, 8.45), (1.09, 0.25),
            (1154.7, 1020, 4083), (211.1, 129, 451),
        ),
        (
            "AzureLLMInferenceTrace_code.csv.gz", 8_819, 3435.9, (2.57, 10.53), (13.15, 1.03),
            (2047.8, 1469, 7303), (27.9, 13, 90),
        ),
        (
            "mooncake_conversation_trace.jsonl.gz", 12_031, 3537.0, (3.40, 4.12), (3.03, 0.12),
            (12035.1, 6909, 39550), (342.6, 350, 698),
        ),
        (
            "mooncake_synthetic_trace.jsonl.gz", 3_993, 1022.0, (3.91, 4.55), (1.01, 0.24),
            (15325.5, 11587, 48904), (149.1, 69, 519),
        ),
        (
            "sharegpt_300_lengths.csv", 300, 29.1, (10.26, None), (0.94, None),
            (857.5, 731, 1748), (652.5, 632, 773),
        ),
    ],
)  # fmt: skip
def test_recorded_traces(recorded, name, rows, span, rate, cv, inputs, outputs):
    traffic = read_trace(recorded / name)
    found = describe(traffic, 512)
    assert found["requests"] == rows
    assert found["duration_s"] == pytest.approx(span, abs=0.051)
    assert found["rate_per_s"] == pytest.approx(rate[0], abs=0.0051)
    assert found["gap_cv"] == pytest.approx(cv[0], abs=0.0051)
    if rate[1]:
        assert found["peak_minute_per_s"] == pytest.approx(rate[1], abs=0.0051)
        counts = per_minute(traffic)  # the figures at hand count a last minute that is cut short
        assert counts.std() / counts.mean() == pytest.approx(cv[1], abs=0.0051)
        if span % 60 < 54:
            counts = counts[:-1]
        assert found["minute_cv"] == pytest.approx(counts.std() / counts.mean())
    for column, wanted in (("input_tokens", inputs), ("output_tokens", outputs)):
        assert found[column]["mean"] == pytest.approx(wanted[0], abs=0.051)
        assert found[column]["p50"] == pytest.approx(wanted[1], abs=0.51)
        assert found[column]["p95"] == pytest.approx(wanted[2], abs=1)
    if name in SHARING:
        blocks, tokens, requests, distinct, everything = SHARING[name]
        prefix = found["prefix"]
        assert 100 * prefix["block_share"] == pytest.approx(blocks, abs=0.05)
        assert 100 * prefix["token_share"] == pytest.approx(tokens, abs=0.05)
        assert 100 * prefix["request_share"] == pytest.approx(requests, abs=0.05)
        assert (prefix["distinct_blocks"], prefix["blocks"]) == (distinct, everything)
    else:
        assert found["prefix"]["token_share"] == 0
